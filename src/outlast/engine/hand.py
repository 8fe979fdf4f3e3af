"""What one subscription has in hand: every claimed row from its claim to the end of its settle.

An `InHand` is made by the claim room, started by the dispatch room and closed by the settle room.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from outlast.engine.options import SubscriptionOptions
from outlast.engine.queues import DueTimes, QueueRing
from outlast.model.delivery import Attempt, Delivery
from outlast.model.look import Expired
from outlast.model.outcome import Outcome
from outlast.policy.verdict import Verdicts

Deliver = Callable[[Delivery], Awaitable[Outcome]]

WAITING_VERDICTS_MAX = 2_000
"""Verdicts of one subscription that may wait for their settle before it stops claiming."""

DURATIONS_MAX = 200

_PACE_WEIGHT = 0.2


class InHand:
    """One row between its claim and its settle. Mutable: the engine's own record."""

    __slots__ = (
        "attempt",
        "cancelled_for",
        "deadline",
        "delivery",
        "duration",
        "in_flight",
        "lost",
        "needs_skip",
        "outcome",
        "reclaimed",
        "refreshed_at",
        "started_at",
        "subscription",
        "taken_at",
        "task",
        "unknown",
    )

    def __init__(
        self, delivery: Delivery, subscription: "Subscription", sent_at: float, *, reclaimed: bool
    ) -> None:
        self.delivery = delivery
        self.subscription = subscription
        self.taken_at = sent_at
        self.refreshed_at = sent_at
        self.deadline = sent_at + subscription.ttl
        self.reclaimed = reclaimed
        self.started_at: float | None = None
        self.duration: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.outcome: Outcome | None = None
        self.attempt: Attempt | None = None
        self.cancelled_for: str | None = None
        self.in_flight = False
        self.lost = False
        self.unknown = False
        self.needs_skip = False


class Reclaims:
    """The reclaimed rows in hand of all subscriptions with `max_deliveries`: at most one, for it
    may be the one that kills its worker, and then it takes no other along.
    """

    def __init__(self, left: Callable[[], None] = lambda: None) -> None:
        self.rows: set[InHand] = set()
        self._left = left

    def close(self, entry: InHand) -> None:
        """It left the hand: the next one may come."""
        if entry in self.rows:
            self.rows.discard(entry)
            self._left()


class Subscription:
    """One subscriber of an engine: its options, its rows, and when it wants to claim."""

    def __init__(
        self,
        name: str,
        options: SubscriptionOptions,
        deliver: Deliver,
        verdicts: Verdicts,
        reclaims: Reclaims | None = None,
    ) -> None:
        self.name = name
        self.options = options
        self.deliver = deliver
        self.verdicts = verdicts
        self.ttl = options.lease_ttl_seconds
        self.queues = QueueRing(options.queues)
        self.due = DueTimes()
        # rows
        self.hand: set[InHand] = set()
        self.ready: deque[InHand] = deque()
        self.reclaimed: deque[InHand] = deque()
        self.abandoned: deque[Expired] = deque()
        self.taking = 0
        self.claiming = 0
        """Statements under way that may bring rows."""
        self.running = 0
        self.reclaims = reclaims or Reclaims()
        # when to claim
        self.interval = options.min_fetch_interval
        self.claim_at = 0.0
        self.peek_at = 0.0
        self.walk_at = 0.0
        self.refresh_at = 0.0
        self.instant_came = False
        """A due instant was seen: when its rows are claimed, the next one is to be found."""
        self.pace: float | None = None
        self.durations: deque[float] = deque(maxlen=DURATIONS_MAX)
        """What the newest handlers took."""
        self.prefetching = options.max_deliveries != 1
        # life
        self.stopping = False
        self.closed = False
        self.workers: set[asyncio.Task[None]] = set()
        self.short_handed = False
        """A worker ended before its time."""
        self.idle = asyncio.Event()
        self._sleepers: deque[asyncio.Future[None]] = deque()

    # -- rows

    @property
    def unstarted(self) -> int:
        """Rows that wait for a slot."""
        return len(self.ready) + len(self.reclaimed)

    @property
    def reserved(self) -> int:
        """Slots kept free for rows whose lease expired: they skip the prefetch."""
        if not self.abandoned:
            return self.taking
        if self.options.max_deliveries is None:
            wanted = min(len(self.abandoned), self.options.max_workers)
        else:
            wanted = min(len(self.abandoned), max(0, 1 - len(self.reclaims.rows) - self.taking))
        return wanted + self.taking

    def take(
        self, delivery: Delivery, sent_at: float, *, now: float, reclaimed: bool = False
    ) -> InHand:
        """Put a claimed row in hand. Its lease is as old as the claim, its wait begins now."""
        entry = InHand(delivery, self, sent_at, reclaimed=reclaimed)
        entry.taken_at = now
        self.hand.add(entry)
        if reclaimed:
            if self.options.max_deliveries is not None:
                self.reclaims.rows.add(entry)
            self.reclaimed.append(entry)
        else:
            self.ready.append(entry)
        return entry

    def close(self, entry: InHand) -> None:
        """The row leaves the hand."""
        self.hand.discard(entry)
        if entry.reclaimed:
            self.reclaims.close(entry)
        if self.is_idle:
            self.idle.set()

    @property
    def is_idle(self) -> bool:
        """Nothing in hand, and nothing on its way into it."""
        return not self.hand and not self.claiming

    @contextmanager
    def claim_under_way(self) -> Iterator[None]:
        """A stop waits for the answer: its rows would stay leased otherwise."""
        self.claiming += 1
        try:
            yield
        finally:
            self.claiming -= 1
            if self.is_idle:
                self.idle.set()

    def next_unstarted(self) -> InHand | None:
        """The next row for a free slot, if one may start now."""
        if self.reclaimed:
            return self.reclaimed.popleft()
        if self.ready and self.running + self.reserved < self.options.max_workers:
            return self.ready.popleft()
        return None

    # -- room

    @property
    def waits_for_settles(self) -> bool:
        """Whether too many verdicts wait for their settle to claim more."""
        return len(self.hand) - self.unstarted - self.running >= WAITING_VERDICTS_MAX

    def room(self) -> int:
        """How many rows the next claim may take."""
        options = self.options
        if self.waits_for_settles:
            return 0
        unstarted, batch = self.unstarted, options.fetch_batch_size
        if not self.prefetching:
            free = options.max_workers - self.running - self.reserved - unstarted
            return max(0, min(batch, free))
        if self.pace is None:
            # nothing has ended yet: what fills the slots says how fast the handlers are
            return batch if not unstarted and self.running < options.max_workers else 0
        return batch if unstarted <= batch else 0

    def take_over_room(self) -> int:
        """How many expired rows a free slot could start at once."""
        free = self.options.max_workers - self.running - len(self.reclaimed) - self.taking
        return max(0, min(self.reserved - self.taking, free))

    def paced(self, seconds: float) -> None:
        """A handler ended after so many seconds: are handlers fast enough to prefetch for?"""
        self.durations.append(seconds)
        pace = self.pace
        pace = seconds if pace is None else pace + _PACE_WEIGHT * (seconds - pace)
        self.pace = pace
        if not self.prefetching and self.options.max_deliveries != 1:
            batch = pace * self.options.fetch_batch_size / self.options.max_workers
            self.prefetching = batch <= self.options.unstarted_seconds_max / 2

    # -- sleeping workers

    async def sleep(self) -> None:
        """A worker waits for a row."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._sleepers:
                self._sleepers.remove(future)
            elif not future.cancelled():
                # roused, and cancelled before it could act on it: another one has to
                self.rouse(1)
            raise

    def rouse(self, count: int) -> None:
        """Wake at most so many sleeping workers."""
        while count > 0 and self._sleepers:
            future = self._sleepers.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1
