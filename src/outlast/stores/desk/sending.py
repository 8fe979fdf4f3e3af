"""Replay: letters become outbox rows, in the transaction that marks them as on their way.

In: locked letters and what was asked for. Out: one result each. The gates are asked inside the
transaction; bytes and headers of a letter never change. Nothing is committed here.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Table, bindparam, null, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model import headers as envelope
from outlast.model.edit import Draft, Drafts, NoDraft
from outlast.model.letter_view import LetterView
from outlast.model.query import ESCALATED, REPLAYING
from outlast.model.replay import Admission, Denial, LetterReplay, Refusal, ReplayFacts, WorkerSeen
from outlast.policy.edit_rules import etag_of
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.reading import Revision, database_now, newest_revisions
from outlast.stores.desk.revisions import revise
from outlast.stores.desk.shape import DeskTables
from outlast.stores.desk.workers import workers_seen
from outlast.tables.insertion import Insertion
from outlast.tables.instant import clock

Judge = Callable[[LetterView, ReplayFacts], Admission | Refusal | Denial]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be sent: `queue` None is the letter's own, `original` passes over revisions.

    `drafts`: what an edit made of the letters, before this transaction; None without an edit.
    """

    act: Act
    judge: Judge
    insertion: Insertion
    queue: str | None = None
    original: bool = False
    dry_run: bool = False
    drafts: Drafts | None = None


class _Seen(NamedTuple):
    """What the gates go by, the same for all letters of one transaction."""

    now: datetime
    workers: tuple[WorkerSeen, ...] | None


class _Going(NamedTuple):
    """A letter that may go, with what it takes along. `revision` 0 is the original."""

    letter: LetterView
    queue: str
    payload: bytes | None
    headers: Any
    revision: int
    draft: Draft | None
    admission: Admission
    row_id: int = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        edited = self.draft.warnings if self.draft is not None else ()
        if self.draft is not None and not self.draft.changes:
            edited = (*edited, "the edit changes nothing: no revision is written")
        return (*self.admission.warnings, *edited)


async def send(
    connection: AsyncConnection, tables: DeskTables, letters: Sequence[LetterView], order: Order
) -> list[LetterReplay]:
    """Replay these letters, which the transaction has locked."""
    seen = _Seen(await database_now(connection), await workers_seen(connection, tables))
    revised = [letter.id for letter in letters if letter.revision and not order.original]
    revisions = await newest_revisions(connection, tables, revised)
    results: dict[int, LetterReplay] = {}
    going: list[_Going] = []
    escalated: list[int] = []
    for letter in letters:
        decided = _decide(order, letter, revisions.get(letter.id), seen)
        if isinstance(decided, LetterReplay):
            results[letter.id] = decided
        elif isinstance(decided, _Going):
            going.append(decided)
        else:
            results[letter.id] = _refused(letter, order.queue or letter.queue, decided)
            escalated += [letter.id] if decided.escalates else []
    if order.dry_run:
        results |= {g.letter.id: _would_go(g) for g in going}
    else:
        sent = await _send(connection, tables, going, order)
        results |= {s.letter.id: _went(s) for s in sent}
        await _escalate(connection, tables, escalated, order.act)
    return [results[letter.id] for letter in letters]


def _decide(
    order: Order, letter: LetterView, revision: Revision | None, seen: _Seen
) -> LetterReplay | Refusal | _Going:
    queue = order.queue or letter.queue
    draft = None if order.drafts is None else order.drafts.get(letter.id)
    if isinstance(draft, NoDraft):
        reason, remedy = draft.reason, draft.remedy
        return LetterReplay(letter.id, "failed", queue, reason=reason, remedy=remedy)
    is_stale = order.drafts is not None and (draft is None or draft.etag != etag_of(letter))
    payload, headers = letter.payload, letter.headers
    if draft is not None:
        payload, headers = draft.payload, draft.headers
    elif revision is not None:
        payload, headers = revision.payload, revision.headers
    facts = ReplayFacts(
        seen.now,
        queue,
        seen.workers,
        revision.at if revision else None,
        changes_now=draft is not None and draft.changes,
    )
    # a model is asked about the bytes that would be sent
    is_changed = draft is not None or revision is not None
    asked = replace(letter, payload=payload, headers=headers) if is_changed else letter
    verdict = order.judge(asked, facts)
    if isinstance(verdict, Denial):
        return _denied(letter, queue, verdict)
    if is_stale:
        changed = "somebody else changed it while the edit was made"
        return LetterReplay(letter.id, "skipped", queue, reason=changed)
    if isinstance(verdict, Refusal):
        return verdict
    if letter.revision and not order.original and revision is None:
        return _without_revision(letter, queue)
    number = revision.revision if revision else 0
    return _Going(letter, queue, payload, headers, number, draft, verdict)


async def _send(
    connection: AsyncConnection, tables: DeskTables, going: Sequence[_Going], order: Order
) -> list[_Going]:
    drafts = [(g.letter, g.draft) for g in going if g.draft is not None and g.draft.changes]
    numbers = await revise(connection, tables, order.act, drafts)
    rows = await _insert(connection, tables, going, order.insertion)
    sent = [
        one._replace(row_id=rows[one.letter.id], revision=numbers.get(one.letter.id, one.revision))
        for one in going
    ]
    await _mark_sent(connection, tables, sent, order)
    return sent


async def _insert(
    connection: AsyncConnection,
    tables: DeskTables,
    going: Sequence[_Going],
    insertion: Insertion,
) -> dict[int, int]:
    """The new row of each letter. PostgreSQL takes all at once: a round trip each adds up."""
    if not going:
        return {}
    headers = [replay_headers(one.letter, one.headers) for one in going]
    if tables.is_postgres:
        given = {
            "p_queue": [one.queue for one in going],
            "p_payload": [one.payload for one in going],
            "p_headers": [json.dumps(each) for each in headers],
        }
        found = await connection.execute(insertion.replays(), given)
        return {row.letter: row.id for row in found}
    rows = {}
    for one, each in zip(going, headers, strict=True):
        values = {"p_queue": one.queue, "p_payload": one.payload, "p_headers": each}
        made = await connection.execute(insertion.single("now"), values)
        rows[one.letter.id] = int(made.scalar_one())
    return rows


def _would_go(going: _Going) -> LetterReplay:
    diff = going.draft.diff if going.draft is not None else ()
    return LetterReplay(
        going.letter.id, "would_replay", going.queue, warnings=going.warnings, diff=diff
    )


def _went(sent: _Going) -> LetterReplay:
    revised = sent.revision if sent.draft is not None and sent.draft.changes else None
    return LetterReplay(
        sent.letter.id,
        "replayed",
        sent.queue,
        sent.row_id,
        warnings=sent.warnings,
        revision=revised,
    )


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
    connection: AsyncConnection, tables: DeskTables, sent: Sequence[_Going], order: Order
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


def _told(sent: _Going, order: Order) -> Entry:
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
