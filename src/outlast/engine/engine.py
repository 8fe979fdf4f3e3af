"""The engine of one outbox: the rooms put together, started and stopped.

Comes in: a store, options, subscriptions with their `deliver`. Goes out: settled rows and events.
Whoever embeds it calls `subscribe`, `start`, `stop`; user code that could raise is wrapped before.
"""

import asyncio
import logging
from collections.abc import Coroutine
from datetime import datetime

from outlast.engine.claim import Claimer
from outlast.engine.clock import DatabaseClock
from outlast.engine.dispatch import Dispatcher, next_attempt
from outlast.engine.drain import abandon, cancel_started, drain
from outlast.engine.guard import ReplayGuard
from outlast.engine.hand import Deliver, InHand, Reclaims, Subscription
from outlast.engine.lease import Lessor
from outlast.engine.options import EngineOptions, SubscriptionOptions
from outlast.engine.reconnect import Reconnector
from outlast.engine.replays import RefreshKind, ReopenKind, ResolveKind
from outlast.engine.report import Reporter
from outlast.engine.settle import Lane
from outlast.engine.tell import Teller
from outlast.engine.verdicts import (
    AckKind,
    BuryKind,
    EndKind,
    PostponeKind,
    ReleaseKind,
    RetryKind,
)
from outlast.engine.wake import watch_changes
from outlast.engine.watchdog import Watchdog
from outlast.model.delivery import Attempt, Delivery
from outlast.model.events import Emit
from outlast.model.headers import REPLAY
from outlast.model.outcome import (
    RELEASE,
    Ack,
    Outcome,
    Postpone,
    Release,
    Retry,
    Terminal,
    Unsettled,
)
from outlast.model.replay_pass import letter_of
from outlast.policy.verdict import Verdicts
from outlast.ports.store import Store

GRACE_SECONDS = 15.0
"""The time to drain when none is given."""
_STATEMENT_SECONDS_MAX = 20.0
_END_SECONDS = 0.1
"""How long a cancelled task may take to end; twice in a stop."""
_CLOSE_SECONDS = 0.4


class Engine:
    """Claims, dispatches and settles the rows of one outbox table."""

    def __init__(
        self,
        store: Store,
        options: EngineOptions,
        *,
        emit: Emit | None = None,
        log: Emit | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.store = store
        self.options = options
        self._logger = logger or logging.getLogger("outlast")
        self._tell = Teller(emit, log)
        self._clock = DatabaseClock()
        self._subscriptions: list[Subscription] = []
        self._dispatchers: dict[Subscription, Dispatcher] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops: set[asyncio.Task[None]] = set()
        self._started = self._running = self._stop_asked = False
        self._watchdog: Watchdog | None = None
        reconnector = Reconnector(store, self._logger)
        kinds = (store, options, self._tell, self._logger)
        self._acks, self._ends = AckKind(*kinds), EndKind(*kinds)
        self._retries, self._releases = RetryKind(*kinds, self._retried), ReleaseKind(*kinds)
        self._postpones = PostponeKind(*kinds, self._retried)
        self._burials = BuryKind(*kinds)
        self._resolves = ResolveKind(*kinds)
        self._refreshes = RefreshKind(*kinds, self._retried)
        self._reopens = ReopenKind(*kinds)
        self._resolves.plainly = lambda entry: self._settles.put(self._acks, entry)
        self._refreshes.plainly = lambda entry: self._settles.put(self._retries, entry)
        lessor = Lessor(store, self._live, self._timeout, self._logger)
        within = (self._timeout, self._logger)
        self._reporter = Reporter(store, options, self._live, *within)
        self._guard = ReplayGuard(store, self._ring_letters, *within)
        self._settles = Lane(
            "settles",
            (self._acks, self._ends, self._retries, self._releases, self._postpones),
            timeout=self._timeout,
            reconnector=reconnector,
            logger=self._logger,
            duties=((lessor.next_at, lessor.refresh),),
        )
        self._letters = Lane(
            "letters",
            (self._burials, self._resolves, self._refreshes, self._reopens),
            timeout=self._timeout,
            reconnector=reconnector,
            logger=self._logger,
            duties=(
                (self._guard.next_at, self._guard.recheck),
                (self._reporter.next_at, self._reporter.write),
            ),
        )
        self._claimer = Claimer(
            store,
            self._live,
            taken=self._taken,
            give_back=self._give_back,
            timeout=self._timeout,
            clock=self._clock,
            reconnector=reconnector,
            tell=self._tell,
            logger=self._logger,
        )
        self._reclaims = Reclaims(self._claimer.nudge)

    # -- what an embedder calls

    def subscribe(
        self, name: str, options: SubscriptionOptions, deliver: Deliver, verdicts: Verdicts
    ) -> Subscription:
        """Add a subscription; it begins at once when the engine runs."""
        subscription = Subscription(name, options, deliver, verdicts, self._reclaims)
        self._subscriptions.append(subscription)
        if self._running:
            self._begin(subscription)
        return subscription

    async def start(self) -> None:
        """Open the store and begin. Raises what an operator can act on, and leaves nothing open."""
        if self._started:
            raise RuntimeError("an engine is started once: make a new engine to start again")
        self._started = True
        try:
            await self.store.open(self._claimer.wake)
        except BaseException:
            await self._close_store()
            raise
        if self._stop_asked:
            await self._close_store()
            return
        self._running = True
        self._reporter.start()
        self._spawn(self._claimer.run(), "claims")
        self._spawn(self._settles.run(), "settles")
        self._spawn(self._letters.run(), "letters")
        if (seconds := self.store.change_poll_seconds) is not None:
            self._spawn(watch_changes(self.store, seconds, self._claimer.peek_soon), "changes")
        self._watchdog = Watchdog(
            self.options.blocked_loop_seconds, self._running_names, self._logger
        )
        self._watchdog.start()
        for subscription in self._subscriptions:
            self._begin(subscription)

    async def stop(self, timeout: float | None = None) -> None:
        """Drain within the time given (None: 15 s), release the rest, close the store."""
        self._stop_asked = self._started
        if not self._running:
            return
        self._running = False
        self._claimer.nudge()
        self._reporter.stop()
        self._ring_letters()
        try:
            await self._drain(list(self._subscriptions), timeout)
        finally:
            # shielded: a stop that is cancelled leaves nothing behind either
            await asyncio.shield(asyncio.ensure_future(self._shut()))

    async def stop_subscription(
        self, subscription: Subscription, timeout: float | None = None
    ) -> None:
        """Drain one subscription and forget it. Not for its own handlers: see `request_stop`."""
        if subscription not in self._subscriptions:
            return
        subscription.stopping = True
        self._tell_change()
        await self._drain([subscription], timeout)
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._reporter.left(subscription)
        self._dispatchers.pop(subscription, None)

    def request_stop(self, subscription: Subscription, timeout: float | None = None) -> None:
        """Stop it soon: callable from within one of its handlers."""
        subscription.stopping = True
        task = asyncio.create_task(self.stop_subscription(subscription, timeout))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    def now(self) -> datetime:
        """The database's clock, as well as it is known here."""
        return self._clock.now()

    def attempt(self, delivery: Delivery) -> Attempt:
        """The counters of this delivery if its attempt ended now."""
        return next_attempt(delivery, self._clock)

    @property
    def is_running(self) -> bool:
        """Between start and stop."""
        return self._running

    @property
    def is_healthy(self) -> bool:
        """Whether every loop and worker lives."""
        return self._running and all(not task.done() for task in (*self._tasks, *self._workers()))

    # -- the rooms' wiring

    def _live(self) -> list[Subscription]:
        return self._subscriptions

    def _workers(self) -> list[asyncio.Task[None]]:
        return [task for s in self._subscriptions for task in s.workers]

    def _running_names(self) -> list[str]:
        # called from the watchdog's thread: a snapshot that may be a moment old is enough
        return sorted({s.name for s in list(self._subscriptions) if s.running})

    def _timeout(self) -> float:
        shortest = min((s.ttl for s in self._subscriptions), default=_STATEMENT_SECONDS_MAX)
        return min(shortest / 3, _STATEMENT_SECONDS_MAX)

    def _begin(self, subscription: Subscription) -> None:
        dispatcher = Dispatcher(
            subscription,
            refusal=self._guard.refusal,
            settle=self._settle,
            nudge=self._claimer.nudge,
            tell=self._tell,
            clock=self._clock,
        )
        self._dispatchers[subscription] = dispatcher
        self._tell_change()
        dispatcher.staff()
        self._claimer.nudge()

    def _taken(self, subscription: Subscription, count: int) -> None:
        dispatcher = self._dispatchers.get(subscription)
        if dispatcher is not None:
            dispatcher.staff()
        subscription.rouse(count)
        self._settles.ring()

    def _give_back(self, subscription: Subscription, taken_until: float) -> None:
        for waiting in (subscription.ready, subscription.reclaimed):
            while waiting and waiting[0].taken_at <= taken_until:
                self._settle(waiting.popleft(), RELEASE)

    def _settle(self, entry: InHand, outcome: Outcome) -> None:
        if entry not in entry.subscription.hand:
            # abandoned by a stop: its lease runs out
            return
        entry.outcome = outcome
        headers = entry.delivery.headers
        if headers and REPLAY in headers and self._settle_replay(entry, outcome):
            return
        match outcome:
            case Ack():
                self._settles.put(self._acks, entry)
            case Retry():
                self._settles.put(self._retries, entry)
            case Release():
                self._settles.put(self._releases, entry)
            case Postpone():
                self._settles.put(self._postpones, entry)
            case Terminal() if self.store.has_dead_letters:
                self._letters.put(self._burials, entry)
            case Terminal():
                self._settles.put(self._ends, entry)
            case Unsettled():
                entry.subscription.close(entry)
                self._tell.unsettled(entry)

    def _settle_replay(self, entry: InHand, outcome: Outcome) -> bool:
        """Whether this is a replay, and its verdict moves the letter."""
        if not self.store.has_replays or letter_of(entry.delivery.headers) is None:
            return False
        match outcome:
            case Ack():
                self._letters.put(self._resolves, entry)
            case Retry():
                self._letters.put(self._refreshes, entry)
            case Terminal():
                self._letters.put(self._reopens, entry)
            case _:
                return False
        return True

    def _retried(self, entry: InHand, delay_seconds: float) -> None:
        at = asyncio.get_running_loop().time() + delay_seconds
        entry.subscription.due.add(at, entry.delivery.queue)
        self._claimer.nudge()

    # -- life

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"outlast {name}")
        self._tasks.add(task)

    async def _drain(self, subscriptions: list[Subscription], seconds: float | None) -> None:
        grace = GRACE_SECONDS if seconds is None else seconds
        try:
            await drain(
                subscriptions, grace, settle=self._settle, tell=self._tell, logger=self._logger
            )
        finally:
            for subscription in subscriptions:
                subscription.closed = True
                # where this was cancelled itself, handlers may still run
                cancel_started(subscription)
            await self._end([task for s in subscriptions for task in s.workers])

    def _ring_letters(self) -> None:
        self._letters.ring()

    def _tell_change(self) -> None:
        """What this worker serves has changed."""
        self._reporter.changed()
        self._letters.ring()

    async def _shut(self) -> None:
        await self._reporter.stopped()
        if self._watchdog is not None:
            self._watchdog.stop()
        await self._end([*self._stops, *self._tasks])
        abandon(self._subscriptions, self._tell)
        for lane in (self._settles, self._letters):
            lane.give_up()
        await self._close_store()
        self._subscriptions.clear()
        self._dispatchers.clear()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Cancel and await them; one that does not end is left to itself."""
        current = asyncio.current_task()
        waiting = [task for task in tasks if task is not current and not task.done()]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=_END_SECONDS)
        self._tasks.difference_update(tasks)

    async def _close_store(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.store.close()
        except TimeoutError:
            self._logger.warning("the database connections did not close in time; left behind")
