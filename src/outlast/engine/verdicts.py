"""The kinds of verdict: which statement writes each, and what is told when it landed or did not.

Used by the settle room only. One class a kind, so that the end states of a row can be read here,
one below the other.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from outlast.engine.hand import InHand
from outlast.engine.options import EngineOptions
from outlast.engine.tell import Teller
from outlast.model import headers as envelope
from outlast.model.dead_letter import COUNT_MAX, Letter
from outlast.model.delivery import Answer, Pair, RetryEntry
from outlast.model.errors import StoreFailure
from outlast.model.failure import Failure
from outlast.model.outcome import Postpone, Retry, Terminal
from outlast.ports.store import Store

Retried = Callable[[InHand, float], None]


def pair_of(entry: InHand) -> Pair:
    """What fences this row."""
    return (entry.delivery.id, entry.delivery.token)


class Kind(ABC):
    """One kind of verdict."""

    name: str
    phase: str
    one_by_one_when_locked = False
    """Whether one locked row or letter may hold up the others of its group only for a moment."""

    def __init__(
        self, store: Store, options: EngineOptions, tell: Teller, logger: logging.Logger
    ) -> None:
        self.store = store
        self.options = options
        self.tell = tell
        self.logger = logger

    def group_max(self, first: InHand) -> int:
        """How many verdicts one statement may carry."""
        cap = first.subscription.options.terminal_flush_batch_size
        return cap if cap > 1 else self.options.settle_group_max

    @abstractmethod
    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        """One statement for the group."""

    @abstractmethod
    def told(self, entry: InHand) -> None:
        """Tell that it landed."""

    def landed(self, entry: InHand) -> None:
        """The write took effect: the row leaves the hand."""
        entry.subscription.close(entry)
        self.told(entry)

    def lost(self, entry: InHand) -> None:
        """The lease is not ours any more. After a lost answer that may be our own doing."""
        entry.subscription.close(entry)
        if entry.unknown:
            self.tell.settle_unknown(entry, self.phase)
        else:
            self.tell.lease_lost(entry, self.phase)

    def left(self, entry: InHand) -> None:
        """It will not be written any more, or its answer not be heard."""
        entry.subscription.close(entry)
        if entry.started_at is None:
            return
        if entry.unknown:
            self.tell.settle_unknown(entry, self.phase)
        else:
            self.tell.unsettled(entry)

    def give_up(self, entry: InHand, failure: StoreFailure) -> None:
        """It cannot be written: the row leaves the hand, and its lease runs out."""
        entry.subscription.close(entry)
        self.logger.error(
            "%s of row %d of queue %r cannot be written, its lease runs out: %s",
            self.name,
            entry.delivery.id,
            entry.delivery.queue,
            failure,
        )
        if entry.started_at is not None:
            self.tell.unsettled(entry)


class AckKind(Kind):
    """Delivered: the row goes."""

    name, phase = "ack", "terminal"

    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        return await self.store.ack([pair_of(e) for e in group], timeout, skip=skip)

    def told(self, entry: InHand) -> None:
        self.tell.acked(entry)


class EndKind(AckKind):
    """Failed for good where there is no dead-letter table: the row goes."""

    name = "terminal failure"

    def told(self, entry: InHand) -> None:
        outcome = entry.outcome
        if isinstance(outcome, Terminal):
            self.tell.ended(entry, outcome.reason, outcome.failure, dead_letter=False)


class RetryKind(Kind):
    """Failed, to be tried again."""

    name, phase = "retry", "retry"

    def __init__(
        self,
        store: Store,
        options: EngineOptions,
        tell: Teller,
        logger: logging.Logger,
        retried: Retried,
    ) -> None:
        super().__init__(store, options, tell, logger)
        self._retried = retried

    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        entries = [
            RetryEntry(e.delivery.id, e.delivery.token, e.outcome.delay_seconds, e.attempt)
            for e in group
            if isinstance(e.outcome, Retry) and e.attempt is not None
        ]
        return await self.store.retry(entries, timeout, skip=skip)

    def told(self, entry: InHand) -> None:
        outcome = entry.outcome
        if isinstance(outcome, Retry):
            self._retried(entry, outcome.delay_seconds)
            self.tell.retried(entry, outcome.delay_seconds, outcome.failure)


class ReleaseKind(Kind):
    """No attempt took place: lease and delivery count go back."""

    name, phase = "release", "retry"

    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        return await self.store.release([pair_of(e) for e in group], timeout, skip=skip)

    def told(self, entry: InHand) -> None:
        if entry.started_at is not None:
            self.tell.released(entry)

    def lost(self, entry: InHand) -> None:
        if entry.started_at is None:
            entry.subscription.close(entry)
        else:
            super().lost(entry)


class PostponeKind(ReleaseKind):
    """No attempt may take place here: given back for later."""

    name = "postponement"

    def __init__(
        self,
        store: Store,
        options: EngineOptions,
        tell: Teller,
        logger: logging.Logger,
        retried: Retried,
    ) -> None:
        super().__init__(store, options, tell, logger)
        self._retried = retried

    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        pairs = [pair_of(e) for e in group]
        return await self.store.postpone(pairs, max(map(_delay, group)), timeout, skip=skip)

    def told(self, entry: InHand) -> None:
        self._retried(entry, _delay(entry))


def _delay(entry: InHand) -> float:
    outcome = entry.outcome
    assert isinstance(outcome, Postpone)
    return outcome.delay_seconds


class BuryKind(Kind):
    """Failed for good: a dead letter, atomically with leaving the queue."""

    name, phase = "dead letter", "terminal"

    def group_max(self, first: InHand) -> int:
        return min(super().group_max(first), self.options.letter_group_max)

    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        return await self.store.bury([self.letter(e) for e in group], timeout, skip=skip)

    def letter(self, entry: InHand) -> Letter:
        """What is written of it."""
        delivery, outcome, attempt = entry.delivery, entry.outcome, entry.attempt
        assert isinstance(outcome, Terminal)
        headers = delivery.headers or {}
        event_type = headers.get(envelope.EVENT_TYPE)
        attempts = delivery.attempts_count if attempt is None else attempt.count
        return Letter(
            id=delivery.id,
            token=delivery.token,
            reason=outcome.reason,
            failure=outcome.failure or Failure(),
            attempts_count=min(attempts, COUNT_MAX),
            first_failure_at=delivery.first_attempt_at if attempt is None else attempt.first_at,
            last_failure_at=delivery.last_attempt_at if attempt is None else attempt.last_at,
            message_id=envelope.message_id(headers, delivery.id)[:255],
            event_type=None if event_type is None else str(event_type)[:255],
            subscriber=entry.subscription.name[:255],
            consumer_instance=self.options.consumer_instance[:255],
            consumer_version=self.options.consumer_version,
        )

    def told(self, entry: InHand) -> None:
        outcome = entry.outcome
        if isinstance(outcome, Terminal):
            self.tell.ended(entry, outcome.reason, outcome.failure, dead_letter=True)

    def give_up(self, entry: InHand, failure: StoreFailure) -> None:
        entry.subscription.close(entry)
        self.logger.error(
            "the dead letter of row %d of queue %r cannot be written; the row stays in the outbox "
            "and comes back when its lease expires: %s",
            entry.delivery.id,
            entry.delivery.queue,
            failure,
        )
        outcome = entry.outcome
        if isinstance(outcome, Terminal):
            self.tell.dead_letter_failed(entry, outcome.reason, outcome.failure)
