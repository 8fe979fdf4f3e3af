"""Queues and subscribers that are known: a worker, a live row, a dead letter or the history names
them. However large the tables are, each queue costs a few steps into an index.

In: a connection. Out: values, bounded; what is bounded says so. Never writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Table, Text, cast, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.query import LISTED_STATES
from outlast.model.replay import WorkerSeen
from outlast.stores.desk.conditions import in_states
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import clock

QUEUES_MAX = 1000
COUNT_MAX = 10_000
"""Depths are exact up to here."""

NEWEST_LETTERS = 100
"""Of each queue: whose subscribers are told."""

NEWEST_ACTS = 1000
"""Of the history: whose queues are told."""


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """One queue. `oldest_due_at`: since when a message waits for a worker; None: none is due."""

    queue: str
    depth: int
    depth_at_least: bool
    dead_letters: int
    dead_letters_at_least: bool
    oldest_due_at: datetime | None
    subscribers: tuple[str, ...]


class KnownQueues(NamedTuple):
    """The names by who names them; `more`: there are others."""

    by_source: Mapping[str, frozenset[str]]
    more: bool

    @property
    def names(self) -> list[str]:
        return sorted(frozenset().union(*self.by_source.values()))


async def known_queues(
    connection: AsyncConnection, tables: DeskTables, workers: Sequence[WorkerSeen]
) -> KnownQueues:
    """Every queue that something names."""
    found: dict[str, frozenset[str]] = {
        "worker": frozenset(
            queue for worker in workers for queue in {*worker.queues, *served(worker)}
        )
    }
    live: set[str] = set()
    if tables.outbox is not None:
        for where in _halves(tables.outbox):
            live |= await _distinct(connection, tables.outbox, where)
    found["outbox"] = frozenset(live)
    found["dlq"] = frozenset(await _distinct(connection, tables.dlq, None))
    found["history"] = frozenset(await _told(connection, tables))
    return KnownQueues(found, any(len(names) > QUEUES_MAX for names in found.values()))


async def numbers_of(connection: AsyncConnection, tables: DeskTables, queue: str) -> QueueNumbers:
    """Depth, dead letters and who handled them."""
    dlq, outbox = tables.dlq, tables.outbox
    dead = select(dlq.c.id).where(dlq.c.queue == queue, *in_states(dlq, LISTED_STATES))
    counts = [_bounded(dead).label("dead")]
    if outbox is not None:
        halves = [
            select(outbox.c.id).where(half, outbox.c.queue == queue) for half in _halves(outbox)
        ]
        waiting = (
            select(outbox.c.next_attempt_at)
            .where(
                outbox.c.acquired_token.is_(None),
                outbox.c.queue == queue,
                outbox.c.next_attempt_at <= clock(),
            )
            .order_by(outbox.c.next_attempt_at)
            .limit(1)
        )
        counts += [_bounded(halves[0]).label("free"), _bounded(halves[1]).label("held")]
        counts.append(waiting.scalar_subquery().label("due"))
    row = (await connection.execute(select(*counts))).one()
    depth = 0 if outbox is None else int(row.free) + int(row.held)
    return QueueNumbers(
        queue,
        min(depth, COUNT_MAX),
        depth > COUNT_MAX,
        min(int(row.dead), COUNT_MAX),
        int(row.dead) > COUNT_MAX,
        None if outbox is None else row.due,
        await _subscribers(connection, dlq, queue),
    )


async def is_named(connection: AsyncConnection, tables: DeskTables, name: str) -> bool:
    """Whether a row or a letter has this queue, or a letter this subscriber."""
    asked: list[tuple[Table, ColumnElement[bool]]] = [(tables.dlq, tables.dlq.c.queue == name)]
    if tables.outbox is not None:
        queue = tables.outbox.c.queue
        asked += [(tables.outbox, half & (queue == name)) for half in _halves(tables.outbox)]
    if "subscriber" in tables.dlq.c:
        asked.append((tables.dlq, tables.dlq.c.subscriber == name))
    for table, where in asked:
        statement = select(literal(1)).select_from(table).where(where).limit(1)
        if (await connection.execute(statement)).first() is not None:
            return True
    return False


def served(worker: WorkerSeen) -> Mapping[str, tuple[str, ...]]:
    """The subscribers that a worker reports, by queue; what cannot be read is passed over."""
    told = worker.report.get("subscribers")
    found: dict[str, list[str]] = {}
    for one in told if isinstance(told, list) else ():
        name, queues = (one.get("name"), one.get("queues")) if isinstance(one, Mapping) else (0, 0)
        if isinstance(name, str) and isinstance(queues, list):
            for queue in queues:
                if isinstance(queue, str):
                    found.setdefault(queue, []).append(name)
    return {queue: tuple(names) for queue, names in found.items()}


def _halves(outbox: Table) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    # each of the indexes over queues holds the rows of one of these conditions
    return outbox.c.acquired_token.is_(None), outbox.c.acquired_token.is_not(None)


def _bounded(statement: Select[Any]) -> ColumnElement[Any]:
    some = statement.limit(COUNT_MAX + 1).subquery()
    return select(func.count()).select_from(some).scalar_subquery()


async def _distinct(
    connection: AsyncConnection, table: Table, where: ColumnElement[bool] | None
) -> set[str]:
    """The queues of a table, from one to the next along an index."""
    column = table.c.queue
    one = select(column).order_by(column).limit(1)
    if where is not None:
        one = one.where(where)
    walk = select(one.scalar_subquery().label("queue")).cte("walk", recursive=True)
    following = one.where(column > walk.c.queue).correlate(walk).scalar_subquery()
    walk = walk.union_all(select(following).where(walk.c.queue.is_not(None)))
    statement = select(walk.c.queue).where(walk.c.queue.is_not(None)).limit(QUEUES_MAX + 1)
    return set((await connection.execute(statement)).scalars())


async def _told(connection: AsyncConnection, tables: DeskTables) -> set[str]:
    if tables.history is None:
        return set()
    history = tables.history
    # the row of a request holds a whole answer, which names no queue and may be large
    is_act = or_(history.c.dlq_id.is_not(None), history.c.request_id.is_(None))
    queue = cast(history.c.detail["queue"].as_string(), Text)
    newest = select(queue).where(is_act).order_by(history.c.id.desc()).limit(NEWEST_ACTS)
    return {name for name in (await connection.execute(newest)).scalars() if name is not None}


async def _subscribers(connection: AsyncConnection, dlq: Table, queue: str) -> tuple[str, ...]:
    if "subscriber" not in dlq.c:
        return ()
    newest = (
        select(dlq.c.subscriber)
        .where(dlq.c.queue == queue)
        .order_by(dlq.c.failed_at.desc())
        .limit(NEWEST_LETTERS)
        .subquery()
    )
    statement = select(newest.c.subscriber).where(newest.c.subscriber.is_not(None)).distinct()
    return tuple(sorted((await connection.execute(statement)).scalars()))
