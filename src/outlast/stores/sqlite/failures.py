"""The errors of sqlite3 as the errors of outlast: what is known of a statement that failed.

In: an exception from the database thread. Out: a `StoreFailure` that names the table. Nothing here
decides what to do about it.
"""

import sqlite3

from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    OutcomeUnknown,
    RowLocked,
    RowRefused,
    StoreFailure,
    TryLater,
)

_PRIMARY_CODE = 0xFF

_CLASSES: dict[int, type[StoreFailure]] = {
    sqlite3.SQLITE_BUSY: RowLocked,
    sqlite3.SQLITE_LOCKED: RowLocked,
    sqlite3.SQLITE_PROTOCOL: RowLocked,
    sqlite3.SQLITE_CONSTRAINT: RowRefused,
    sqlite3.SQLITE_MISMATCH: RowRefused,
    sqlite3.SQLITE_TOOBIG: RowRefused,
    sqlite3.SQLITE_FULL: CannotWrite,
    sqlite3.SQLITE_IOERR: CannotWrite,
    sqlite3.SQLITE_READONLY: CannotWrite,
    sqlite3.SQLITE_CORRUPT: CannotWrite,
    sqlite3.SQLITE_NOTADB: CannotWrite,
    sqlite3.SQLITE_CANTOPEN: CannotWrite,
    sqlite3.SQLITE_PERM: CannotWrite,
    sqlite3.SQLITE_AUTH: CannotWrite,
    sqlite3.SQLITE_INTERRUPT: TryLater,
}

_DRIFT = ("no such table", "no such column", "has no column named")

_UNBINDABLE = (UnicodeError, OverflowError, sqlite3.DataError, sqlite3.InterfaceError)

_MOVED = "SQLITE_READONLY_DBMOVED"


class GivenUp(Exception):  # noqa: N818 - nobody waits for it any more
    """The caller stopped waiting before the commit: nothing landed."""


def translate(error: Exception, tables: str) -> StoreFailure:
    """The failure of a statement over these tables."""
    text = f"{error} (SQLite, {tables})"
    if isinstance(error, (UnicodeError, OverflowError)):
        # a value that cannot be bound; the error's own text may hold it
        text = f"a value does not fit: {type(error).__name__} (SQLite, {tables})"
    return _class(error)(text, state=getattr(error, "sqlite_errorname", None))


def _class(error: Exception) -> type[StoreFailure]:
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        # a file that was replaced under an open connection: a new one finds the new file
        if getattr(error, "sqlite_errorname", None) == _MOVED:
            return Disconnected
        if code & _PRIMARY_CODE == sqlite3.SQLITE_ERROR and any(d in str(error) for d in _DRIFT):
            return CannotWrite
        return _CLASSES.get(code & _PRIMARY_CODE, OutcomeUnknown)
    if isinstance(error, GivenUp):
        return TryLater
    if isinstance(error, _UNBINDABLE):
        return RowRefused
    return Disconnected if _is_closed(error) else OutcomeUnknown


def _is_closed(error: Exception) -> bool:
    text = str(error).lower()
    if isinstance(error, ValueError):
        return text in ("connection closed", "no active connection")
    return isinstance(error, sqlite3.ProgrammingError) and "closed database" in text
