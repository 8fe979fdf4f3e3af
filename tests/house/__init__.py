"""Imports, sizes, public names, generated pages: what holds for the whole repository."""
