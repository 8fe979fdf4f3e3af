"""What became of a replay: seen in the letter's state, and found out where nobody said it.

In: ids of letters that were sent. Out: succeeded, failed again, still waiting. Letters whose row is
gone are ended here, a bounded number at a time.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from outlast.model.errors import RowLocked, RowRefused
from outlast.model.letter_view import LetterView
from outlast.model.query import REPLAYING, RESOLVED
from outlast.model.replay import BulkReplay, WaitedOutcome
from outlast.ops.actor import Actor
from outlast.ops.context import At
from outlast.ops.refusals import BadRequest
from outlast.ops.running import Running
from outlast.policy.gates import LIVE_SECONDS
from outlast.stores.desk import reading
from outlast.stores.desk.history import Act
from outlast.stores.desk.orphans import (
    PASS_MAX,
    Orphan,
    OrphanPlace,
    next_orphans,
    orphans,
    settle_orphan,
)
from outlast.stores.desk.outbox_rows import queues_of
from outlast.stores.desk.selection import Boundary, Selection, walk
from outlast.stores.desk.workers import workers_seen

WAIT_MAX_SECONDS = 86_400.0

_POLL_FIRST, _POLL_MAX = 0.05, 1.0
_SETTLE_EVERY = 5.0
_IDS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Waited:
    """`unserved`: queues that no live worker serves, None where workers are not recorded.

    `notes`: what a word does not tell, by letter.
    """

    outcomes: Mapping[int, WaitedOutcome]
    unserved: tuple[str, ...] | None
    notes: Mapping[int, str]

    @property
    def is_over(self) -> bool:
        """Whether nothing is waited for any more."""
        return "waiting" not in self.outcomes.values()

    def told_in(self, bulk: BulkReplay) -> BulkReplay:
        """The result of the replay, with what became of it."""
        return replace(
            bulk,
            results=tuple(
                replace(result, waited=self.outcomes.get(result.dlq_id))
                if result.outcome == "replayed"
                else result
                for result in bulk.results
            ),
        )


class Outcomes(Running):
    """Waiting, and ending what nobody ended."""

    _next_pass: OrphanPlace | None = None

    async def wait_for_outcome(
        self, actor: Actor, ids: Sequence[int], timeout_seconds: float = 600.0
    ) -> Waited:
        """Until every letter left `replaying`, or the time is up."""
        actor.needs("inspect", "look at dead letters")
        if not 0 <= timeout_seconds <= WAIT_MAX_SECONDS:
            raise BadRequest(f"a wait lasts 0 to {WAIT_MAX_SECONDS:g} seconds")
        known = self._ids(ids)
        await self._need_states()
        clock = asyncio.get_running_loop().time
        until, settle_at, pause = clock() + timeout_seconds, clock() + _SETTLE_EVERY, _POLL_FIRST
        while True:
            waited = await self._look(known)
            if waited.is_over or clock() >= until:
                return waited
            if clock() >= settle_at and "replay" in actor.scopes:
                settle_at = clock() + _SETTLE_EVERY
                await self._settle_orphans(known, self._act(actor, None))
            await asyncio.sleep(min(pause, max(0.0, until - clock())))
            pause = min(pause * 1.5, _POLL_MAX)

    async def reconcile(self, actor: Actor, ids: Sequence[int] | None = None) -> tuple[Orphan, ...]:
        """End letters whose row is gone: these, or the next 500 that have been gone longest."""
        actor.needs("replay", "end replays of unknown outcome")
        await self._need_states(outbox=True)
        act = self._act(actor, None)
        if ids is not None:
            return await self._settle_orphans(self._ids(ids), act)
        async with self._reading() as at:
            found = await next_orphans(*at, self._next_pass)
        ended = await self._end(found.ids, act)
        self._next_pass = found.next
        return ended

    async def _settle_orphans(self, ids: Sequence[int], act: Act) -> tuple[Orphan, ...]:
        found: list[int] = []
        async with self._reading() as at:
            for start in range(0, len(ids), _IDS_AT_ONCE):
                found += await orphans(*at, ids=ids[start : start + _IDS_AT_ONCE])
        return await self._end(found[:PASS_MAX], act)

    async def _end(self, ids: Sequence[int], act: Act) -> tuple[Orphan, ...]:
        ended: list[Orphan] = []
        for letter_id in ids:
            try:
                async with self._writing() as at:
                    orphan = await settle_orphan(*at, letter_id, act)
            except (RowLocked, RowRefused):
                # somebody is at it, or this letter cannot be written: the others must not wait
                continue
            if orphan is not None:
                ended.append(orphan)
        return tuple(ended)

    async def _first_ids(self, at: At, chosen: Selection, boundary: Boundary) -> list[int]:
        """The ids of a selection, as many as one pass ends."""
        found, _ = await walk(at.connection, chosen, boundary, 0, PASS_MAX)
        return found

    async def _look(self, ids: Sequence[int]) -> Waited:
        outcomes: dict[int, WaitedOutcome] = dict.fromkeys(ids, "waiting")
        notes: dict[int, str] = dict.fromkeys(ids, "the letter is gone")
        sent: dict[int, str] = {}
        async with self._reading() as at:
            for start in range(0, len(ids), _IDS_AT_ONCE):
                some = ids[start : start + _IDS_AT_ONCE]
                for letter in await reading.letters(*at, some, heavy=False):
                    outcomes[letter.id], note = _outcome(letter)
                    notes.pop(letter.id)
                    if note:
                        notes[letter.id] = note
                    if letter.state == REPLAYING and letter.replayed_as is not None:
                        sent[letter.replayed_as] = letter.queue
            # a pass may have gone to another queue than the letter's
            unserved = await self._unserved(at, await queues_of(*at, sent))
        return Waited(outcomes, unserved, notes)

    async def _unserved(self, at: At, queues: set[str]) -> tuple[str, ...] | None:
        seen = await workers_seen(*at)
        if seen is None:
            return None
        oldest = await reading.database_now(at.connection) - timedelta(seconds=LIVE_SECONDS)
        served = {queue for worker in seen if worker.seen_at >= oldest for queue in worker.queues}
        return tuple(sorted(queues - served))


def _outcome(letter: LetterView) -> tuple[WaitedOutcome, str | None]:
    if letter.state == REPLAYING:
        error = letter.error if _has_failed_since(letter) else None
        return "waiting", f"failed once more and is tried again: {error}" if error else None
    if letter.state != RESOLVED:
        return "failed_again", letter.failure
    if letter.keymate.status == "PROCESSED":
        return "succeeded", None
    return "waiting", f"how it ended is not known: {letter.resolution}"


def _has_failed_since(letter: LetterView) -> bool:
    """Whether the error of a letter on its way is that of this pass."""
    sent, failed = letter.state_changed_at, letter.last_failure_at
    return sent is not None and failed is not None and failed > sent
