"""The SQLite store: one connection, and a whole claim or settle in one hop to its thread."""

from outlast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
