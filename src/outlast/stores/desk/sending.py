"""Replay: letters become outbox rows, in the transaction that marks them as on their way.

In: locked letters and what was asked for. Out: one result each. The gates are asked inside the
transaction; bytes and headers of a letter never change. Nothing is committed here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Table, bindparam, null, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model import headers as envelope
from outlast.model.letter_view import LetterView
from outlast.model.query import ESCALATED, REPLAYING
from outlast.model.replay import Admission, Denial, LetterReplay, Refusal, ReplayFacts
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.reading import Revision, database_now, newest_revisions
from outlast.stores.desk.shape import DeskTables
from outlast.stores.desk.workers import workers_seen
from outlast.tables.insertion import Insertion
from outlast.tables.instant import clock

Judge = Callable[[LetterView, ReplayFacts], Admission | Refusal | Denial]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be sent: `queue` None is the letter's own, `original` passes over revisions."""

    act: Act
    judge: Judge
    insertion: Insertion
    queue: str | None = None
    original: bool = False
    dry_run: bool = False


class _Sent(NamedTuple):
    letter: LetterView
    queue: str
    row_id: int
    revision: int
    admission: Admission


async def send(
    connection: AsyncConnection, tables: DeskTables, letters: Sequence[LetterView], order: Order
) -> list[LetterReplay]:
    """Replay these letters, which the transaction has locked."""
    now = await database_now(connection)
    workers = await workers_seen(connection, tables)
    revised = [letter.id for letter in letters if letter.revision and not order.original]
    revisions = await newest_revisions(connection, tables, revised)
    results: list[LetterReplay] = []
    sent: list[_Sent] = []
    escalated: list[int] = []
    for letter in letters:
        revision = revisions.get(letter.id)
        queue = order.queue or letter.queue
        facts = ReplayFacts(now, queue, workers, revision.at if revision else None)
        verdict = order.judge(letter, facts)
        if isinstance(verdict, Denial):
            results.append(_denied(letter, queue, verdict))
        elif isinstance(verdict, Refusal):
            results.append(_refused(letter, queue, verdict))
            escalated += [letter.id] if verdict.escalates else []
        elif letter.revision and not order.original and revision is None:
            results.append(_without_revision(letter, queue))
        elif order.dry_run:
            results.append(
                LetterReplay(letter.id, "would_replay", queue, warnings=verdict.warnings)
            )
        else:
            row_id = await _insert(connection, order, letter, revision, queue)
            number = revision.revision if revision else 0
            sent.append(_Sent(letter, queue, row_id, number, verdict))
            results.append(
                LetterReplay(letter.id, "replayed", queue, row_id, warnings=verdict.warnings)
            )
    if not order.dry_run:
        await _mark_sent(connection, tables, sent, order)
        await _escalate(connection, tables, escalated, order.act)
    return results


async def _insert(
    connection: AsyncConnection,
    order: Order,
    letter: LetterView,
    revision: Revision | None,
    queue: str,
) -> int:
    values = {
        "p_queue": queue,
        "p_payload": letter.payload if revision is None else revision.payload,
        "p_headers": replay_headers(letter, revision.headers if revision else letter.headers),
    }
    row_id = (await connection.execute(order.insertion.single("now"), values)).scalar_one()
    return int(row_id)


def replay_headers(letter: LetterView, headers: Any) -> dict[str, Any]:
    """The headers of the row: those of the message, and the reserved ones of this pass."""
    original = letter.headers or {}
    sent = envelope.visible(headers)
    sent[envelope.MESSAGE_ID] = letter.message_id or envelope.message_id(
        original, letter.original_id
    )
    event_type = letter.event_type or original.get(envelope.EVENT_TYPE)
    if event_type:
        sent[envelope.EVENT_TYPE] = event_type
    sent[envelope.REPLAY] = letter.id
    sent[envelope.REPLAY_COUNT] = (letter.replay_count or 0) + 1
    return sent


async def _mark_sent(
    connection: AsyncConnection, tables: DeskTables, sent: Sequence[_Sent], order: Order
) -> None:
    if not sent:
        return
    dlq = tables.dlq
    statement = (
        update(dlq)
        .where(dlq.c.id == bindparam("p_id", type_=BigInteger))
        .values(
            state=REPLAYING,
            replayed_as=bindparam("p_row", type_=BigInteger),
            replay_count=dlq.c.replay_count + 1,
            state_changed_at=clock(),
            resolution=null(),
            purge_after=null(),
        )
    )
    await connection.execute(statement, [{"p_id": s.letter.id, "p_row": s.row_id} for s in sent])
    await tell(connection, tables, order.act, [_told(s, order) for s in sent])


def _told(sent: _Sent, order: Order) -> Entry:
    detail: dict[str, Any] = {"row": sent.row_id, "queue": sent.queue}
    if order.original or sent.revision:
        detail["revision"] = sent.revision
    if sent.admission.forced:
        detail["forced"] = [refusal.gate for refusal in sent.admission.forced]
    return Entry(sent.letter.id, "replayed", detail)


async def _escalate(
    connection: AsyncConnection, tables: DeskTables, ids: Sequence[int], act: Act
) -> None:
    if not ids:
        return
    dlq: Table = tables.dlq
    statement = update(dlq).where(dlq.c.id.in_(ids))
    await connection.execute(statement.values(state=ESCALATED, state_changed_at=clock()))
    await tell(
        connection, tables, act, [Entry(i, "escalated", {"gate": "replay_limit"}) for i in ids]
    )


def _denied(letter: LetterView, queue: str, denial: Denial) -> LetterReplay:
    return LetterReplay(letter.id, "failed", queue, reason=denial.reason, remedy=denial.remedy)


def _refused(letter: LetterView, queue: str, refusal: Refusal) -> LetterReplay:
    return LetterReplay(
        letter.id,
        "refused",
        queue,
        gate=refusal.gate,
        reason=refusal.reason,
        remedy=refusal.remedy,
    )


def _without_revision(letter: LetterView, queue: str) -> LetterReplay:
    return LetterReplay(
        letter.id,
        "failed",
        queue,
        reason=f"revision {letter.revision} of dead letter {letter.id} is not there",
        remedy="replay the message as it first was, with --original",
    )
