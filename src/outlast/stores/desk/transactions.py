"""Reading and writing transactions of the desk, on the application's engine.

In: an `AsyncEngine`. Out: connections inside a transaction. What the driver says leaves here as a
`StoreFailure` with a sentence: no DETAIL, no password, no traceback.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Table, false, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    OutcomeUnknown,
    RowLocked,
    RowRefused,
    StoreFailure,
    TryLater,
    UnsupportedDatabase,
)

LOCK_WAIT = "2s"
"""How long a verb waits for somebody else's lock: on a letter, or on a table that is migrated."""

_CLASSES: dict[str, type[StoreFailure]] = {
    "08": Disconnected,
    "22": RowRefused,
    "23": RowRefused,
    "25": CannotWrite,
    "28": Disconnected,
    "3D": Disconnected,
    "42": CannotWrite,
    "53": CannotWrite,
    "54": RowRefused,
}
_LOCKED = "55P03"


class DeskDatabase:
    """The engine, and how one reads and writes through it."""

    def __init__(self, engine: AsyncEngine, dlq: Table) -> None:
        if engine.dialect.name not in {"postgresql", "sqlite"}:
            raise UnsupportedDatabase(
                f"the desk works on PostgreSQL and SQLite, not on {engine.dialect.name}"
            )
        self.engine = engine
        self.is_postgres = engine.dialect.name == "postgresql"
        # takes SQLite's write lock before anything is read, whoever sent the BEGIN
        self._lock = update(dlq).where(false()).values(id=dlq.c.id)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection that nothing is written through."""
        try:
            async with self.engine.connect() as connection:
                yield connection
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error

    async def bound(self, connection: AsyncConnection) -> None:
        """Let no statement of this transaction wait long for somebody else's lock."""
        if self.is_postgres:
            wait = func.set_config("lock_timeout", LOCK_WAIT, True)
            await connection.execute(select(wait))

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed when the block ends. On SQLite it is the only writer."""
        at_commit = False
        try:
            async with self.engine.connect() as connection:
                await connection.execution_options(
                    isolation_level="READ COMMITTED" if self.is_postgres else "SERIALIZABLE"
                )
                await self.bound(connection)
                if not self.is_postgres:
                    await connection.execute(self._lock)
                yield connection
                at_commit = True
                await connection.commit()
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            if at_commit and isinstance(failure, Disconnected):
                raise OutcomeUnknown(
                    f"{failure}; it may have been done", state=failure.state
                ) from (error)
            raise failure from error


def failure_of(error: Exception) -> StoreFailure | None:
    """What is known of a statement that failed; None: it was none of the database's."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        return _of_driver(error.orig, lost=error.connection_invalidated)
    if isinstance(error, PoolTimeout):
        return TryLater("every connection of the pool is in use")
    if isinstance(error, OSError) or isinstance(getattr(error, "sqlstate", None), str):
        return _of_driver(error, lost=isinstance(error, OSError))
    return None


def _of_driver(error: BaseException, *, lost: bool) -> StoreFailure:
    if getattr(error, "sqlite_errorname", None) and isinstance(error, Exception):
        # loads the driver, which whoever works on PostgreSQL does not need
        from outlast.stores.sqlite.failures import translate  # noqa: PLC0415

        return translate(error, "dead letters")
    state = getattr(error, "sqlstate", None)
    text = f"{_sentence(error)} [{state}]" if state else _sentence(error)
    if lost or state is None:
        return Disconnected(f"the database cannot be reached: {text}", state=state)
    if state == _LOCKED:
        return RowLocked(f"somebody else holds a lock: {text}", state=state)
    return _CLASSES.get(state[:2], TryLater)(text, state=state)


def _sentence(error: Any) -> str:
    """The server's message, never its DETAIL, which may show a row."""
    cause = error.__cause__
    message = getattr(cause, "message", None) or getattr(error, "message", None)
    if not message:
        message = getattr(getattr(error, "diag", None), "message_primary", None)
    return str(message or error or type(error).__name__).splitlines()[0]
