"""The hot statements by hand, one folder a database, the same file names in each."""
