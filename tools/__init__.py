"""Small scripts of the Makefile, and what the house tests read from them."""
