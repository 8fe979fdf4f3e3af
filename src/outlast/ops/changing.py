"""Purge, restore and mark, and the end of what was kept long enough.

In: an actor with the scope of the verb. Out: results. A purged letter can be restored until its
time is over; with `hard` nothing of it is left but a line in the history.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from outlast.model.errors import RowRefused, StoreFailure
from outlast.model.letter_view import LetterView
from outlast.model.query import DISCARDED, RESOLVED, Query
from outlast.ops import cursors
from outlast.ops.actor import Actor
from outlast.ops.context import At, checked_text, need_filter
from outlast.ops.refusals import BadRequest
from outlast.ops.running import Batch, Pace, Running, continued, interrupted
from outlast.ops.tally import BulkChange, ChangeTally
from outlast.policy.filter_text import parse
from outlast.policy.letter_states import Verb
from outlast.stores.desk.changing import Change, LetterChange, change, erase
from outlast.stores.desk.expiry import DuePlace, due, take_due
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.locking import locked
from outlast.stores.desk.selection import Selection, selection

NOTE_CHARS_MAX = 8000
NAME_CHARS_MAX = 255
TRIAGE_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What a purge by filter would take now. Its `cursor` starts exactly this run."""

    total: int
    cursor: str


class Changing(Running):
    """The verbs that change letters besides a replay."""

    _next_due: DuePlace | None = None

    async def purge(
        self,
        actor: Actor,
        ids: Sequence[int],
        *,
        reason: str | None = None,
        hard: bool = False,
        dry_run: bool = False,
    ) -> BulkChange:
        """These letters, one transaction each."""
        wanted = self._purge(actor, reason, hard, dry_run)
        return await self._named(ids, [wanted], "purged")

    async def plan_purge(
        self,
        actor: Actor,
        query: Query,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        everything: bool = False,
    ) -> PurgePlan:
        """Count what a purge would take, for a question to somebody."""
        wanted = self._purge(actor, reason, hard=False, dry_run=dry_run)
        need_filter(query, "purge", everything=everything)
        await self._need_states()
        run = await self._begin(query, _batch([wanted], query))
        return PurgePlan(run.counted, cursors.of_run(run))

    async def purge_all(
        self,
        actor: Actor,
        query: Query | None = None,
        *,
        reason: str | None = None,
        hard: bool = False,
        dry_run: bool = False,
        everything: bool = False,
        cursor: str | None = None,
        most: int | None = None,
        progress: Callable[[BulkChange], None] | None = None,
    ) -> BulkChange:
        """All that the filter takes: what was counted when the run began, and nothing else."""
        wanted = self._purge(actor, reason, hard, dry_run)
        if cursor is None:
            plan = await self.plan_purge(
                actor, query or Query(), reason=reason, dry_run=dry_run, everything=everything
            )
            run = cursors.run_of(plan.cursor)
        else:
            run = continued(cursor, query)
            await self._need_states()
        batch = _batch([wanted], parse(run.filter, now=datetime.now(UTC)))
        tally = ChangeTally("purged")
        so_far = partial(tally.result, dry_run=dry_run)

        async def record(stopped: bool) -> None:
            if not dry_run:
                await self._record_purge(wanted, run.filter, so_far(), stopped=stopped)

        pace = Pace(self.options.chunk, most)
        going_on = await self._go(run, batch, pace, tally, record, so_far, progress)
        return so_far(cursor=going_on)

    async def restore(
        self, actor: Actor, ids: Sequence[int], *, reason: str | None = None
    ) -> BulkChange:
        """Purged letters are open again."""
        actor.needs("discard", "restore dead letters")
        act = self._act(actor, reason)
        return await self._named(ids, [Change("restore", act, "restored")], "restored")

    async def mark(
        self,
        actor: Actor,
        ids: Sequence[int],
        *,
        reopen: bool = False,
        review: bool = False,
        owner: str | None = None,
        triage: str | None = None,
        note: str | None = None,
        reason: str | None = None,
    ) -> BulkChange:
        """Several marks at once. An empty owner or triage takes it away."""
        actor.needs("edit", "mark dead letters")
        if reopen and review:
            raise BadRequest("a letter cannot be opened and marked for review at once")
        act = self._act(actor, reason)
        marks: list[Change] = []
        if reopen:
            marks.append(Change("open", act, "reopened"))
        if review:
            marks.append(Change("review", act, "reviewed"))
        marks += _annotations(act, owner, triage, note)
        if not marks:
            raise BadRequest("nothing to mark", "say --open, --review, --owner, --triage or --note")
        return await self._named(ids, marks, "marked")

    async def sweep(self, actor: Actor) -> int:
        """Delete a bounded number of letters whose time is over; how many there were."""
        actor.needs("discard", "delete what was kept long enough")
        await self._need_states()
        states = (DISCARDED,) if self.options.keep_resolved else (DISCARDED, RESOLVED)
        async with self._reading() as at:
            found = await due(*at, self._next_due, self.options.chunk, states)
        # also past a letter that cannot be deleted: the others must not wait behind it
        self._next_due = found.next
        if not found.ids:
            return 0
        act = self._act(actor, None)
        try:
            return await self._expire(found.ids, states, act)
        except RowRefused:
            for letter_id in found.ids:
                with suppress(RowRefused):
                    await self._expire([letter_id], states, act)
            raise

    async def _expire(self, ids: Sequence[int], states: Sequence[str], act: Act) -> int:
        async with self._writing() as at:
            over = await take_due(*at, ids, states)
            await tell(*at, act, [_tombstone(letter) for letter in over])
            await erase(*at, [letter.id for letter in over])
        return len(over)

    def _purge(self, actor: Actor, reason: str | None, hard: bool, dry_run: bool) -> Change:
        actor.needs("discard", "purge dead letters")
        act = self._reasoned(actor, reason, "purge", dry_run=dry_run)
        verb: Verb = "erase" if hard else "discard"
        kept = self.options.keep_discarded_seconds
        kind = "purged" if hard else "discarded"
        return Change(verb, act, kind, kept_seconds=kept, dry_run=dry_run)

    async def _record_purge(
        self, wanted: Change, text: str, result: BulkChange, *, stopped: bool
    ) -> None:
        """One row for the whole call; each letter has its own besides."""
        detail: dict[str, object] = {
            "filter": text,
            "hard": wanted.kind == "purged",
            "purged": result.done,
            "skipped": result.skipped,
            "failed": result.failed,
        }
        if stopped:
            detail["stopped"] = True
        act = wanted.act._replace(request_id=None)
        async with self._writing() as at:
            await tell(*at, act, [Entry(None, wanted.kind, detail)])

    async def _named(self, ids: Sequence[int], wanted: Sequence[Change], verb: str) -> BulkChange:
        self._ids(ids)
        await self._need_states()
        tally = ChangeTally(verb)
        try:
            async for results in self._on_named(ids, _batch(wanted, Query())):
                tally.add(results)
        except StoreFailure as failure:
            raise interrupted(failure, tally.result(), tally.handled) from failure
        return tally.result(dry_run=wanted[0].dry_run)


def _batch(changes: Sequence[Change], query: Query) -> Batch[LetterChange]:
    async def choose(at: At) -> Selection:
        return await selection(*at, query)

    async def act(at: At, letters: Sequence[LetterView]) -> list[LetterChange]:
        results: list[LetterChange] = []
        for number, one in enumerate(changes):
            seen = letters
            if number:
                seen = await locked(*at, [letter.id for letter in letters], pass_over=False)
            results = _worst(results, await change(*at, seen, one))
        return results

    return Batch(choose, act, LetterChange, changes[0].dry_run)


def _worst(before: list[LetterChange], after: list[LetterChange]) -> list[LetterChange]:
    """One result for each letter: what could not be done is not hidden by what could."""
    failed = {result.dlq_id: result for result in before if result.outcome == "failed"}
    return [failed.get(result.dlq_id, result) for result in after]


def _annotations(act: Act, owner: str | None, triage: str | None, note: str | None) -> list[Change]:
    marks: list[Change] = []
    if owner is not None:
        name = checked_text("owner", owner, NAME_CHARS_MAX)
        marks.append(Change("annotate", act, "assigned", {"owner": name}, {"owner": name}))
    if triage is not None:
        cause = checked_text("triage", triage, TRIAGE_CHARS_MAX)
        marks.append(Change("annotate", act, "triaged", {"triage": cause}, {"triage": cause}))
    if note is not None:
        said = checked_text("note", note, NOTE_CHARS_MAX)
        if said is None:
            raise BadRequest("an empty note says nothing")
        marks.append(Change("annotate", act, "noted", {}, {"note": said}))
    return marks


def _tombstone(letter: LetterView) -> Entry:
    detail = {"queue": letter.queue, "message_id": letter.message_id, "state": letter.state}
    return Entry(letter.id, "expired", detail)
