"""Sockets: what the rooms above expect of the rooms that plug in."""
