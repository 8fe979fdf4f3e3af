"""What `outlast version` says. Reads metadata only: no framework is imported for it."""

import platform
import sqlite3
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

_NEEDED = ("faststream", "sqlalchemy", "aiosqlite")
_OPTIONAL = ("asyncpg",)


def version_lines() -> Iterator[str]:
    """A line for each thing whose version matters in a bug report."""
    return (f"{name:<12}{what}" for name, what in versions())


def versions() -> Iterator[tuple[str, str]]:
    """What it is, and its version."""
    yield "outlast", _installed("outlast")
    yield "python", f"{platform.python_version()} ({platform.system()})"
    yield "sqlite", sqlite3.sqlite_version
    for name in (*_NEEDED, *_OPTIONAL):
        yield name, _installed(name)


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
