"""Rows of the outbox, looked at and taken back.

In: a connection. Out: values. Looking never changes a row; a row in a worker's hands is never
touched. Lock order: row, then letter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Table,
    Text,
    cast,
    delete,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model import headers as envelope
from outlast.model.dead_letter import COUNT_MAX
from outlast.model.query import OPEN, REPLAYING
from outlast.model.replay_pass import letter_of
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.locking import locked
from outlast.stores.desk.shape import DeskTables
from outlast.stores.desk.workers import longest_lease
from outlast.tables.instant import SECONDS, clock, clock_plus
from outlast.tables.names import channel_name

_IDS_AT_ONCE = 1000

RowState = Literal["pending", "in_flight", "retrying", "replaying"]

RecallOutcome = Literal["recalled", "cancelled", "in_hand", "not_found"]


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A live row and its derived state. A list leaves payload and headers out."""

    id: int
    queue: str
    state: RowState
    attempts_count: int
    deliveries_count: int
    created_at: datetime
    next_attempt_at: datetime
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    acquired_at: datetime | None
    timer_id: str | None
    message_id: str
    letter_id: int | None
    headers: Mapping[str, Any] | None = None
    payload: bytes | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """What became of a row that was to be taken back, and of its letter."""

    row_id: int
    outcome: RecallOutcome
    queue: str | None = None
    dlq_id: int | None = None
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Only what is known: no member is null."""
        names = ("row_id", "outcome", "queue", "dlq_id", "reason")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


async def queues_of(
    connection: AsyncConnection, tables: DeskTables, sent: Mapping[int, str]
) -> set[str]:
    """The queues of these rows; of a row that is gone, the one it is said to have been in."""
    if tables.outbox is None or not sent:
        return set(sent.values())
    outbox, ids = tables.outbox, list(sent)
    queues = dict(sent)
    for start in range(0, len(ids), _IDS_AT_ONCE):
        some = outbox.c.id.in_(ids[start : start + _IDS_AT_ONCE])
        found = await connection.execute(select(outbox.c.id, outbox.c.queue).where(some))
        queues |= {row.id: row.queue for row in found}
    return set(queues.values())


async def row(connection: AsyncConnection, outbox: Table, row_id: int) -> OutboxRow | None:
    """One live row with its bytes."""
    statement = select(outbox).where(outbox.c.id == row_id)
    found = (await connection.execute(statement)).mappings().first()
    return None if found is None else row_of(dict(found), whole=True)


def row_of(found: Mapping[str, Any], *, whole: bool) -> OutboxRow:
    """The value of a row; `whole` with its bytes."""
    headers = found["headers"]
    letter_id = letter_of(headers) if isinstance(headers, Mapping) else None
    state: RowState = "pending"
    if letter_id is not None:
        state = "replaying"
    elif found["acquired_token"] is not None:
        state = "in_flight"
    elif found["deliveries_count"]:
        state = "retrying"
    names = (
        *("id", "queue", "attempts_count", "deliveries_count", "created_at", "next_attempt_at"),
        *("first_attempt_at", "last_attempt_at", "acquired_at", "timer_id"),
    )
    return OutboxRow(
        **{name: found[name] for name in names},
        state=state,
        message_id=envelope.message_id(headers, found["id"]),
        letter_id=letter_id,
        headers=headers if whole else None,
        payload=found["payload"] if whole else None,
    )


async def recall(
    connection: AsyncConnection,
    tables: DeskTables,
    row_id: int,
    act: Act,
    lease_seconds: float | None,
) -> Recall:
    """Take a row back; its letter, if it is one's replay, is open again."""
    outbox = tables.outbox
    assert outbox is not None, "looked at before"
    statement = select(outbox).where(outbox.c.id == row_id)
    if tables.is_postgres:
        statement = statement.with_for_update(of=outbox)
    found = (await connection.execute(statement)).mappings().first()
    if found is None:
        reason = f"there is no row {row_id}: it was delivered, died, was taken back, or never was"
        return Recall(row_id, "not_found", reason=reason)
    if not await _is_free(connection, tables, outbox, row_id, lease_seconds):
        reason = f"row {row_id} is in a worker's hands; wait for its outcome"
        return Recall(row_id, "in_hand", found["queue"], letter_of(found["headers"]), reason)
    letter_id = letter_of(found["headers"])
    await connection.execute(delete(outbox).where(outbox.c.id == row_id))
    detail = {"row": row_id, "queue": found["queue"]}
    if letter_id is None:
        # a row of the request itself has its id already: there is one without a letter
        alone = act._replace(request_id=None)
        await tell(connection, tables, alone, [Entry(None, "recalled", detail)])
        return Recall(row_id, "cancelled", found["queue"])
    if not await _return_letter(connection, tables, letter_id, dict(found)):
        letter_id = await _insert_letter(connection, tables, dict(found))
    await tell(connection, tables, act, [Entry(letter_id, "recalled", detail)])
    return Recall(row_id, "recalled", found["queue"], letter_id)


async def _is_free(
    connection: AsyncConnection,
    tables: DeskTables,
    outbox: Table,
    row_id: int,
    lease_seconds: float | None,
) -> bool:
    known = lease_seconds or await longest_lease(connection, tables)
    free: ColumnElement[bool] = outbox.c.acquired_token.is_(None)
    if known is not None:
        # a lease is over on either side: a clock that was set back must not make it eternal
        free = or_(
            free,
            outbox.c.acquired_at < clock_plus(literal(-known, SECONDS)),
            outbox.c.acquired_at > clock_plus(literal(known, SECONDS)),
        )
    statement = select(outbox.c.id).where(outbox.c.id == row_id, free)
    return (await connection.execute(statement)).first() is not None


async def _return_letter(
    connection: AsyncConnection, tables: DeskTables, letter_id: int, found: Mapping[str, Any]
) -> bool:
    dlq, count = tables.dlq, found["deliveries_count"]
    linked = (dlq.c.replayed_as == found["id"], dlq.c.state == REPLAYING)
    letters = await locked(connection, tables, [letter_id], linked, pass_over=False)
    if not letters:
        return False
    letter, given_back = letters[0], 1 if count == 0 else 0
    statement = (
        update(dlq)
        .where(dlq.c.id == letter_id)
        .values(
            state=OPEN,
            state_changed_at=clock(),
            replayed_as=null(),
            purge_after=null(),
            resolution=null(),
            replay_count=max(0, (letter.replay_count or 0) - given_back),
            total_deliveries=min((letter.total_deliveries or 0) + count, COUNT_MAX),
        )
    )
    await connection.execute(statement)
    return True


async def _insert_letter(
    connection: AsyncConnection, tables: DeskTables, found: Mapping[str, Any]
) -> int:
    """The letter was deleted meanwhile, the row is all that is left of the message."""
    dlq = tables.dlq
    headers = dict(found["headers"] or {})
    values = {
        "original_id": found["id"],
        "queue": found["queue"],
        "payload": found["payload"],
        "headers": headers,
        "deliveries_count": found["deliveries_count"],
        "created_at": found["created_at"],
        # said, and not left to the columns' defaults: SQLite adds a column without one
        **dict.fromkeys(("failed_at", "last_failure_at", "state_changed_at"), clock()),
        "failure_reason": "unknown",
        "message_id": envelope.message_id(headers, found["id"]),
        "event_type": headers.get(envelope.EVENT_TYPE),
        "replay_count": _number(headers.get(envelope.REPLAY_COUNT)),
        "total_deliveries": min(found["deliveries_count"], COUNT_MAX),
    }
    statement = insert(dlq).values(values).returning(dlq.c.id)
    return int((await connection.execute(statement)).scalar_one())


def _number(value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX
    return value if is_count else 0


async def run_now(connection: AsyncConnection, tables: DeskTables, row_id: int) -> bool:
    """Make a waiting row due and wake its workers; False: gone, or in a worker's hands."""
    outbox = tables.outbox
    assert outbox is not None, "looked at before"
    answer: list[ColumnElement[Any]] = [outbox.c.id]
    if tables.is_postgres:
        answer.append(cast(func.pg_notify(channel_name(outbox), outbox.c.queue), Text))
    statement = (
        update(outbox)
        .where(outbox.c.id == row_id, outbox.c.acquired_token.is_(None))
        .values(next_attempt_at=clock())
        .returning(*answer)
    )
    return (await connection.execute(statement)).first() is not None
