"""Routes as other tools read them, one format a file."""
