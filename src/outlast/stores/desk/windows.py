"""How a list looks: at the newest letters that an index finds, a stated number of them.

In: a connection and a selection. Out: places, and whether there was more to look at. So a page of
a large table costs what a page of a small one does.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Subquery, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.stores.desk.conditions import columns_of
from outlast.stores.desk.selection import (
    Place,
    Selection,
    Sized,
    bites,
    matching_ids,
    versions_of,
)

LOOK_MAX = 10_000
"""How many letters a list looks at to find words that no index knows."""

_TOLD_MAX = 100_000


class Scanned(NamedTuple):
    """What a look into headers and bodies found, newest first. `edge`: where it had to stop."""

    places: list[Place]
    edge: Place | None


def window(
    chosen: Selection, after: Place | None, most: int, columns: Sequence[ColumnElement[Any]] = ()
) -> Subquery:
    """The newest letters behind a place, `most` of them, before the far words are asked."""
    dlq = chosen.tables.dlq
    order = chosen.latest if chosen.order is None else chosen.order
    asked = {column.key: column for column in (*columns, *columns_of(chosen.far, dlq))}
    if chosen.far_states is not None:
        asked["state"] = dlq.c.state
    asked.pop("id", None)
    times = (order.label("at"), chosen.latest.label("latest"))
    statement = select(*times, dlq.c.id, *asked.values()).where(*chosen.near)
    if after is not None:
        statement = statement.where(chosen.after(after))
    return chosen.newest_first(statement).limit(most).subquery("looked")


async def found_in(
    connection: AsyncConnection, looked: Subquery, chosen: Selection, *columns: Any
) -> Select[Any]:
    """What the far words leave of a window, in its order."""
    versions = await versions_of(connection, chosen.far, looked.c.get("consumer_version"))
    statement = select(*(columns or (looked,))).where(*chosen.far_where(looked, versions))
    if chosen.order is None:
        return statement.order_by(looked.c.id.desc())
    return statement.order_by(looked.c.at.desc(), looked.c.id.desc())


async def edge(
    connection: AsyncConnection, chosen: Selection, after: Place | None, most: int
) -> Place | None:
    """The last letter of a window that has others behind it; None: it holds all there is."""
    looked = window(chosen, after, most + 1)
    if await _count(connection, looked) <= most:
        return None
    order = () if chosen.order is None else (looked.c.at,)
    oldest = select(looked.c.at, looked.c.id).order_by(*order, looked.c.id)
    row = (await connection.execute(oldest.offset(1).limit(1))).one()
    return Place(row.at, row.id)


async def looked_of(connection: AsyncConnection, chosen: Selection) -> int | None:
    """How many letters there were to look at; None: more than anybody counts."""
    looked = window(chosen, None, _TOLD_MAX + 1)
    number = await _count(connection, looked)
    return number if number <= _TOLD_MAX else None


class Looked(NamedTuple):
    """What was looked at, if not all; `of` None: more than anybody counts."""

    at: int
    of: int | None


async def scan(
    connection: AsyncConnection, chosen: Selection, after: Place | None = None
) -> Scanned:
    """Read headers and bodies of the newest letters, one by one."""
    size = func.length(chosen.tables.dlq.c.payload).label("size")
    looked = window(chosen, after, LOOK_MAX, (size,))
    found = await found_in(connection, looked, chosen, looked.c.id, looked.c.size, looked.c.at)
    rows = (await connection.execute(found)).all()
    end = await edge(connection, chosen, after, LOOK_MAX)
    matching: set[int] = set()
    for some in bites([Sized(row.id, row.size) for row in rows]):
        matching |= await matching_ids(connection, chosen, [letter.id for letter in some])
    return Scanned([Place(row.at, row.id) for row in rows if row.id in matching], end)


async def _count(connection: AsyncConnection, looked: Subquery) -> int:
    statement = select(func.count()).select_from(looked)
    return int((await connection.execute(statement)).scalar_one())
