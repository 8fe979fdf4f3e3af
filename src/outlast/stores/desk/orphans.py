"""Letters on their way whose row is gone: what became of them, one transaction each.

In: a connection. Out: how each ended. A letter is moved only under its lock, and only when a look
taken under that lock finds no row: a worker that settles meanwhile does it itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Table,
    Text,
    cast,
    exists,
    null,
    select,
    tuple_,
    update,
)
from sqlalchemy import literal as bound
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model import headers as envelope
from outlast.model.dead_letter import COUNT_MAX
from outlast.model.letter_view import SUPERSEDED, UNCONFIRMED, LetterView
from outlast.model.query import OPEN, REPLAYING, RESOLVED
from outlast.stores.desk.changing import erase
from outlast.stores.desk.conditions import in_states
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.locking import locked
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import Instant, clock

PASS_MAX = 500

End = Literal["folded", "superseded", "unconfirmed"]

_NEWEST_FAILURE = (
    *("last_exception", "failure_reason", "deliveries_count"),
    *("error_type", "error_message", "stack_trace", "http_status", "fingerprint"),
    *("failure_category", "subscriber", "consumer_instance", "consumer_version"),
    "attempts_count",
)


class OrphanPlace(NamedTuple):
    """Where a pass stopped."""

    at: datetime
    id: int


class Pass(NamedTuple):
    """The letters that a pass found, and where the next one goes on."""

    ids: list[int]
    next: OrphanPlace | None


@dataclass(frozen=True, slots=True)
class Orphan:
    """How one letter ended; `other` is the letter it lives on as, or was folded from."""

    dlq_id: int
    end: End
    other: int | None = None


async def orphans(
    connection: AsyncConnection, tables: DeskTables, *, ids: Sequence[int] | None = None
) -> list[int]:
    """Letters on their way without a row: among these, or among those that left longest ago."""
    if ids is None:
        return (await next_orphans(connection, tables, None)).ids
    if tables.outbox is None or not tables.records_states:
        return []
    dlq = tables.dlq
    statement = select(dlq.c.id).where(
        *in_states(dlq, (REPLAYING,)), ~_has_row(dlq, tables.outbox), dlq.c.id.in_(ids)
    )
    return list((await connection.execute(statement.limit(PASS_MAX))).scalars())


async def next_orphans(
    connection: AsyncConnection, tables: DeskTables, after: OrphanPlace | None
) -> Pass:
    """Those among the next letters on their way, and where the next pass goes on; None: at the
    beginning.
    """
    if tables.outbox is None or not tables.records_states:
        return Pass([], None)
    dlq = tables.dlq
    statement = (
        select(dlq.c.state_changed_at, dlq.c.id, dlq.c.replayed_as)
        .where(*in_states(dlq, (REPLAYING,)))
        .order_by(dlq.c.state_changed_at, dlq.c.id)
        .limit(PASS_MAX)
    )
    if after is not None:
        place = tuple_(dlq.c.state_changed_at, dlq.c.id)
        statement = statement.where(place > tuple_(bound(after.at, Instant()), bound(after.id)))
    some = statement.subquery("some")
    looked = select(
        some.c.state_changed_at, some.c.id, _has_row(some, tables.outbox).label("has_row")
    ).order_by(some.c.state_changed_at, some.c.id)
    rows = (await connection.execute(looked)).all()
    last = rows[-1] if len(rows) == PASS_MAX else None
    return Pass(
        [row.id for row in rows if not row.has_row],
        OrphanPlace(last.state_changed_at, last.id) if last else None,
    )


def _link(table: Table) -> ColumnElement[Any]:
    return cast(table.c.headers[envelope.REPLAY].as_string(), Text)


def _has_row(dlq: FromClause, outbox: Table) -> ColumnElement[bool]:
    row = select(outbox.c.id).where(
        outbox.c.id == dlq.c.replayed_as, _link(outbox) == cast(dlq.c.id, Text)
    )
    return exists(row.correlate(dlq))


async def settle_orphan(
    connection: AsyncConnection, tables: DeskTables, letter_id: int, act: Act
) -> Orphan | None:
    """End one letter, in the transaction of the connection; None: it is no orphan any more."""
    found = await locked(connection, tables, [letter_id], pass_over=True)
    if not found or found[0].state != REPLAYING:
        return None
    letter = found[0]
    # a statement after the lock: a row that a worker has settled by now left this letter first
    if not await orphans(connection, tables, ids=[letter_id]):
        return None
    other = await _written_elsewhere(connection, tables, letter)
    if other is None:
        end = Orphan(letter.id, "unconfirmed")
        await _resolve(connection, tables, letter, UNCONFIRMED)
    elif other.state == OPEN and not other.revision:
        end = Orphan(letter.id, "folded", other.id)
        await _fold(connection, tables, letter, other)
    else:
        end = Orphan(letter.id, "superseded", other.id)
        await _resolve(connection, tables, letter, f"{SUPERSEDED}{other.id}")
    kind = "folded" if end.end == "folded" else "resolved"
    detail = {"row": letter.replayed_as, "end": end.end, "other": end.other}
    await tell(connection, tables, act, [Entry(letter.id, kind, detail)])
    return end


async def _written_elsewhere(
    connection: AsyncConnection, tables: DeskTables, letter: LetterView
) -> LetterView | None:
    dlq = tables.dlq
    statement = (
        select(dlq)
        .where(
            dlq.c.original_id == letter.replayed_as,
            dlq.c.id != letter.id,
            _link(dlq) == str(letter.id),
        )
        .order_by(dlq.c.id.desc())
        .limit(1)
    )
    if tables.is_postgres:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).mappings().first()
    return None if row is None else LetterView.of(dict(row))


async def _resolve(
    connection: AsyncConnection, tables: DeskTables, letter: LetterView, resolution: str
) -> None:
    # without a time to be deleted at: nobody knows what became of it, so a person ends it
    await _update(
        connection, tables, letter, state=RESOLVED, resolution=resolution, purge_after=null()
    )


async def _fold(
    connection: AsyncConnection, tables: DeskTables, letter: LetterView, other: LetterView
) -> None:
    newest = {
        name: value for name in _NEWEST_FAILURE if (value := getattr(other, name)) is not None
    }
    await _update(
        connection,
        tables,
        letter,
        **newest,
        state=OPEN,
        resolution=null(),
        last_failure_at=other.latest_failure_at,
        total_deliveries=min((letter.total_deliveries or 0) + other.deliveries_count, COUNT_MAX),
    )
    await erase(connection, tables, [other.id])


async def _update(
    connection: AsyncConnection, tables: DeskTables, letter: LetterView, **values: Any
) -> None:
    dlq = tables.dlq
    moved = {"replayed_as": null(), "state_changed_at": clock()}
    await connection.execute(update(dlq).where(dlq.c.id == letter.id).values(values | moved))
