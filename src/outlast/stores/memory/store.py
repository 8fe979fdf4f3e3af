"""One outbox in memory. Comes in: the calls of `ports.Store`, and inserts. Goes out: the same
answers a database gives. Every operation is one step of the event loop, so it is atomic.
Time comes from the clock it is given; nothing here may sleep.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from outlast.model.dead_letter import Letter
from outlast.model.delivery import Answer, Claim, Pair, RetryEntry
from outlast.model.look import Expired, Sight, Walked, WalkStep, Want, peek_depth
from outlast.model.replay_pass import Delivered, Failed, Retried
from outlast.model.worker import FORGOTTEN_MAX, KEPT_DAYS, WorkerReport
from outlast.ports.store import Line, Wake
from outlast.stores.memory.letters import MemoryLetters
from outlast.stores.memory.rows import MemoryRow

T = TypeVar("T", Letter, Delivered, Failed)

_LAST_INSTANT = datetime(9999, 12, 31, tzinfo=UTC)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def later(instant: datetime, seconds: float) -> datetime:
    """The instant plus a delay, never past the last one a database can hold."""
    try:
        return min(instant + timedelta(seconds=seconds), _LAST_INSTANT)
    except OverflowError:
        return _LAST_INSTANT


class MemoryStore:
    """The store of tests, and of the simulation."""

    lines: tuple[Line, ...] = ("claims", "settles", "letters")
    change_poll_seconds: float | None = None

    def __init__(
        self,
        clock: Callable[[], datetime] = _utc_now,
        *,
        dead_letters: bool = True,
        workers: bool = False,
    ) -> None:
        self.clock = clock
        self.has_dead_letters = self.has_replays = dead_letters
        self.worker_table = "outbox_worker" if workers else None
        self.worker_rows: dict[str, dict[str, Any]] = {}
        self.rows: list[MemoryRow] = []
        self.dlq_rows: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self._letters = MemoryLetters(self.dlq_rows, self.history)
        self._ids = 0
        self._wake: Wake | None = None

    # -- the application's side

    def insert(
        self,
        *,
        queue: str,
        payload: bytes,
        headers: dict[str, Any] | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: str = "ignore",
    ) -> int | None:
        """One row, as a committed publish leaves it."""
        now = self.clock()
        due = activate_at or (later(now, activate_in.total_seconds()) if activate_in else now)
        if timer_id is not None and (live := self._timer(queue, timer_id)) is not None:
            return self._conflict(live, payload, headers, due, timer_conflict)
        self._ids += 1
        self.rows.append(
            MemoryRow(
                id=self._ids,
                queue=queue,
                payload=payload,
                headers=headers,
                created_at=now,
                next_attempt_at=due,
                timer_id=timer_id,
            )
        )
        if due <= now:
            self.notify(queue)
        return self._ids

    def _timer(self, queue: str, timer_id: str) -> MemoryRow | None:
        return next((r for r in self.rows if r.queue == queue and r.timer_id == timer_id), None)

    @staticmethod
    def _conflict(
        live: MemoryRow,
        payload: bytes,
        headers: dict[str, Any] | None,
        due: datetime,
        timer_conflict: str,
    ) -> int | None:
        if timer_conflict != "extend" or live.acquired_token is not None:
            return None
        if due > live.next_attempt_at:
            live.payload, live.headers, live.next_attempt_at = payload, headers, due
            live.attempts_count = 0
            live.first_attempt_at = live.last_attempt_at = None
        return live.id

    def cancel_timer(self, *, queue: str, timer_id: str) -> bool:
        """Delete the timer unless it is leased."""
        live = self._timer(queue, timer_id)
        if live is None or live.acquired_token is not None:
            return False
        self.rows.remove(live)
        return True

    def notify(self, queue: str | None) -> None:
        """A wake-up, as the database would send it."""
        if self._wake is not None:
            self._wake(queue)

    # -- the engine's side

    async def open(self, wake: Wake) -> None:
        """Ready at once."""
        self._wake = wake

    async def close(self) -> None:
        """Nothing to close but the ear."""
        self._wake = None

    async def reconnect(self, line: Line) -> None:
        """Always there."""

    async def changed(self) -> bool:
        """Memory has wake-ups; it is never polled."""
        return False

    async def claim(
        self,
        wanted: Sequence[Want],
        limit: int,
        token: UUID,
        timeout: float,
    ) -> Claim:
        """Lease due rows, queue by queue."""
        # a database would let other tasks run meanwhile
        await asyncio.sleep(0)
        now = self.clock()
        found: list[MemoryRow] = []
        for want in wanted:
            due = sorted(
                (
                    r
                    for r in self.rows
                    if r.queue == want.queue
                    and r.acquired_token is None
                    and r.next_attempt_at <= now
                ),
                key=_order,
            )
            found += due[: min(want.quota, limit - len(found))]
            if len(found) >= limit:
                break
        found.sort(key=_order)
        return Claim([r.lease(token, now) for r in found], now)

    async def read_back(
        self,
        queues: Sequence[str],
        token: UUID,
        timeout: float,
    ) -> tuple[Claim, bool]:
        """What the token holds."""
        now = self.clock()
        rows = [r for r in self.rows if r.acquired_token == token and r.queue in queues]
        rows.sort(key=_order)
        return Claim([r.in_hand(token, r.acquired_at or now) for r in rows], now), True

    async def take_over(
        self,
        rows: Sequence[Expired],
        token: UUID,
        timeout: float,
    ) -> Claim:
        """Lease expired rows anew."""
        now = self.clock()
        ttls = {e.id: e.ttl_seconds for e in rows}
        found = [r for r in self.rows if r.id in ttls and _expired(r, ttls[r.id], now)]
        return Claim([r.lease(token, now) for r in sorted(found, key=_order)], now)

    async def look(
        self,
        peek: Sequence[str],
        walk: Sequence[WalkStep],
        timeout: float,
    ) -> Sight:
        """Heads of queues, and one chunk of the walk."""
        await asyncio.sleep(0)
        now = self.clock()
        due: dict[str, list[float]] = {}
        asked, depth = set(peek), peek_depth(len(peek))
        for row in self.rows:
            if row.acquired_token is None and row.queue in asked:
                due.setdefault(row.queue, []).append((row.next_attempt_at - now).total_seconds())
        due = {queue: sorted(instants)[:depth] for queue, instants in due.items()}
        return Sight(due, tuple(self._walk(step, now) for step in walk), now)

    def _walk(self, step: WalkStep, now: datetime) -> Walked:
        leased = sorted(
            (
                r
                for r in self.rows
                if r.queue == step.queue
                and r.acquired_token is not None
                and (step.after is None or _order(r) > step.after)
            ),
            key=_order,
        )
        chunk = leased[: step.limit]
        expired = tuple(r.id for r in chunk if _expired(r, step.ttl_seconds, now))
        waits = [
            step.ttl_seconds - (now - r.acquired_at).total_seconds()
            for r in chunk
            if r.acquired_at is not None and r.id not in expired
        ]
        finished = len(leased) <= step.limit
        return Walked(
            step.queue,
            expired,
            min(waits, default=None),
            None if finished or not chunk else _order(chunk[-1]),
        )

    async def extend(
        self,
        pairs: Sequence[Pair],
        timeout: float,
        *,
        skip: bool = False,
    ) -> Answer:
        """Begin the leases anew."""
        now = self.clock()
        held, lost = self._held(pairs)
        for row in held:
            row.acquired_at = now
        return Answer(lost)

    async def ack(
        self,
        pairs: Sequence[Pair],
        timeout: float,
        *,
        skip: bool = False,
    ) -> Answer:
        """Delete."""
        held, lost = self._held(pairs)
        self._remove(held)
        return Answer(lost)

    async def retry(
        self,
        entries: Sequence[RetryEntry],
        timeout: float,
        *,
        skip: bool = False,
    ) -> Answer:
        """Reschedule."""
        now = self.clock()
        lost: list[Pair] = []
        for entry in entries:
            held, missing = self._held([(entry.id, entry.token)])
            lost += missing
            for row in held:
                row.reschedule(later(now, entry.delay_seconds), entry.attempt)
        return Answer(tuple(lost))

    async def release(
        self,
        pairs: Sequence[Pair],
        timeout: float,
        *,
        skip: bool = False,
    ) -> Answer:
        """Give back, uncounted."""
        held, lost = self._held(pairs)
        for row in held:
            row.unlease()
            row.deliveries_count = max(0, row.deliveries_count - 1)
        return Answer(lost)

    async def postpone(
        self, pairs: Sequence[Pair], seconds: float, timeout: float, *, skip: bool = False
    ) -> Answer:
        """Give back, uncounted, for later."""
        held, _ = self._held(pairs)
        answer = await self.release(pairs, timeout)
        for row in held:
            row.next_attempt_at = later(self.clock(), seconds)
        return answer

    async def bury(
        self, letters: Sequence[Letter], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Delete and write the dead letters."""
        return self._end(letters, self._letters.bury)

    async def resolve(
        self, passes: Sequence[Delivered], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Delete and resolve."""
        return self._end(passes, self._letters.resolve)

    async def refresh(
        self, passes: Sequence[Retried], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Reschedule and show the failure."""
        now = self.clock()
        lost: list[Pair] = []
        for ended in passes:
            held, missing = self._held([(ended.id, ended.token)])
            lost += missing
            for row in held:
                row.reschedule(later(now, ended.delay_seconds), ended.attempt)
                self._letters.refresh(row, ended, now)
        return Answer(tuple(lost))

    async def reopen(
        self, passes: Sequence[Failed], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Delete and open again."""
        return self._end(passes, self._letters.reopen)

    async def recheck_letters(self, timeout: float) -> None:
        """Memory has every column."""

    async def report(self, worker: WorkerReport, timeout: float) -> None:
        """It was seen now."""
        now = self.clock()
        row = self.worker_rows.setdefault(
            worker.instance, {"started_at": now - timedelta(seconds=worker.running_seconds)}
        )
        row.update(version=worker.version, seen_at=now, report=worker.told)

    async def forget_workers(self, timeout: float) -> int:
        """Some of those that were seen too long ago."""
        oldest = self.clock() - timedelta(days=KEPT_DAYS)
        gone = [key for key, row in self.worker_rows.items() if row["seen_at"] < oldest]
        for key in gone[:FORGOTTEN_MAX]:
            del self.worker_rows[key]
        return len(gone[:FORGOTTEN_MAX])

    def _end(self, items: Sequence[T], write: Callable[[MemoryRow, T, datetime], None]) -> Answer:
        now = self.clock()
        lost: list[Pair] = []
        for item in items:
            held, missing = self._held([(item.id, item.token)])
            lost += missing
            for row in held:
                write(row, item, now)
            self._remove(held)
        return Answer(tuple(lost))

    def _held(self, pairs: Iterable[Pair]) -> tuple[list[MemoryRow], tuple[Pair, ...]]:
        by_id = {r.id: r for r in self.rows}
        held: list[MemoryRow] = []
        lost: list[Pair] = []
        for pair in pairs:
            row = by_id.get(pair[0])
            if row is not None and row.acquired_token == pair[1]:
                held.append(row)
            else:
                lost.append(pair)
        return held, tuple(lost)

    def _remove(self, rows: Iterable[MemoryRow]) -> None:
        gone = {r.id for r in rows}
        if gone:
            # in place: `rows` is a public attribute of the testing kit
            self.rows[:] = [r for r in self.rows if r.id not in gone]


def _order(row: MemoryRow) -> tuple[datetime, int]:
    return (row.next_attempt_at, row.id)


def _expired(row: MemoryRow, ttl_seconds: float, now: datetime) -> bool:
    if row.acquired_at is None:
        return False
    return abs((now - row.acquired_at).total_seconds()) > ttl_seconds
