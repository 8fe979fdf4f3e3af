"""A query made ready for one table: its conditions, its order, and what must be read to decide.

In: a connection, the tables, a query. Out: a `Selection`. Lists are bounded and say so; walks are
not.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, func, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.query import LISTED_STATES, Query, Word
from outlast.policy.versions import matching_versions
from outlast.stores.desk.conditions import (
    Where,
    conditions,
    in_states,
    latest_failure,
    unrecorded,
)
from outlast.stores.desk.scanning import Matches, matcher
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import Instant

SCAN_MAX = 10_000
"""How many letters a list reads to find header and body words."""

_SCAN_STEP = 200
_VERSIONS_MAX = 5000


class Place(NamedTuple):
    """Where a letter stands in the order of a list: newest failure first."""

    at: datetime
    id: int


@dataclass(frozen=True, slots=True)
class Selection:
    """`matches` is None when the columns tell all. `unrecorded`: words nothing can answer."""

    tables: DeskTables
    where: tuple[Where, ...]
    latest: ColumnElement[Any]
    matches: Matches | None
    unrecorded: tuple[str, ...]

    def after(self, place: Place) -> Where:
        """The letters that come later in the list."""
        order = tuple_(self.latest, self.tables.dlq.c.id)
        found: Where = order < tuple_(literal(place.at, Instant()), literal(place.id))
        return found

    def newest_first(self, statement: Select[Any]) -> Select[Any]:
        """The statement in the order of a list."""
        return statement.order_by(self.latest.desc(), self.tables.dlq.c.id.desc())


async def selection(
    connection: AsyncConnection,
    tables: DeskTables,
    query: Query,
    states: tuple[str, ...] | None = None,
) -> Selection:
    """`states` takes the place of those the query asks for."""
    dlq = tables.dlq
    asked = query.states if states is None else states
    wanted = in_states(dlq, asked)
    # no index helps with hidden letters, so there is nothing to find out for them
    recorded = set(asked) <= set(LISTED_STATES) and await _always_recorded(connection, tables)
    latest = latest_failure(dlq, always_recorded=recorded)
    versions = await _versions(connection, tables, query)
    return Selection(
        tables,
        (*wanted, *conditions(query, dlq, latest, versions)),
        latest,
        matcher(query),
        unrecorded(query, dlq),
    )


async def _always_recorded(connection: AsyncConnection, tables: DeskTables) -> bool:
    """Whether every listed letter has its last failure; an index answers."""
    dlq = tables.dlq
    if "last_failure_at" not in dlq.c:
        return False
    lacking = select(literal(1)).where(
        *in_states(dlq, LISTED_STATES), dlq.c.last_failure_at.is_(None)
    )
    return (await connection.execute(lacking.limit(1))).first() is None


async def _versions(
    connection: AsyncConnection, tables: DeskTables, query: Query
) -> dict[Word, tuple[str, ...]]:
    words = [word for word in query.words if word.name == "version"]
    column = tables.dlq.c.get("consumer_version")
    if not words or column is None:
        return {}
    if all(c.operator == "=" for word in words for c in word.alternatives):
        return {word: tuple(str(c.value) for c in word.alternatives) for word in words}
    distinct = select(column).where(column.is_not(None)).distinct().limit(_VERSIONS_MAX)
    found = list((await connection.execute(distinct)).scalars())
    return {word: matching_versions(word.alternatives, found) for word in words}


class Scanned(NamedTuple):
    """What a bounded look found, newest first."""

    places: list[Place]
    looked_at: int
    is_bounded: bool


async def scan(connection: AsyncConnection, chosen: Selection) -> Scanned:
    """Test the newest letters one by one, for a list."""
    assert chosen.matches is not None, "only queries that need the bytes come here"
    dlq = chosen.tables.dlq
    columns = select(chosen.latest.label("at"), dlq.c.id, dlq.c.headers, dlq.c.payload)
    places: list[Place] = []
    looked_at, last = 0, None
    while looked_at < SCAN_MAX:
        statement = columns.where(*chosen.where)
        if last is not None:
            statement = statement.where(chosen.after(last))
        step = min(_SCAN_STEP, SCAN_MAX - looked_at)
        rows = (await connection.execute(chosen.newest_first(statement).limit(step))).all()
        for row in rows:
            last = Place(row.at, row.id)
            if chosen.matches(row.headers, row.payload):
                places.append(last)
        looked_at += len(rows)
        if len(rows) < step:
            return Scanned(places, looked_at, is_bounded=False)
    return Scanned(places, looked_at, is_bounded=True)


class Boundary(NamedTuple):
    """What an action on many takes: letters up to this id that have not moved since."""

    id: int
    at: datetime


async def walk(
    connection: AsyncConnection,
    chosen: Selection,
    boundary: Boundary,
    after: int,
    most: int,
    most_bytes: int | None = None,
) -> tuple[list[int], int | None]:
    """The next letters of an action, by id, and where to go on; None at the end. Never bounded."""
    dlq = chosen.tables.dlq
    columns: list[ColumnElement[Any]] = [dlq.c.id, func.length(dlq.c.payload).label("size")]
    if chosen.matches is not None:
        columns += [dlq.c.headers, dlq.c.payload]
    statement = (
        select(*columns)
        .where(*within(chosen, boundary), dlq.c.id > after)
        .order_by(dlq.c.id)
        .limit(most)
    )
    rows = (await connection.execute(statement)).all()
    found: list[int] = []
    size = 0
    for row in rows:
        if most_bytes is not None and found and size + row.size > most_bytes:
            return found, found[-1]
        if _matches(chosen, row):
            found.append(row.id)
            size += row.size
    return found, rows[-1].id if len(rows) == most else None


def _matches(chosen: Selection, row: Row[Any]) -> bool:
    return chosen.matches is None or chosen.matches(row.headers, row.payload)


def within(chosen: Selection, boundary: Boundary) -> tuple[Where, ...]:
    """The letters of an action: counted, and not moved since."""
    dlq = chosen.tables.dlq
    found = [*chosen.where, dlq.c.id <= boundary.id]
    if "state_changed_at" in dlq.c:
        unmoved = dlq.c.state_changed_at
        found.append(unmoved.is_(None) | (unmoved <= boundary.at))
    return tuple(found)


async def counted(connection: AsyncConnection, chosen: Selection, boundary: Boundary) -> int:
    """How many letters an action will take, exactly."""
    if chosen.matches is None:
        total = select(func.count()).select_from(chosen.tables.dlq)
        return int((await connection.execute(total.where(*within(chosen, boundary)))).scalar_one())
    return len([i async for ids in walk_all(connection, chosen, boundary) for i in ids])


async def walk_all(
    connection: AsyncConnection, chosen: Selection, boundary: Boundary
) -> AsyncIterator[list[int]]:
    """Every letter of an action, in chunks."""
    after: int | None = 0
    while after is not None:
        found, after = await walk(connection, chosen, boundary, after, _SCAN_STEP)
        yield found
