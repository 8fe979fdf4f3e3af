"""Decisions. Pure: no I/O, no clock of their own; randomness from one replaceable function."""
