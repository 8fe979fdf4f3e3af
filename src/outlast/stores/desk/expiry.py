"""Letters that were kept long enough: found a bounded number at a time, deleted without a trace.

In: a connection, and the states that may end so. Out: the letters that are gone. Letters in other
states stay, whatever their time says: nobody may lose an open one.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Table, select, tuple_
from sqlalchemy import literal as bound
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.letter_view import LetterView
from outlast.stores.desk.reading import light
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import Instant, now

LOOK_MAX = 5000
"""Letters that one pass looks at, most of which may be such that are kept."""


class DuePlace(NamedTuple):
    """Where a pass stopped."""

    at: datetime
    id: int


class Due(NamedTuple):
    """The letters that a pass found, and where the next one goes on; None: at the beginning."""

    ids: list[int]
    next: DuePlace | None


async def due(
    connection: AsyncConnection,
    tables: DeskTables,
    after: DuePlace | None,
    most: int,
    states: Sequence[str],
) -> Due:
    """The next letters in these states whose time is over, the oldest first."""
    dlq = tables.dlq
    statement = (
        select(dlq.c.purge_after, dlq.c.id, dlq.c.state)
        .where(*_is_over(dlq))
        .order_by(dlq.c.purge_after, dlq.c.id)
        .limit(LOOK_MAX)
    )
    if after is not None:
        place = tuple_(dlq.c.purge_after, dlq.c.id)
        statement = statement.where(place > tuple_(bound(after.at, Instant()), bound(after.id)))
    rows = (await connection.execute(statement)).all()
    ids: list[int] = []
    for row in rows:
        if row.state in states:
            ids.append(row.id)
            if len(ids) == most:
                return Due(ids, DuePlace(row.purge_after, row.id))
    last = rows[-1] if len(rows) == LOOK_MAX else None
    return Due(ids, DuePlace(last.purge_after, last.id) if last else None)


async def take_due(
    connection: AsyncConnection, tables: DeskTables, ids: Sequence[int], states: Sequence[str]
) -> list[LetterView]:
    """Those of them that are still due and that nobody holds, locked; without their bodies."""
    dlq = tables.dlq
    statement = (
        select(*light(tables))
        .where(dlq.c.id.in_(ids), dlq.c.state.in_(states), *_is_over(dlq))
        .order_by(dlq.c.id)
    )
    if tables.is_postgres:
        statement = statement.with_for_update(skip_locked=True)
    rows = await connection.execute(statement)
    return [LetterView.of(dict(row)) for row in rows.mappings()]


def _is_over(dlq: Table) -> tuple[ColumnElement[bool], ...]:
    # the transaction's clock: one that moves within the statement would read the whole index
    return dlq.c.purge_after.is_not(None), dlq.c.purge_after <= now()
