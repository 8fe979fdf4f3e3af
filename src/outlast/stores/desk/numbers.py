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
    and_,
    case,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy import literal_column as constant
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.query import OPEN
from outlast.stores.desk.conditions import Where, in_states
from outlast.stores.desk.selection import Selection, scan
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import SECONDS, Instant, clock, clock_plus

TOP_CAUSES = 20
NAMES_MAX = 20
"""Queues, subscribers and versions that one group tells."""

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
    """`now` is the database's clock; ages are counted from it."""

    now: datetime
    depth: int
    oldest_at: datetime | None
    queues: tuple[QueueDepth, ...]
    states: dict[str, int]
    causes: tuple[tuple[str | None, int], ...]


async def narrowed(connection: AsyncConnection, chosen: Selection) -> tuple[Where, ...]:
    """The conditions of a selection; what needs the bytes becomes a list of ids."""
    if chosen.matches is None:
        return chosen.where
    found = await scan(connection, chosen)
    return (chosen.tables.dlq.c.id.in_([place.id for place in found.places]),)


async def groups(
    connection: AsyncConnection, chosen: Selection, limit: int
) -> tuple[tuple[Group, ...], bool]:
    """The largest groups, and whether there are more."""
    tables, where = chosen.tables, await narrowed(connection, chosen)
    dlq = tables.dlq
    fingerprint = _or_null(tables, "fingerprint")
    first = func.coalesce(_or_null(tables, "first_failure_at", Instant()), dlq.c.failed_at)
    number = func.count()
    statement = (
        select(
            fingerprint.label("fingerprint"),
            number.label("count"),
            func.min(first, type_=Instant()).label("first_seen"),
            func.max(chosen.latest, type_=Instant()).label("last_seen"),
            func.max(_or_null(tables, "failure_category")).label("category"),
            func.max(_or_null(tables, "error_type")).label("error_type"),
            func.max(dlq.c.id).label("example_id"),
            *(
                _distinct(tables, name).label(label)
                for name, label in (
                    ("queue", "queues"),
                    ("subscriber", "subscribers"),
                    ("consumer_version", "versions"),
                )
            ),
        )
        .where(*where)
        .group_by(fingerprint)
        .order_by(number.desc(), func.max(dlq.c.id).desc())
        .limit(limit + 1)
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
    return tuple(_group(row) for row in rows[:limit]), len(rows) > limit


def _group(row: Any) -> Group:
    return Group(
        row.fingerprint,
        row.count,
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


def _distinct(tables: DeskTables, name: str) -> ColumnElement[Any]:
    if name not in tables.dlq.c:
        return null()
    column = tables.dlq.c[name].distinct()
    if tables.is_postgres:
        return func.array_agg(column)
    return func.json_group_array(column, type_=String())


def _or_null(tables: DeskTables, name: str, kind: Any = None) -> ColumnElement[Any]:
    if name in tables.dlq.c:
        return tables.dlq.c[name]
    return cast(null(), kind or String())


async def stats(connection: AsyncConnection, chosen: Selection, states: Sequence[str]) -> Stats:
    """`chosen` takes letters in any state; `states` says which of them are counted as depth."""
    tables, where = chosen.tables, await narrowed(connection, chosen)
    dlq = tables.dlq
    is_listed = and_(true(), *in_states(dlq, states))
    counted = func.coalesce(func.sum(case((is_listed, 1), else_=0)), 0)
    oldest = func.min(case((is_listed, chosen.latest)), type_=Instant())
    state = dlq.c.state if "state" in dlq.c else cast(literal(OPEN), String())
    category = _or_null(tables, "failure_category")
    fingerprint = _or_null(tables, "fingerprint")
    nothing = literal(0)
    queues = (
        select(
            constant("'queue'").label("kind"),
            dlq.c.queue.label("name"),
            category.label("category"),
            counted.label("number"),
            oldest.label("oldest"),
            _arrived(tables, HOUR).label("hour"),
            _arrived(tables, DAY).label("day"),
            clock().label("now"),
        )
        .where(*where)
        .group_by(dlq.c.queue, category)
    )
    rest = [cast(null(), Instant()), nothing, nothing, clock()]
    no_category = cast(null(), String())
    by_state: Any = (
        select(constant("'state'"), state, no_category, func.count(), *rest)
        .where(*where)
        .group_by(state)
    )
    top = (
        select(fingerprint.label("fingerprint"), func.count().label("number"))
        .where(*where, is_listed)
        .group_by(fingerprint)
        .order_by(func.count().desc(), fingerprint)
        .limit(TOP_CAUSES)
        .subquery("top")
    )
    causes: Any = select(constant("'cause'"), top.c.fingerprint, no_category, top.c.number, *rest)
    at: Any = select(constant("'now'"), cast(null(), String()), no_category, nothing, *rest)
    rows = (await connection.execute(union_all(at, queues, by_state, causes))).all()
    return _stats(rows)


def _arrived(tables: DeskTables, since: timedelta) -> ColumnElement[Any]:
    dlq = tables.dlq
    edge = clock_plus(literal(-since.total_seconds(), SECONDS))
    again = _or_null(tables, "last_failure_at", Instant())
    recent = or_(dlq.c.failed_at >= edge, again >= edge)
    return func.coalesce(func.sum(case((recent, 1), else_=0)), 0)


def _stats(rows: Sequence[Any]) -> Stats:
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
    )
