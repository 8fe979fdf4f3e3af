"""Claim: the loop of the claims line. Comes in: wake-ups, due instants, free room. Goes out: rows
in hand. One statement at a time, subscriptions in turn; a look when one is due. Never claims more
than a subscription has room for, and never loses sight of a claim whose answer was lost.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

from outlast.engine.clock import DatabaseClock
from outlast.engine.hand import Subscription
from outlast.engine.look import Looker
from outlast.engine.reconnect import Reconnector
from outlast.engine.tell import Teller
from outlast.model.delivery import Claim
from outlast.model.errors import Disconnected, OutcomeUnknown, StoreFailure
from outlast.model.look import Want
from outlast.policy import jitter
from outlast.ports.store import Store

_READ_BACK_PAUSE = 1.0
_READ_BACKS_MAX = 5
_INTERVAL_JITTER = 0.2
_SETTLES_PAUSE = 0.05
_NO_SPIN = 0.001


class Claimer:
    """Claims for every subscription of one engine."""

    def __init__(
        self,
        store: Store,
        subscriptions: Callable[[], Sequence[Subscription]],
        *,
        taken: Callable[[Subscription, int], None],
        give_back: Callable[[Subscription, float], None],
        timeout: Callable[[], float],
        clock: DatabaseClock,
        reconnector: Reconnector,
        tell: Teller,
        logger: logging.Logger,
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._taken = taken
        self._give_back = give_back
        self._timeout = timeout
        self._clock = clock
        self._reconnector = reconnector
        self._tell = tell
        self._logger = logger
        self._looker = Looker(store, subscriptions, timeout)
        self._bell = asyncio.Event()
        self._turn = 0
        self._failing: dict[Subscription, float] = {}
        self._lost_claims: list[_LostClaim] = []

    # -- what others call

    def nudge(self) -> None:
        """Something changed: a slot is free, a subscription came or goes."""
        self._bell.set()

    def wake(self, queue: str | None) -> None:
        """A wake-up of the database: one claim for who serves the queue."""
        for subscription in self._subscriptions():
            if queue is None:
                subscription.queues.begin_round()
                self._bell.set()
            elif queue in subscription.queues:
                subscription.queues.heat(queue)
                self._bell.set()

    def peek_soon(self) -> None:
        """Another connection committed something: look for due rows before claiming."""
        now = asyncio.get_running_loop().time()
        for subscription in self._subscriptions():
            subscription.peek_at = min(subscription.peek_at, now)
        self._bell.set()

    # -- the loop

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._bell.clear()
            try:
                if not await self._act():
                    await self._pause()
            except (Disconnected, OutcomeUnknown) as failure:
                await self._recover(failure)
            except Exception:  # a defect here must not end claiming
                self._logger.exception("claiming failed unexpectedly")
                await asyncio.sleep(1.0)

    async def _recover(self, failure: StoreFailure) -> None:
        if not (isinstance(failure, OutcomeUnknown) and failure.timed_out):
            await self._reconnector.restore("claims", failure)
            # wake-ups were missed meanwhile
            self.wake(None)
        now = asyncio.get_running_loop().time()
        for lost in self._lost_claims:
            lost.ask_at = min(lost.ask_at, now)

    async def _act(self) -> bool:
        """One statement, if one is to be sent."""
        now = asyncio.get_running_loop().time()
        lost = next((c for c in self._lost_claims if c.ask_at <= now), None)
        if lost is not None:
            with lost.subscription.claim_under_way():
                await self._read_back(lost)
            return True
        if await self._looker.look(now):
            return True
        subscriptions = self._subscriptions()
        for step in range(len(subscriptions)):
            subscription = subscriptions[(self._turn + step) % len(subscriptions)]
            if subscription.short_handed:
                subscription.short_handed = False
                self._taken(subscription, 0)
            if subscription.stopping:
                continue
            for queue in subscription.due.pop_due(now):
                subscription.queues.heat(queue)
                subscription.instant_came = True
            self._release_unstarted(subscription, now)
            if self._failing.get(subscription, 0.0) > now:
                continue
            if subscription.take_over_room() > 0:
                self._turn += step + 1
                with subscription.claim_under_way():
                    await self._take_over(subscription)
                return True
            if self._wants(subscription, now) and (room := subscription.room()) > 0:
                self._turn += step + 1
                with subscription.claim_under_way():
                    await self._claim(subscription, room)
                return True
        return False

    @staticmethod
    def _wants(subscription: Subscription, now: float) -> bool:
        queues = subscription.queues
        if now >= subscription.claim_at and not queues.mid_round:
            queues.begin_round()
        return queues.hot or queues.mid_round

    async def _pause(self) -> None:
        """Until a wake-up, or the next instant at which something is due."""
        now = asyncio.get_running_loop().time()
        at = self._looker.next_at()
        for subscription in self._subscriptions():
            if subscription.stopping:
                continue
            at = min(
                at, max(self._failing.get(subscription, 0.0), self._next_at(subscription, now))
            )
        for lost in self._lost_claims:
            at = min(at, lost.ask_at)
        if at <= now:
            # nothing could act on it in this turn: never spin
            await asyncio.sleep(_NO_SPIN)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(at if at != math.inf else None):
                await self._bell.wait()

    @staticmethod
    def _next_at(subscription: Subscription, now: float) -> float:
        at = float("inf")
        for waiting in (subscription.ready, subscription.reclaimed):
            if waiting:
                at = min(at, waiting[0].taken_at + subscription.options.unstarted_seconds_max)
        if (due := subscription.due.next_at()) is not None:
            at = min(at, due)
        if subscription.room() > 0:
            at = min(at, subscription.claim_at)
        elif subscription.waits_for_settles:
            at = min(at, now + _SETTLES_PAUSE)
        return at

    # -- statements

    async def _claim(self, subscription: Subscription, room: int) -> None:
        queues = subscription.queues.next_chunk()
        quota = max(1, min(room, 4 * room // len(queues)))
        # the one place where a lower bound per queue would enter the claim
        wanted = [Want(queue, quota) for queue in queues]
        token, sent_at = uuid4(), asyncio.get_running_loop().time()
        try:
            claim = await self._store.claim(wanted, room, token, self._timeout())
        except OutcomeUnknown:
            self._lost_claims.append(_LostClaim(subscription, queues, token, sent_at))
            subscription.queues.begin_round()
            raise
        except Disconnected:
            subscription.queues.begin_round()
            raise
        except StoreFailure as failure:
            self._back_off(subscription, failure)
            subscription.queues.begin_round()
            return
        self._recovered(subscription)
        self._arrange_next(subscription, claim, wanted, room)
        self._receive(subscription, claim, sent_at)

    def _arrange_next(
        self, subscription: Subscription, claim: Claim, wanted: Sequence[Want], room: int
    ) -> None:
        options, count = subscription.options, len(claim.rows)
        now = asyncio.get_running_loop().time()
        if count >= room:
            subscription.queues.begin_round()
        elif count >= wanted[0].quota:
            counts: dict[str, int] = {}
            for row in claim.rows:
                counts[row.queue] = counts.get(row.queue, 0) + 1
            for queue, number in counts.items():
                if number >= wanted[0].quota:
                    subscription.queues.heat(queue)
        if subscription.instant_came and count < room:
            subscription.instant_came = False
            self._looker.look_again(subscription, now)
        if count:
            subscription.interval = options.min_fetch_interval
            subscription.claim_at = now + subscription.interval
        elif not subscription.queues.mid_round:
            subscription.claim_at = now + jitter.spread(subscription.interval, _INTERVAL_JITTER)
            # the jitter may not shorten the floor nor pass the ceiling
            least, most = options.min_fetch_interval, options.max_fetch_interval
            subscription.claim_at = min(max(subscription.claim_at, now + least), now + most)
            subscription.interval = min(subscription.interval * 2, most)

    async def _take_over(self, subscription: Subscription) -> None:
        count = subscription.take_over_room()
        rows = [subscription.abandoned.popleft() for _ in range(count)]
        token, sent_at = uuid4(), asyncio.get_running_loop().time()
        subscription.taking = count
        try:
            claim = await self._store.take_over(rows, token, self._timeout())
        except OutcomeUnknown:
            queues = list(subscription.options.queues)
            self._lost_claims.append(
                _LostClaim(subscription, queues, token, sent_at, reclaimed=True)
            )
            raise
        except Disconnected:
            raise
        except StoreFailure as failure:
            self._back_off(subscription, failure)
            return
        finally:
            subscription.taking = 0
            # slots that were kept free may go on with the prefetched rows
            subscription.rouse(subscription.options.max_workers)
        self._recovered(subscription)
        self._receive(subscription, claim, sent_at, reclaimed=True)

    async def _read_back(self, lost: "_LostClaim") -> None:
        final = False
        try:
            claim, final = await self._store.read_back(lost.queues, lost.token, self._timeout())
        except (Disconnected, OutcomeUnknown):
            raise
        except StoreFailure as failure:
            self._logger.warning("a lost claim could not be read back: %s", failure)
        else:
            # a row comes into hand once under its token, whatever became of it since
            rows = [row for row in claim.rows if row.id not in lost.found]
            now = None if lost.found else claim.now
            lost.found.update(row.id for row in rows)
            self._receive(
                lost.subscription, Claim(rows, now), lost.sent_at, reclaimed=lost.reclaimed
            )
        lost.asked += 1
        lost.ask_at = asyncio.get_running_loop().time() + _READ_BACK_PAUSE
        if final or lost.asked >= _READ_BACKS_MAX:
            self._lost_claims.remove(lost)

    def _receive(
        self, subscription: Subscription, claim: Claim, sent_at: float, *, reclaimed: bool = False
    ) -> None:
        if claim.now is not None:
            self._clock.set(claim.now, sent_at)
        now = asyncio.get_running_loop().time()
        for row in claim.rows:
            subscription.take(row, sent_at, now=now, reclaimed=reclaimed)
        self._tell.fetched(subscription, len(claim.rows))
        if claim.rows:
            self._taken(subscription, len(claim.rows))
        if subscription.stopping:
            self._give_back(subscription, math.inf)

    # -- what may not wait, what may not go on

    def _release_unstarted(self, subscription: Subscription, now: float) -> None:
        """Rows that others could have started by now go back to them."""
        latest = now - subscription.options.unstarted_seconds_max
        for waiting in (subscription.ready, subscription.reclaimed):
            if waiting and waiting[0].taken_at <= latest:
                subscription.prefetching = False
                self._give_back(subscription, latest)

    def _back_off(self, subscription: Subscription, failure: StoreFailure) -> None:
        now = asyncio.get_running_loop().time()
        if subscription not in self._failing:
            self._logger.warning(
                "claims of %s fail; trying again with back-off up to max_fetch_interval: %s",
                subscription.name,
                failure,
            )
            subscription.interval = subscription.options.min_fetch_interval
        self._failing[subscription] = now + jitter.spread(subscription.interval, _INTERVAL_JITTER)
        subscription.interval = min(
            subscription.interval * 2, subscription.options.max_fetch_interval
        )

    def _recovered(self, subscription: Subscription) -> None:
        if self._failing.pop(subscription, None) is not None:
            self._logger.warning("claims of %s work again", subscription.name)


class _LostClaim:
    """A claim whose answer was lost: its rows are ours, if it took effect."""

    __slots__ = (
        "ask_at",
        "asked",
        "found",
        "queues",
        "reclaimed",
        "sent_at",
        "subscription",
        "token",
    )

    def __init__(
        self,
        subscription: Subscription,
        queues: Sequence[str],
        token: UUID,
        sent_at: float,
        *,
        reclaimed: bool = False,
    ) -> None:
        self.subscription = subscription
        self.queues = queues
        self.token = token
        self.sent_at = sent_at
        self.reclaimed = reclaimed
        self.found: set[int] = set()
        self.asked = 0
        self.ask_at = sent_at
