"""Replay: named letters, or all that a filter takes.

In: an actor who may replay. Out: results in the shapes of `model.replay`. The gates are asked for
every letter, in its transaction; force is recorded with its reason.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import or_

from outlast.model.edit import Draft, Edit, NoDraft
from outlast.model.errors import StoreFailure
from outlast.model.letter_view import LetterView
from outlast.model.query import ESCALATED, NEEDS_REVIEW, OPEN, REPLAYING, Query
from outlast.model.replay import (
    Admission,
    BulkReplay,
    Denial,
    LeftOut,
    LetterReplay,
    Refusal,
    ReplayFacts,
)
from outlast.ops import cursors
from outlast.ops.actor import Actor
from outlast.ops.context import At, need_filter
from outlast.ops.editing import EDITED_AT_ONCE, Editing
from outlast.ops.outcomes import Outcomes
from outlast.ops.refusals import BadRequest
from outlast.ops.running import Batch, continued, interrupted, told_if_broken_off
from outlast.ops.tally import ReplayTally, with_word
from outlast.policy.classify import POISON
from outlast.policy.edit_rules import detail_of
from outlast.policy.filter_text import parse, render
from outlast.policy.gates import ReplayRequest, judge
from outlast.policy.names import check_queue
from outlast.stores.desk import reading
from outlast.stores.desk.history import Entry, tell
from outlast.stores.desk.selection import Boundary, Selection, counted, selection
from outlast.stores.desk.sending import Order, send

Progress = Callable[[BulkReplay], None]

DIFFS_MAX = 100
"""Letters of a dry run whose changes are shown line by line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """What a replay is told besides which letters. `to` is the queue of this pass only; with
    `original` the first message is sent, or edited.
    """

    to: str | None = None
    original: bool = False
    dry_run: bool = False
    force: bool = False
    reason: str | None = None
    include_poison: bool = False
    edit: Edit | None = None

    def __post_init__(self) -> None:
        if self.to is not None:
            try:
                check_queue(self.to)
            except (TypeError, ValueError) as error:
                raise BadRequest(str(error)) from None
        if self.force and not (self.reason or "").strip():
            raise BadRequest("a forced replay needs a reason", "give it with --reason")


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What a replay by filter would take now. Its `cursor` starts exactly this run."""

    total: int
    left_out: tuple[LeftOut, ...]
    cursor: str


class Replaying(Editing, Outcomes):
    """The verbs that send letters again."""

    async def replay(
        self, actor: Actor, ids: Sequence[int], options: ReplayOptions | None = None
    ) -> BulkReplay:
        """These letters, one transaction each."""
        wanted, known = options or ReplayOptions(), self._ids(ids)
        await self._need_replay(actor, wanted)
        if not wanted.dry_run:
            await self._settle_orphans(known, self._act(actor, None))
        tally = ReplayTally()
        tally.add([_not_found(i) for i in dict.fromkeys(ids) if i not in set(known)])
        batch = self._batch(actor, wanted, None)
        try:
            async for results in self._on_named(known, batch, _not_found):
                tally.add(results)
        except StoreFailure as failure:
            raise interrupted(failure, tally.result(None), tally.handled) from failure
        return tally.result(None, dry_run=wanted.dry_run)

    async def plan_replay(
        self,
        actor: Actor,
        query: Query,
        options: ReplayOptions | None = None,
        *,
        everything: bool = False,
    ) -> ReplayPlan:
        """Count what a replay would take, for a question to somebody."""
        actor.needs("replay", "replay dead letters")
        need_filter(query, "replay-all", everything=everything)
        wanted = options or ReplayOptions()
        await self._need_replay(actor, wanted)
        if not wanted.dry_run:
            await self._settle_named_by(query, actor)
        run = await self._begin(query, self._batch(actor, wanted, query))
        left_out = await self._left_out(query, wanted, run.boundary)
        return ReplayPlan(run.counted, left_out, cursors.of_run(run))

    async def replay_all(
        self,
        actor: Actor,
        query: Query | None = None,
        options: ReplayOptions | None = None,
        *,
        everything: bool = False,
        cursor: str | None = None,
        most: int | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> BulkReplay:
        """All that the filter takes: what was counted when the run began, and nothing else.

        `cursor` goes on with a plan or an earlier answer; `most` letters are looked at in this
        call; `rate` is letters a second.
        """
        actor.needs("replay", "replay dead letters")
        if rate is not None and not 0 < rate < float("inf"):
            raise BadRequest(f"rate must be above 0, got {rate!r}")
        wanted = options or ReplayOptions()
        left_out: tuple[LeftOut, ...] = ()
        if cursor is None:
            plan = await self.plan_replay(actor, query or Query(), wanted, everything=everything)
            cursor, left_out = plan.cursor, plan.left_out
            run = cursors.run_of(cursor)
        else:
            run = continued(cursor, query)
            await self._need_replay(actor, wanted)
        asked = parse(run.filter, now=datetime.now(UTC))
        tally = ReplayTally()
        after: int | None = run.after
        started = asyncio.get_running_loop().time()
        size = (
            self.options.chunk if wanted.edit is None else min(self.options.chunk, EDITED_AT_ONCE)
        )
        size = size if rate is None else max(1, min(size, int(rate)))
        batch = self._batch(actor, wanted, asked)

        async def record(*, stopped: bool) -> None:
            if not wanted.dry_run:
                done = tally.result(asked)
                await self._record(actor, wanted, run.filter, done, stopped=stopped)

        so_far = partial(tally.result, asked, dry_run=wanted.dry_run, left_out=left_out)
        async with told_if_broken_off(tally, so_far, partial(record, stopped=True)):
            async for chunk in self._chunks(run, batch, size, most):
                tally.add(chunk.results)
                after = chunk.after
                if progress is not None:
                    progress(so_far())
                if rate is not None and after is not None:
                    due = started + tally.handled / rate
                    await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        handled = run.handled + tally.handled
        if after is None:
            # counted, and gone before the run came to them
            tally.counts["skipped"] += max(0, run.counted - handled)
        going_on = None
        if after is not None:
            going_on = cursors.of_run(run._replace(after=after, handled=handled))
        await record(stopped=False)
        return so_far(cursor=going_on)

    async def _need_replay(self, actor: Actor, wanted: ReplayOptions) -> None:
        actor.needs("replay", "replay dead letters")
        if wanted.edit is not None:
            await self._need_edit(actor, wanted.edit)
        await self._need_states(outbox=True)

    def _batch(
        self, actor: Actor, wanted: ReplayOptions, query: Query | None
    ) -> Batch[LetterReplay]:
        edit, drafts, shown = wanted.edit, dict[int, Draft | NoDraft](), 0
        order = Order(
            self._reasoned(actor, wanted.reason, "replay", dry_run=wanted.dry_run),
            self._judge(wanted),
            self._insertion,
            wanted.to,
            wanted.original,
            wanted.dry_run,
            None if edit is None else drafts,
        )

        async def prepare(ids: Sequence[int]) -> None:
            nonlocal shown
            drafts.clear()
            if edit is not None:
                left = max(0, DIFFS_MAX - shown) if wanted.dry_run else 0
                drafts.update(await self._drafts(ids, edit, original=wanted.original, shows=left))
                shown += len(drafts)

        async def choose(at: At) -> Selection:
            return await _to_replay(at, query or Query(), wanted)

        async def act(at: At, letters: Sequence[LetterView]) -> list[LetterReplay]:
            return await send(*at, letters, order)

        def failed(letter_id: int, reason: str) -> LetterReplay:
            return LetterReplay(letter_id, "failed", reason=reason)

        def skipped(letter_id: int, reason: str) -> LetterReplay:
            return LetterReplay(letter_id, "skipped", reason=reason)

        before = None if edit is None else prepare
        return Batch(choose, act, failed, skipped, wanted.dry_run, before)

    def _judge(
        self, wanted: ReplayOptions
    ) -> Callable[[LetterView, ReplayFacts], Admission | Refusal | Denial]:
        request = ReplayRequest(
            force=wanted.force,
            include_poison=wanted.include_poison,
            replays_max=self.options.replays_max,
        )
        test = self.options.body_test

        def ask(letter: LetterView, facts: ReplayFacts) -> Admission | Refusal | Denial:
            known = facts if test is None else replace(facts, body=test(letter, facts.queue))
            return judge(letter, known, request)

        return ask

    async def _left_out(
        self, query: Query, wanted: ReplayOptions, boundary: Boundary
    ) -> tuple[LeftOut, ...]:
        """What a filter takes and the rule does not: told with the filter that selects it."""
        if query.names_states:
            return ()
        kinds = [(state, with_word(query, "state", state)) for state in (NEEDS_REVIEW, ESCALATED)]
        if not wanted.include_poison and _may_take(query, POISON):
            poison = with_word(with_word(query, "category", POISON), "state", OPEN)
            kinds.append((POISON, poison))
        found: list[LeftOut] = []
        async with self._reading() as at:
            for kind, asked in kinds:
                if not asked.states:
                    continue
                number = await counted(at.connection, await selection(*at, asked), boundary)
                if number:
                    found.append(LeftOut(kind, number, render(asked)))
        return tuple(found)

    async def _settle_named_by(self, query: Query, actor: Actor) -> None:
        async with self._reading() as at:
            chosen = await selection(*at, query, states=(REPLAYING,))
            boundary = await reading.boundary(*at)
            ids = await self._first_ids(at, chosen, boundary)
        await self._settle_orphans(ids, self._act(actor, None))

    async def _record(
        self, actor: Actor, wanted: ReplayOptions, text: str, result: BulkReplay, *, stopped: bool
    ) -> None:
        """One row for the whole call; each letter has its own besides."""
        detail: dict[str, object] = {
            "filter": text,
            "replayed": result.replayed,
            "skipped": result.skipped,
            "failed": result.failed,
            "refused": {kind.gate: kind.count for kind in result.refused},
            "request": actor.request_id,
        }
        if stopped:
            detail["stopped"] = True
        if wanted.edit is not None:
            detail["edit"] = detail_of(wanted.edit)
        act = self._reasoned(actor, wanted.reason, "replay", dry_run=False)
        act = act._replace(request_id=None)
        async with self._writing() as at:
            await tell(*at, act, [Entry(None, "replayed", detail)])


async def _to_replay(at: At, query: Query, wanted: ReplayOptions) -> Selection:
    """What a replay by filter takes: open letters without POISON unless the filter says more."""
    if query.names_states:
        return await selection(*at, query)
    states = tuple(state for state in query.states if state == OPEN)
    chosen = await selection(*at, query, states=states)
    if wanted.include_poison:
        return chosen
    category = at.tables.dlq.c.failure_category
    harmless = or_(category.is_(None), category != POISON)
    return replace(chosen, where=(*chosen.where, harmless))


def _may_take(query: Query, category: str) -> bool:
    """Whether the filter takes letters of this category at all."""
    for word in query.words:
        if word.name == "category":
            named = any(condition.value == category for condition in word.alternatives)
            if named is word.negated:
                return False
    return True


def _not_found(letter_id: int) -> LetterReplay:
    return LetterReplay(
        letter_id,
        "failed",
        reason=f"DLQ message '{letter_id}' not found.",
        remedy="outlast dlq list",
    )
