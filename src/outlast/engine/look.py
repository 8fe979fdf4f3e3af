"""Look: the next due instant of each queue (*peek*) and the leases that have expired (*walk*).

Shared by the subscriptions that are due together, at most 5 % of the time, never more than
1,000 leases a statement. Finds; takes nothing: the claim room acts on what it leaves behind.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from outlast.engine.hand import Subscription
from outlast.engine.queues import QUEUES_PER_STATEMENT
from outlast.model.errors import Disconnected, OutcomeUnknown, StoreFailure
from outlast.model.look import Expired, Sight, Walked, WalkStep
from outlast.ports.store import Store

LEASES_PER_WALK = 1_000
ABANDONED_MAX = 1_000
"""Expired rows a subscription remembers before its walk waits for slots."""

_DUTY = 19.0
"""After a look, at least this many times its duration without one: 5 % of the time."""
_PAUSE_MOST = 10.0
"""And after one that failed at most this long: its duration says nothing about the next."""
_AGAIN_SECONDS = 0.02

Place = tuple[datetime, int]


class _Round:
    """Where one subscription's peek and walk stand."""

    __slots__ = ("next_expiry", "peek", "peek_began", "walk", "walk_began", "walk_served")

    def __init__(self) -> None:
        self.peek: deque[str] = deque()
        self.peek_began = 0.0
        self.walk: deque[tuple[str, Place | None]] = deque()
        self.walk_began = False
        self.walk_served = False
        """Whether the last chunk had a place for it."""
        self.next_expiry: float | None = None


class Looker:
    """Looks for every subscription of one engine."""

    def __init__(
        self,
        store: Store,
        subscriptions: Callable[[], Sequence[Subscription]],
        timeout: Callable[[], float],
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._timeout = timeout
        self._rounds: dict[Subscription, _Round] = {}
        self._allowed_at = 0.0

    def look_again(self, subscription: Subscription, now: float) -> None:
        """What was due is claimed: the next instant is not known yet."""
        subscription.peek_at = min(subscription.peek_at, now + _AGAIN_SECONDS)

    def next_at(self) -> float:
        """When the next look is due."""
        wanted = min(
            (
                at
                for s in self._subscriptions()
                if not s.stopping
                for at in (s.peek_at, self._walk_at(s))
            ),
            default=float("inf"),
        )
        return max(wanted, self._allowed_at) if wanted != float("inf") else wanted

    @staticmethod
    def _walk_at(subscription: Subscription) -> float:
        if len(subscription.abandoned) >= ABANDONED_MAX:
            return float("inf")
        return subscription.walk_at

    async def look(self, now: float) -> bool:
        """One look, if one is due."""
        if now < self._allowed_at:
            return False
        live = [s for s in self._subscriptions() if not s.stopping]
        self._forget(live)
        # who has waited longest goes first, else many queues of one would keep others waiting
        peek_due = sorted((s for s in live if s.peek_at <= now), key=lambda s: s.peek_at)
        peek, peekers = self._peek_chunk(peek_due, now)
        walkers = sorted((s for s in live if self._walk_at(s) <= now), key=lambda s: s.walk_at)
        steps, owners = self._walk_chunk(walkers)
        if not peek and not steps:
            return False
        began = asyncio.get_running_loop().time()
        try:
            sight = await self._store.look(peek, steps, self._timeout())
        except (Disconnected, OutcomeUnknown) as failure:
            self._put_back(peekers, steps, owners)
            if isinstance(failure, OutcomeUnknown) and failure.timed_out:
                # claims have their turn before it is tried again
                ended = asyncio.get_running_loop().time()
                self._allowed_at = ended + min(_DUTY * (ended - began), _PAUSE_MOST)
            raise
        except StoreFailure:
            # claims fail alike and tell; looking goes on at the pace of the subscriptions
            self._put_back(peekers, steps, owners)
            for subscription in live:
                subscription.peek_at = now + subscription.options.min_fetch_interval
                subscription.walk_at = now + subscription.options.max_fetch_interval
            return True
        ended = asyncio.get_running_loop().time()
        self._allowed_at = ended + _DUTY * (ended - began)
        self._seen_due(sight, peekers, ended)
        self._seen_walk(sight, owners, walkers, ended)
        return True

    def _forget(self, live: Sequence[Subscription]) -> None:
        for gone in set(self._rounds).difference(live):
            del self._rounds[gone]
        for subscription in live:
            if subscription not in self._rounds:
                self._rounds[subscription] = _Round()

    # -- peek

    def _peek_chunk(
        self, due: Sequence[Subscription], now: float
    ) -> tuple[list[str], dict[Subscription, list[str]]]:
        chunk: dict[str, None] = {}
        peekers: dict[Subscription, list[str]] = {}
        for subscription in due:
            state = self._rounds[subscription]
            if not state.peek:
                state.peek.extend(subscription.options.queues)
                state.peek_began = now
            taken = peekers[subscription] = []
            while state.peek and len(chunk) < QUEUES_PER_STATEMENT:
                queue = state.peek.popleft()
                chunk[queue] = None
                taken.append(queue)
            if not state.peek:
                subscription.peek_at = state.peek_began + subscription.options.min_fetch_interval
        return list(chunk), peekers

    @staticmethod
    def _seen_due(sight: Sight, peekers: dict[Subscription, list[str]], now: float) -> None:
        for subscription, queues in peekers.items():
            for queue in queues:
                for seconds in sight.due.get(queue, ()):
                    if seconds <= 0:
                        subscription.queues.heat(queue)
                        subscription.instant_came = True
                    else:
                        subscription.due.add(now + seconds, queue)

    # -- walk

    def _walk_chunk(
        self, due: Sequence[Subscription]
    ) -> tuple[list[WalkStep], dict[str, Subscription]]:
        owners: dict[str, Subscription] = {}
        places: list[tuple[str, Place | None]] = []
        for subscription in due:
            state = self._rounds[subscription]
            if not state.walk and not state.walk_began:
                state.walk.extend((queue, None) for queue in subscription.options.queues)
                state.walk_began = True
            state.walk_served = len(places) < QUEUES_PER_STATEMENT
            while state.walk and len(places) < QUEUES_PER_STATEMENT:
                queue, after = state.walk.popleft()
                other = owners.get(queue)
                if other is not None:
                    # served twice in this process: the longer TTL decides
                    owners[queue] = max(other, subscription, key=lambda s: s.ttl)
                    continue
                owners[queue] = subscription
                places.append((queue, after))
        limit = max(1, LEASES_PER_WALK // max(1, len(places)))
        return [WalkStep(q, owners[q].ttl, after, limit) for q, after in places], owners

    def _put_back(
        self,
        peekers: dict[Subscription, list[str]],
        steps: Sequence[WalkStep],
        owners: dict[str, Subscription],
    ) -> None:
        for subscription, queues in peekers.items():
            self._rounds[subscription].peek.extendleft(reversed(queues))
            subscription.peek_at = 0.0
        for step in reversed(steps):
            self._rounds[owners[step.queue]].walk.appendleft((step.queue, step.after))

    def _seen_walk(
        self,
        sight: Sight,
        owners: dict[str, Subscription],
        walkers: Sequence[Subscription],
        now: float,
    ) -> None:
        for walked in sight.walked:
            subscription = owners[walked.queue]
            self._remember(subscription, walked)
            state = self._rounds[subscription]
            if walked.after is not None:
                state.walk.append((walked.queue, walked.after))
            if walked.next_expiry_seconds is not None:
                at = now + max(0.0, walked.next_expiry_seconds)
                state.next_expiry = at if state.next_expiry is None else min(state.next_expiry, at)
        for subscription in walkers:
            if self._rounds[subscription].walk_served:
                self._arrange_walk(subscription, now)

    def _arrange_walk(self, subscription: Subscription, now: float) -> None:
        state = self._rounds[subscription]
        floor = now + subscription.options.min_fetch_interval
        if state.walk:
            subscription.walk_at = floor
            return
        at = now + subscription.interval
        if state.next_expiry is not None:
            at = min(at, max(state.next_expiry + _AGAIN_SECONDS, floor))
        subscription.walk_at = at
        state.walk_began, state.next_expiry = False, None

    @staticmethod
    def _remember(subscription: Subscription, walked: Walked) -> None:
        if not walked.expired or subscription.stopping:
            return
        known = {entry.delivery.id for entry in subscription.hand}
        known.update(expired.id for expired in subscription.abandoned)
        subscription.abandoned.extend(
            Expired(row_id, subscription.ttl) for row_id in walked.expired if row_id not in known
        )
