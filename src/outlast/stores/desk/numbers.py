"""Depth, ages, arrivals and causes: one statement each, so that no two surfaces can differ.

In: a connection and a selection. Out: values. Never writes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    String,
    case,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy import literal_column as constant
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.query import OPEN
from outlast.stores.desk.conditions import Where
from outlast.stores.desk.selection import Selection
from outlast.stores.desk.shape import DeskTables
from outlast.stores.desk.windows import LOOK_MAX, Looked, looked_of, scan
from outlast.tables.instant import SECONDS, Instant, clock, clock_plus

TOP_CAUSES = 20
NAMES_MAX = 20
"""Queues, subscribers and versions that one group tells."""

_NAMED = {"queues": "queue", "subscribers": "subscriber", "versions": "consumer_version"}

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Group:
    """Letters with one fingerprint; None: it is not recorded."""

    fingerprint: str | None
    count: int
    first_seen: datetime
    last_seen: datetime
    failure_category: str | None
    error_type: str | None
    example: str | None
    example_id: int
    queues: tuple[str, ...]
    subscribers: tuple[str, ...]
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Letters of one queue and category. Arrivals count letters that left the list, too."""

    queue: str
    category: str | None
    depth: int
    oldest_at: datetime | None
    arrivals_hour: int
    arrivals_day: int


@dataclass(frozen=True, slots=True)
class Stats:
    """`now` is the database's clock; ages are counted from it. Exact, unless it was `looked`."""

    now: datetime
    depth: int
    oldest_at: datetime | None
    queues: tuple[QueueDepth, ...]
    states: dict[str, int]
    causes: tuple[tuple[str | None, int], ...]
    looked: Looked | None = None


async def _hash_only(connection: AsyncConnection, tables: DeskTables) -> None:
    """Few combinations exist of those that are possible; planners expect all, and would sort."""
    if tables.is_postgres:
        off = [func.set_config(name, "off", True) for name in ("enable_sort", "jit")]
        await connection.execute(select(*off))


async def narrowed(
    connection: AsyncConnection, chosen: Selection
) -> tuple[tuple[Where, ...], Looked | None]:
    """The conditions of a selection; what needs the bytes becomes a list of ids, of a look."""
    if chosen.matches is None:
        return chosen.where, None
    found = await scan(connection, chosen)
    where = (chosen.tables.dlq.c.id.in_([place.id for place in found.places]),)
    if found.edge is None:
        return where, None
    return where, Looked(LOOK_MAX, await looked_of(connection, chosen))


async def groups(
    connection: AsyncConnection, chosen: Selection, limit: int
) -> tuple[tuple[Group, ...], int, Looked | None]:
    """The largest groups, how many there are, and what was looked at, if not all."""
    tables, (where, looked) = chosen.tables, await narrowed(connection, chosen)
    await _hash_only(connection, tables)
    dlq = tables.dlq
    first = func.coalesce(_or_null(tables, "first_failure_at", Instant()), dlq.c.failed_at)
    names = {name: _or_null(tables, column) for name, column in _NAMED.items()}
    fingerprint = _or_null(tables, "fingerprint").label("fingerprint")
    # counted finely at first: distinct names of whole groups would sort every letter
    fine = (
        select(
            fingerprint,
            *(column.label(name) for name, column in names.items()),
            func.count().label("number"),
            func.min(first, type_=Instant()).label("first_seen"),
            func.max(chosen.latest, type_=Instant()).label("last_seen"),
            func.max(_or_null(tables, "failure_category")).label("category"),
            func.max(_or_null(tables, "error_type")).label("error_type"),
            func.max(dlq.c.id).label("example_id"),
        )
        .where(*where)
        .group_by(fingerprint, *names.values())
        .cte("fine")
        # planned by itself: it would be sorted for the distinct names outside
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    number = func.sum(fine.c.number)
    statement = (
        select(
            fine.c.fingerprint,
            number.label("count"),
            func.min(fine.c.first_seen, type_=Instant()).label("first_seen"),
            func.max(fine.c.last_seen, type_=Instant()).label("last_seen"),
            func.max(fine.c.category).label("category"),
            func.max(fine.c.error_type).label("error_type"),
            func.max(fine.c.example_id).label("example_id"),
            *(_distinct(tables, fine.c[name]).label(name) for name in names),
            func.count().over().label("groups"),
        )
        .group_by(fine.c.fingerprint)
        .order_by(number.desc(), func.max(fine.c.example_id).desc())
        .limit(limit)
        .subquery("g")
    )
    text = _or_null(tables, "error_message")
    example = func.coalesce(text, dlq.c.last_exception).label("example")
    # the example is read for the groups that are shown, not for every letter
    outer = (
        select(statement, example)
        .join(dlq, dlq.c.id == statement.c.example_id)
        .order_by(statement.c.count.desc(), statement.c.example_id.desc())
    )
    rows = (await connection.execute(outer)).all()
    return tuple(_group(row) for row in rows), rows[0].groups if rows else 0, looked


def _group(row: Any) -> Group:
    return Group(
        row.fingerprint,
        int(row.count),
        row.first_seen,
        row.last_seen,
        row.category,
        row.error_type,
        row.example,
        row.example_id,
        _names(row.queues),
        _names(row.subscribers),
        _names(row.versions),
    )


def _names(found: Any) -> tuple[str, ...]:
    names = json.loads(found) if isinstance(found, str) else found
    return tuple(sorted(name for name in names or () if name is not None)[:NAMES_MAX])


def _distinct(tables: DeskTables, column: ColumnElement[Any]) -> ColumnElement[Any]:
    if tables.is_postgres:
        return func.array_agg(column.distinct())
    return func.json_group_array(column.distinct(), type_=String())


def _or_null(tables: DeskTables, name: str, kind: Any = None) -> ColumnElement[Any]:
    if name in tables.dlq.c:
        return tables.dlq.c[name]
    return cast(null(), kind or String())


async def stats(connection: AsyncConnection, chosen: Selection, states: Sequence[str]) -> Stats:
    """`chosen` takes letters in any state; `states` says which of them are counted as depth."""
    tables, (where, looked) = chosen.tables, await narrowed(connection, chosen)
    await _hash_only(connection, tables)
    dlq = tables.dlq
    state = dlq.c.state if "state" in dlq.c else cast(literal(OPEN), String())
    keys = {
        "queue": dlq.c.queue,
        "category": _or_null(tables, "failure_category"),
        "state": state,
        "fingerprint": _or_null(tables, "fingerprint"),
    }
    # read once; everything that is told adds up from here
    fine = (
        select(
            *(column.label(name) for name, column in keys.items()),
            func.count().label("number"),
            func.min(chosen.latest, type_=Instant()).label("oldest"),
            _arrived(tables, HOUR).label("hour"),
            _arrived(tables, DAY).label("day"),
        )
        .where(*where)
        .group_by(*keys.values())
        .cte("fine")
    )
    is_listed = fine.c.state.in_(list(states))
    depth = func.coalesce(func.sum(case((is_listed, fine.c.number), else_=0)), 0)
    nothing, no_name, no_time = literal(0), cast(null(), String()), cast(null(), Instant())
    rest = [no_time, nothing, nothing, clock()]
    queues = select(
        constant("'queue'").label("kind"),
        fine.c.queue,
        fine.c.category,
        depth.label("number"),
        func.min(case((is_listed, fine.c.oldest)), type_=Instant()).label("oldest"),
        func.sum(fine.c.hour).label("hour"),
        func.sum(fine.c.day).label("day"),
        clock().label("now"),
    ).group_by(fine.c.queue, fine.c.category)
    by_state: Any = select(
        constant("'state'"), fine.c.state, no_name, func.sum(fine.c.number), *rest
    ).group_by(fine.c.state)
    top = (
        select(fine.c.fingerprint, func.sum(fine.c.number).label("number"))
        .where(is_listed)
        .group_by(fine.c.fingerprint)
        .order_by(func.sum(fine.c.number).desc(), fine.c.fingerprint)
        .limit(TOP_CAUSES)
        .subquery("top")
    )
    causes: Any = select(constant("'cause'"), top.c.fingerprint, no_name, top.c.number, *rest)
    at: Any = select(constant("'now'"), no_name, no_name, nothing, *rest)
    rows = (await connection.execute(union_all(at, queues, by_state, causes))).all()
    return _stats(rows, looked)


def _arrived(tables: DeskTables, since: timedelta) -> ColumnElement[Any]:
    dlq = tables.dlq
    edge = clock_plus(literal(-since.total_seconds(), SECONDS))
    again = _or_null(tables, "last_failure_at", Instant())
    recent = or_(dlq.c.failed_at >= edge, again >= edge)
    return func.coalesce(func.sum(case((recent, 1), else_=0)), 0)


def _stats(rows: Sequence[Any], looked: Looked | None) -> Stats:
    kinds: dict[str, list[Any]] = {"queue": [], "state": [], "cause": [], "now": []}
    for row in rows:
        kinds[row[0]].append(row)
    queues = tuple(
        QueueDepth(row[1], row[2], int(row[3]), row[4], int(row[5]), int(row[6]))
        for row in sorted(kinds["queue"], key=lambda row: (row[1], row[2] or ""))
    )
    ages = [queue.oldest_at for queue in queues if queue.oldest_at is not None]
    causes = sorted(((row[1], int(row[3])) for row in kinds["cause"]), key=lambda c: -c[1])
    return Stats(
        now=kinds["now"][0][7],
        depth=sum(queue.depth for queue in queues),
        oldest_at=min(ages, default=None),
        queues=queues,
        states={row[1]: int(row[3]) for row in kinds["state"]},
        causes=tuple(causes),
        looked=looked,
    )
