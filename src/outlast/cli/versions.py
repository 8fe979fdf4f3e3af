"""What `outlast version` says. Reads metadata only: no framework is imported for it."""

import platform
import sqlite3
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

_NEEDED = ("faststream", "sqlalchemy", "aiosqlite")
_OPTIONAL = ("asyncpg",)


def version_lines() -> Iterator[str]:
    """A line for each thing whose version matters in a bug report."""
    yield _line("outlast", _installed("outlast"))
    yield _line("python", f"{platform.python_version()} ({platform.system()})")
    yield _line("sqlite", sqlite3.sqlite_version)
    for name in (*_NEEDED, *_OPTIONAL):
        yield _line(name, _installed(name))


def _line(name: str, what: str) -> str:
    return f"{name:<12}{what}"


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
