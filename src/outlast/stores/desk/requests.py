"""Requests that may be repeated: one history row holds the first answer.

In: a connection inside a writing transaction. Out: what is known of a request. The unique index
over actor and request decides who is first.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Table, delete, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.tables.instant import SECONDS, clock_plus


class Request(NamedTuple):
    """`answer` None: it is under way, or whoever ran it is dead. `is_stale`: too old to count."""

    digest: str | None
    answer: Any
    at: datetime
    is_stale: bool


async def find(
    connection: AsyncConnection, history: Table, actor: str, request_id: str, kept_seconds: float
) -> Request | None:
    """What is known of this request."""
    edge = clock_plus(literal(-kept_seconds, SECONDS))
    statement = select(history.c.detail, history.c.at, (history.c.at < edge).label("old")).where(
        *_this(history, actor, request_id)
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    detail = row.detail if isinstance(row.detail, Mapping) else {}
    return Request(detail.get("digest"), detail.get("answer"), row.at, bool(row.old))


async def begin(
    connection: AsyncConnection, history: Table, actor: str, request_id: str, kind: str, digest: str
) -> None:
    """Claim the request; a second one fails with the unique index."""
    await connection.execute(
        insert(history).values(
            actor=actor,
            request_id=request_id,
            kind=kind,
            detail={"digest": digest, "answer": None},
        )
    )


async def finish(
    connection: AsyncConnection,
    history: Table,
    actor: str,
    request_id: str,
    digest: str,
    answer: Mapping[str, Any],
) -> None:
    """Keep the first answer."""
    await connection.execute(
        update(history)
        .where(*_this(history, actor, request_id))
        .values(detail={"digest": digest, "answer": dict(answer)})
    )


async def forget(connection: AsyncConnection, history: Table, actor: str, request_id: str) -> None:
    """A request that failed may be made again."""
    await connection.execute(delete(history).where(*_this(history, actor, request_id)))


def _this(history: Table, actor: str, request_id: str) -> tuple[Any, ...]:
    return (
        history.c.dlq_id.is_(None),
        history.c.actor == actor,
        history.c.request_id == request_id,
    )
