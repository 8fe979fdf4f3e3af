"""Replay: named letters, or all that a filter takes.

In: an actor who may replay. Out: results in the shapes of `model.replay`. The gates are asked for
every letter, in its transaction; force is recorded with its reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from outlast.model.edit import Draft, Edit, NoDraft
from outlast.model.errors import StoreFailure
from outlast.model.letter_view import LetterView
from outlast.model.query import REPLAYING, Query
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
from outlast.ops.running import Batch, Pace, continued, interrupted
from outlast.ops.tally import ReplayTally
from outlast.policy.bulk_selection import BulkSelection, bulk_selection
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
        try:
            async for results in self._on_named(ids, self._batch(actor, wanted, None)):
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
        size = self.options.chunk
        if wanted.edit is not None or self.options.body_test is not None:
            # models of the application are asked while the letters are locked
            size = min(size, EDITED_AT_ONCE)
        if rate is not None:
            size = max(1, min(size, int(rate)))
        tally = ReplayTally()
        so_far = partial(tally.result, asked, dry_run=wanted.dry_run, left_out=left_out)

        async def record(stopped: bool) -> None:
            if not wanted.dry_run:
                await self._record(actor, wanted, run.filter, so_far(), stopped=stopped)

        batch, pace = self._batch(actor, wanted, asked), Pace(size, most, rate)
        going_on = await self._go(run, batch, pace, tally, record, so_far, progress)
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
            return await selection(*at, _taken_by(query or Query(), wanted).taken)

        async def act(at: At, letters: Sequence[LetterView]) -> list[LetterReplay]:
            return await send(*at, letters, order)

        before = None if edit is None else prepare
        return Batch(choose, act, LetterReplay, wanted.dry_run, before)

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
        found: list[LeftOut] = []
        async with self._reading() as at:
            for kind, asked in _taken_by(query, wanted).left_out:
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


def _taken_by(query: Query, wanted: ReplayOptions) -> BulkSelection:
    return bulk_selection(query, include_poison=wanted.include_poison)
