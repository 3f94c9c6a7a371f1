"""One file per command; nothing here loads torch until a command runs."""
