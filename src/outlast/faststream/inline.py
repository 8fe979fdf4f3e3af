"""Running one row at once, without loops: how a test broker delivers what was just published.

The same claim, the same kinds of verdict and the same events as the engine's; only the waiting is
left out. Test doubles call this, nobody else.
"""

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

from outlast.engine.clock import DatabaseClock
from outlast.engine.dispatch import next_attempt
from outlast.engine.hand import InHand, Subscription
from outlast.engine.options import EngineOptions
from outlast.engine.tell import Teller
from outlast.engine.verdicts import AckKind, BuryKind, EndKind, Kind, ReleaseKind, RetryKind
from outlast.model.delivery import Delivery
from outlast.model.events import Emit
from outlast.model.outcome import (
    MAX_DELIVERIES,
    RELEASE,
    Ack,
    Outcome,
    Release,
    Retry,
    Terminal,
)
from outlast.policy.describe import describe
from outlast.stores.memory.rows import MemoryRow
from outlast.stores.memory.store import MemoryStore

if TYPE_CHECKING:
    from outlast.faststream.subscriber import OutboxSubscriber

_AT_ONCE = 1.0


def _nothing(entry: InHand, seconds: float) -> None:
    """There is no loop to tell when the retry is due."""


class Inline:
    """Takes the place of `Consuming` in a test broker's sync mode."""

    def __init__(
        self, store: MemoryStore, options: EngineOptions, *, emit: Emit | None, log: Emit | None
    ) -> None:
        self._store = store
        self._tell = Teller(emit, log)
        self._clock = DatabaseClock()
        kinds = (store, options, self._tell, logging.getLogger("outlast"))
        self._ack, self._end = AckKind(*kinds), EndKind(*kinds)
        self._retry, self._release = RetryKind(*kinds, _nothing), ReleaseKind(*kinds)
        self._bury = BuryKind(*kinds)

    async def add(self, subscriber: "OutboxSubscriber") -> None:
        """It runs when something is published."""
        self.bind(subscriber)

    async def remove(self, subscriber: "OutboxSubscriber") -> None:
        """Nothing of it runs."""

    def request_stop(self, subscriber: "OutboxSubscriber") -> None:
        """It takes no more messages."""
        subscriber.running = False

    @property
    def is_healthy(self) -> bool:
        """Nothing runs that could fail."""
        return True

    def bind(self, subscriber: "OutboxSubscriber") -> None:
        """Prepare it for its first delivery."""
        subscriber.bind(
            lambda delivery: next_attempt(delivery, self._clock),
            keeps_letters=self._store.has_dead_letters,
        )

    async def run(self, subscriber: "OutboxSubscriber", row: MemoryRow) -> None:
        """Claim, deliver, settle."""
        delivery = row.lease(uuid4(), self._store.clock())
        self._clock.set(delivery.acquired_at, asyncio.get_running_loop().time())
        subscription = Subscription(
            subscriber.verdicts.subscriber or "",
            subscriber.options,
            subscriber.deliver,
            subscriber.verdicts,
        )
        entry = InHand(delivery, subscription, monotonic(), reclaimed=False)
        subscription.hand.add(entry)
        try:
            entry.outcome = await self._outcome(subscriber, entry, delivery)
        except BaseException:
            await self._settle(entry, RELEASE)
            raise
        await self._settle(entry, entry.outcome)

    async def _outcome(
        self, subscriber: "OutboxSubscriber", entry: InHand, delivery: Delivery
    ) -> Outcome:
        most = subscriber.options.max_deliveries
        if most is not None and delivery.deliveries_count > most:
            name = subscriber.verdicts.subscriber
            failure = describe(None, subscriber=name, reason=MAX_DELIVERIES)
            return Terminal(MAX_DELIVERIES, failure)
        started = entry.started_at = monotonic()
        self._tell.dispatched(entry)
        try:
            return await subscriber.deliver(delivery)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return subscriber.verdicts.failed(next_attempt(delivery, self._clock), cancelled)
        finally:
            entry.duration = monotonic() - started
            entry.attempt = next_attempt(delivery, self._clock)

    async def _settle(self, entry: InHand, outcome: Outcome) -> None:
        entry.outcome = outcome
        kind = self._kind(outcome)
        if kind is None:
            self._tell.unsettled(entry)
            return
        answer = await kind.write([entry], _AT_ONCE, False)
        if answer.lost:
            kind.lost(entry)
        else:
            kind.landed(entry)

    def _kind(self, outcome: Outcome) -> Kind | None:
        match outcome:
            case Ack():
                return self._ack
            case Retry():
                return self._retry
            case Release():
                return self._release
            case Terminal():
                return self._bury if self._store.has_dead_letters else self._end
            case _:
                return None
