"""Dispatch: the workers of one subscription. Comes in: rows in hand. Goes out: one outcome each,
to the settle room. A handler never starts after its lease's own deadline, and whatever it raises
becomes an outcome; nothing it does may end the worker.
"""

import asyncio
from collections.abc import Callable

from outlast.engine.clock import DatabaseClock
from outlast.engine.hand import InHand, Subscription
from outlast.engine.tell import Teller
from outlast.model.delivery import Attempt, Delivery
from outlast.model.errors import LeaseLimitExceeded
from outlast.model.outcome import ACK, MAX_DELIVERIES, RELEASE, Outcome, Retry, Terminal
from outlast.policy.describe import describe

FOR_STOP = "stop"
FOR_LEASE_LIMIT = "lease_limit"

_STARTS_PER_TURN = 16
"""Handlers that end without waiting before the worker lets claims and settles run."""


class Dispatcher:
    """Starts handlers of one subscription, `max_workers` at a time."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        refusal: Callable[[InHand], Outcome | None],
        settle: Callable[[InHand, Outcome], None],
        nudge: Callable[[], None],
        tell: Teller,
        clock: DatabaseClock,
    ) -> None:
        self._subscription = subscription
        self._refusal = refusal
        self._settle = settle
        self._nudge = nudge
        self._tell = tell
        self._clock = clock
        self.started: InHand | None = None

    def staff(self) -> None:
        """Bring the workers to their number; one that was cancelled from outside is replaced."""
        workers = self._subscription.workers
        while len(workers) < self._subscription.options.max_workers:
            task = asyncio.create_task(self._work(), name=f"outlast {self._subscription.name}")
            workers.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        subscription = self._subscription
        subscription.workers.discard(task)
        if not subscription.closed:
            # not replaced from here: where a loop closes, nobody would await the new one
            subscription.short_handed = True
            self._nudge()

    async def _work(self) -> None:
        subscription = self._subscription
        loop = asyncio.get_running_loop()
        batch = subscription.options.fetch_batch_size
        in_turn = 0
        while not subscription.closed:
            entry = subscription.next_unstarted()
            if entry is None:
                in_turn = 0
                self._nudge()
                await subscription.sleep()
                continue
            if subscription.unstarted == batch:
                # there is room for the next claim from here on
                self._nudge()
            if self._may_start(entry, loop.time()):
                await self._attempt(entry, loop)
                in_turn += 1
                if in_turn >= _STARTS_PER_TURN:
                    in_turn = 0
                    await asyncio.sleep(0)

    def _may_start(self, entry: InHand, now: float) -> bool:
        if entry.lost or now >= entry.deadline:
            self._subscription.close(entry)
            return False
        if (refused := self._refusal(entry)) is not None:
            self._settle(entry, refused)
            return False
        most = self._subscription.options.max_deliveries
        if most is not None and entry.delivery.deliveries_count > most:
            failure = describe(None, subscriber=self._subscription.name, reason=MAX_DELIVERIES)
            self._settle(entry, Terminal(MAX_DELIVERIES, failure))
            return False
        return True

    async def _attempt(self, entry: InHand, loop: asyncio.AbstractEventLoop) -> None:
        subscription = self._subscription
        task = asyncio.current_task()
        started_at = entry.started_at = loop.time()
        entry.task = task
        subscription.running += 1
        self.started = entry
        self._tell.dispatched(entry)
        outcome: Outcome
        try:
            outcome = await subscription.deliver(entry.delivery)
        except asyncio.CancelledError as cancelled:
            outcome = self._after_cancellation(entry, cancelled)
        except KeyboardInterrupt:
            self._finish(entry, RELEASE, loop.time() - started_at)
            raise
        except BaseException as exception:  # noqa: BLE001 - it becomes the outcome
            outcome = subscription.verdicts.failed(self.attempt_of(entry), exception)
        else:
            if entry.cancelled_for is not None:
                await _take_late_cancellation()
        if entry.cancelled_for == FOR_STOP and isinstance(outcome, (Retry, Terminal)):
            # how a handler fails when it is cancelled is no verdict on its message
            outcome = RELEASE
        self._finish(entry, outcome, loop.time() - started_at)
        if task is not None and task.cancelling():
            if entry.cancelled_for is None:
                # cancelled from outside, as a closing event loop does: this worker ends
                raise asyncio.CancelledError
            task.uncancel()

    def _finish(self, entry: InHand, outcome: Outcome, seconds: float) -> None:
        subscription = self._subscription
        entry.task = None
        entry.duration = seconds
        subscription.running -= 1
        if subscription.pace is None or not subscription.prefetching:
            self._nudge()
        subscription.paced(seconds)
        if outcome is not ACK:
            self.attempt_of(entry)
        self._settle(entry, outcome)

    def attempt_of(self, entry: InHand) -> Attempt:
        """The counters this attempt leaves behind, fixed when they are first asked for."""
        if entry.attempt is None:
            entry.attempt = next_attempt(entry.delivery, self._clock)
        return entry.attempt

    def _after_cancellation(self, entry: InHand, cancelled: BaseException) -> Outcome:
        if entry.cancelled_for == FOR_STOP:
            return RELEASE
        exception = cancelled
        if entry.cancelled_for == FOR_LEASE_LIMIT:
            limit = self._subscription.options.lease_limit
            exception = LeaseLimitExceeded(
                f"the handler of {self._subscription.name} ran longer than "
                f"lease_limit_seconds={limit:g}; its lease is no longer refreshed",
            )
        return self._subscription.verdicts.failed(self.attempt_of(entry), exception)


def next_attempt(delivery: Delivery, clock: DatabaseClock) -> Attempt:
    """One more attempt, ended now."""
    now = clock.now()
    return Attempt(delivery.attempts_count + 1, delivery.first_attempt_at or now, now)


async def _take_late_cancellation() -> None:
    """A handler that ended as it was cancelled leaves the cancellation for the next await."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return
