"""One member of each family, one file each."""
