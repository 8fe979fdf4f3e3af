"""A query made ready for one table: its conditions, its order, and what must be read to decide.

In: a connection, the tables, a query. Out: a `Selection`. Walks are never
bounded; lists are (`windows`).
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Select, func, literal, null, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.query import LISTED_STATES, REPLAYING, STATES, Query, Word
from outlast.policy.versions import matching_versions
from outlast.stores.desk.conditions import (
    Where,
    conditions,
    in_states,
    latest_failure,
    unrecorded,
)
from outlast.stores.desk.scanning import Matches, asks_bodies, matcher
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import Instant

_STEP = 200
_READ_BYTES = 16 * 1024 * 1024
_VERSIONS_MAX = 5000


class Place(NamedTuple):
    """Where a letter stands in the order of a list: newest failure first."""

    at: datetime
    id: int


@dataclass(frozen=True, slots=True)
class Selection:
    """`matches` is None when the columns tell all; `reads_bodies`: it asks the payload, too.
    `unrecorded`: words nothing can answer.

    For lists, `near` is what an index finds, `far` the words that letter by letter must be asked.
    """

    tables: DeskTables
    where: tuple[Where, ...]
    latest: ColumnElement[Any]
    matches: Matches | None
    reads_bodies: bool
    unrecorded: tuple[str, ...]
    near: tuple[Where, ...]
    far: tuple[Word, ...]
    far_states: tuple[str, ...] | None
    order: ColumnElement[Any] | None
    """What comes before the id in the order of a list; None: hidden letters go by id alone."""

    @property
    def is_looked_through(self) -> bool:
        """Whether a list must pass letters to find those that match."""
        return bool(self.far) or self.far_states is not None

    def after(self, place: Place) -> Where:
        """The letters that come later in the list."""
        key = self.tables.dlq.c.id
        if self.order is None:
            return key < place.id
        found: Where = tuple_(self.order, key) < tuple_(
            literal(place.at, Instant()), literal(place.id)
        )
        return found

    def newest_first(self, statement: Select[Any]) -> Select[Any]:
        """The statement in the order of a list."""
        key = self.tables.dlq.c.id.desc()
        if self.order is None:
            return statement.order_by(key)
        return statement.order_by(self.order.desc(), key)

    def far_where(
        self, letters: FromClause, versions: Mapping[Word, tuple[str, ...]]
    ) -> list[Where]:
        """The words that no index serves, over letters that were found."""
        states = [] if self.far_states is None else in_states(letters, self.far_states)
        return [*states, *conditions(self.far, letters, letters.c.latest, versions)]


async def selection(
    connection: AsyncConnection,
    tables: DeskTables,
    query: Query,
    states: tuple[str, ...] | None = None,
    *,
    is_list: bool = False,
) -> Selection:
    """`states` takes the place of those the query asks for. Lists ask for versions as they look."""
    dlq = tables.dlq
    asked = query.states if states is None else states
    wanted = in_states(dlq, asked)
    # no index helps with hidden letters, so there is nothing to find out for them
    recorded = set(asked) <= set(LISTED_STATES) and await _all_have(
        connection, tables, "last_failure_at", LISTED_STATES
    )
    latest = latest_failure(dlq, always_recorded=recorded)
    versions = {} if is_list else await _versions(connection, tables, query)
    order, near_states, far_states = await _order(connection, tables, asked, latest)
    near, far = _near_and_far(query, is_listed=near_states == asked and order is latest)
    return Selection(
        tables,
        (*wanted, *conditions(query.words, dlq, latest, versions)),
        latest,
        matcher(query),
        asks_bodies(query),
        unrecorded(query, dlq),
        (*in_states(dlq, near_states), *conditions(near, dlq, latest, versions)),
        far,
        far_states,
        order,
    )


async def _order(
    connection: AsyncConnection,
    tables: DeskTables,
    states: tuple[str, ...],
    latest: ColumnElement[Any],
) -> tuple[ColumnElement[Any] | None, tuple[str, ...], tuple[str, ...] | None]:
    """What a list goes by, the states that its index finds, and those it does not."""
    if not tables.records_states or set(states) <= set(LISTED_STATES):
        return latest, states, None
    if set(states) == {REPLAYING} and await _all_have(
        connection, tables, "state_changed_at", states
    ):
        return tables.dlq.c.state_changed_at, states, None
    return None, STATES, states


def _near_and_far(query: Query, *, is_listed: bool) -> tuple[tuple[Word, ...], tuple[Word, ...]]:
    """One index at a time: the word that narrows most, and times where the list goes by them."""
    leaders = ("id", "message", "group", "queue") if is_listed else ("id", "message")
    simple = {word.name: word for word in query.words if _is_simple(word)}
    leader = next((simple[name] for name in leaders if name in simple), None)
    times = {word for word in simple.values() if is_listed and word.name in {"since", "until"}}
    near = tuple(word for word in query.words if word is leader or word in times)
    others = ("state", "header", "body")
    far = tuple(word for word in query.words if word not in near and word.name not in others)
    return near, far


def _is_simple(word: Word) -> bool:
    return not word.negated and len(word.alternatives) == 1


async def _all_have(
    connection: AsyncConnection, tables: DeskTables, time: str, states: Iterable[str]
) -> bool:
    """Whether every letter in these states has this time; an index answers."""
    dlq = tables.dlq
    if time not in dlq.c:
        return False
    lacking = select(literal(1)).where(*in_states(dlq, states), dlq.c[time].is_(None))
    return (await connection.execute(lacking.limit(1))).first() is None


async def _versions(
    connection: AsyncConnection, tables: DeskTables, query: Query
) -> dict[Word, tuple[str, ...]]:
    column = tables.dlq.c.get("consumer_version")
    return await versions_of(connection, query.words, column)


async def versions_of(
    connection: AsyncConnection, words: Iterable[Word], column: ColumnElement[Any] | None
) -> dict[Word, tuple[str, ...]]:
    """What a version word takes, of the distinct values of a column."""
    asked = [word for word in words if word.name == "version"]
    if not asked or column is None:
        return {}
    if all(c.operator == "=" for word in asked for c in word.alternatives):
        return {word: tuple(str(c.value) for c in word.alternatives) for word in asked}
    distinct = select(column).where(column.is_not(None)).distinct().limit(_VERSIONS_MAX)
    found = list((await connection.execute(distinct)).scalars())
    return {word: matching_versions(word.alternatives, found) for word in asked}


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
    """The next letters of an action, by id, and where to go on; None at the end. Never bounded.

    `most_bytes`: of the messages that were found, edited ones included.
    """
    dlq = chosen.tables.dlq
    statement = (
        select(dlq.c.id, _size(chosen.tables).label("size"))
        .where(*within(chosen, boundary), dlq.c.id > after)
        .order_by(dlq.c.id)
        .limit(most)
    )
    rows = (await connection.execute(statement)).all()
    found: list[int] = []
    size = 0
    for some in bites([Sized(*row) for row in rows]):
        matching = await matching_ids(connection, chosen, [one.id for one in some])
        for one in some:
            if one.id not in matching:
                continue
            if most_bytes is not None and found and size + one.size > most_bytes:
                return found, found[-1]
            found.append(one.id)
            size += one.size
    return found, rows[-1].id if len(rows) == most else None


def _size(tables: DeskTables) -> ColumnElement[int]:
    size = func.length(tables.dlq.c.payload)
    if tables.revision is None:
        return size
    revision = tables.revision
    largest = select(func.max(func.length(revision.c.payload))).where(
        revision.c.dlq_id == tables.dlq.c.id
    )
    return size + func.coalesce(largest.scalar_subquery(), 0)


class Sized(NamedTuple):
    """A letter or revision that may have to be read, and how many bytes that would be."""

    id: int
    size: int


def bites(letters: Sequence[Sized]) -> Iterator[list[Sized]]:
    """As many at once as may be in memory together; a very large one comes alone."""
    some: list[Sized] = []
    size = 0
    for letter in letters:
        if some and (len(some) == _STEP or size + letter.size > _READ_BYTES):
            yield some
            some, size = [], 0
        some.append(letter)
        size += letter.size
    if some:
        yield some


async def matching_ids(
    connection: AsyncConnection, chosen: Selection, ids: Sequence[int]
) -> set[int]:
    """Those that the header and body words take. Ends the transaction of whoever only reads."""
    if chosen.matches is None:
        return set(ids)
    dlq = chosen.tables.dlq
    payload = dlq.c.payload if chosen.reads_bodies else null().label("payload")
    statement = select(dlq.c.id, dlq.c.headers, payload).where(dlq.c.id.in_(ids))
    rows = (await connection.execute(statement)).all()
    # a look at very many bodies takes a while: it must not hold back the cleaning of tables
    await connection.rollback()
    return {row.id for row in rows if chosen.matches(row.headers, row.payload)}


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
    return sum([len(ids) async for ids in walk_all(connection, chosen, boundary)])


async def walk_all(
    connection: AsyncConnection, chosen: Selection, boundary: Boundary
) -> AsyncIterator[list[int]]:
    """Every letter of an action, in chunks."""
    after: int | None = 0
    while after is not None:
        found, after = await walk(connection, chosen, boundary, after, _STEP)
        yield found
