"""What an asyncpg error says about the effect of a statement, as the errors of `model.errors`."""

import asyncio

import asyncpg

from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    OutcomeUnknown,
    RowLocked,
    RowRefused,
    StoreFailure,
    TryLater,
)

CONNECTION_LOST = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    ConnectionError,
    OSError,
    EOFError,
    asyncio.IncompleteReadError,
)
"""A terminated idle connection shows itself as any of these."""

STALE_PLAN = (asyncpg.InvalidCachedStatementError, asyncpg.exceptions.OutdatedSchemaCacheError)
"""The table changed under a prepared statement: prepare again; nothing has landed."""

_LOCK_NOT_AVAILABLE = "55P03"


def of_server_error(error: asyncpg.PostgresError, *, connection_lost: bool) -> StoreFailure:
    """The server answered with an error."""
    state = str(error.sqlstate or "")
    text = _sentence(error)
    if connection_lost or state.startswith("08"):
        return OutcomeUnknown(f"the connection was lost: {text}", state=state)
    if state == _LOCK_NOT_AVAILABLE:
        return RowLocked(text, state=state)
    kind = state[:2]
    if kind in {"22", "23", "54"}:
        return RowRefused(text, state=state)
    if kind in {"42", "53"}:
        return CannotWrite(text, state=state)
    return TryLater(text, state=state)


def of_client_error(error: BaseException) -> StoreFailure:
    """The connection broke while a statement was under way."""
    return OutcomeUnknown(f"the connection was lost: {type(error).__name__}: {error}")


def not_connected(error: BaseException) -> StoreFailure:
    """No connection could be had."""
    return Disconnected(f"no connection: {type(error).__name__}: {error}")


def _sentence(error: asyncpg.PostgresError) -> str:
    """The server's message and where it happened; never its DETAIL, which may show a row."""
    place = [
        f"{kind} {name!r}"
        for kind, name in (
            ("table", getattr(error, "table_name", None)),
            ("column", getattr(error, "column_name", None)),
            ("constraint", getattr(error, "constraint_name", None)),
        )
        if name
    ]
    message = getattr(error, "message", None) or type(error).__name__
    where = f" ({', '.join(place)})" if place else ""
    return f"{message}{where} [{error.sqlstate}]"
