"""Where the engine tells what happened: each event is made here, in one place.

`record` hears everything and may be None; `log` hears only what an operator should read. Both must
not raise: the door wraps user code before it hands it in.
"""

from outlast.engine.hand import InHand, Subscription
from outlast.model import events
from outlast.model.events import Emit
from outlast.model.failure import Failure


def _silent(name: str, tags: object) -> None:
    """Nobody listens."""


class Teller:
    """One per engine."""

    def __init__(self, record: Emit | None, log: Emit | None) -> None:
        self.record = record
        self._log = log or _silent

    def _both(self, name: str, tags: dict[str, object]) -> None:
        self._log(name, tags)
        if self.record is not None:
            self.record(name, tags)

    def fetched(self, subscription: Subscription, count: int) -> None:
        """A claim was answered."""
        if self.record is not None:
            tags = {
                "queue": subscription.options.queues[0],
                "subscriber": subscription.name,
                "count": count,
            }
            self.record(events.FETCHED, tags)

    def dispatched(self, entry: InHand) -> None:
        """A handler is about to start."""
        if self.record is not None:
            tags = _tags(entry)
            tags["size_bytes"] = len(entry.delivery.payload)
            self.record(events.DISPATCHED, tags)

    def acked(self, entry: InHand) -> None:
        """Its row is gone."""
        if self.record is not None:
            self.record(events.ACKED, _timed(entry))

    def retried(self, entry: InHand, delay_seconds: float, failure: Failure | None) -> None:
        """Its next attempt is written."""
        if self.record is not None:
            tags = _timed(entry)
            tags["next_delay_seconds"] = delay_seconds
            self.record(events.NACKED_RETRIED, _typed(tags, failure))

    def ended(
        self, entry: InHand, reason: str, failure: Failure | None, *, dead_letter: bool
    ) -> None:
        """It left the queue as a failure, into the dead letters where there are any."""
        if dead_letter and self.record is not None:
            tags = _tags(entry)
            tags["failure_reason"] = reason
            tags["age_seconds"] = _age(entry)
            if failure is not None and failure.last_exception is not None:
                _typed(tags, failure)
            self.record(events.DLQ_WRITTEN, tags)
        tags = _timed(entry)
        tags["reason"] = reason
        self._both(events.NACKED_TERMINAL, _typed(tags, failure))

    def lease_lost(self, entry: InHand, phase: str) -> None:
        """Somebody else holds the lease."""
        tags = _timed(entry)
        tags["phase"] = phase
        tags["row_id"] = entry.delivery.id
        self._both(events.LEASE_LOST, tags)

    def settle_unknown(self, entry: InHand, phase: str) -> None:
        """Whether the settle landed will not be known."""
        tags: dict[str, object] = {
            "queue": entry.delivery.queue,
            "subscriber": entry.subscription.name,
            "phase": phase,
        }
        if entry.duration is not None:
            tags["duration_seconds"] = entry.duration
        self._both(events.SETTLE_UNKNOWN, tags)

    def dead_letter_failed(self, entry: InHand, reason: str, failure: Failure | None) -> None:
        """The dead letter could not be written."""
        tags = _timed(entry)
        tags["failure_reason"] = reason
        self._both(events.DLQ_WRITE_FAILED, _typed(tags, failure))

    def unsettled(self, entry: InHand) -> None:
        """It left the hand without a verdict."""
        self._both(events.UNSETTLED, _timed(entry))

    def released(self, entry: InHand) -> None:
        """It was given back uncounted."""
        if self.record is not None:
            self.record(events.RELEASED, _timed(entry))

    def abandoned(self, entry: InHand, seconds: float) -> None:
        """Its handler did not end when it was cancelled."""
        tags = _tags(entry)
        tags["duration_seconds"] = seconds
        self._both(events.DISPATCH_ABANDONED, tags)

    def drain_timeout(self, subscription: Subscription, seconds: float) -> None:
        """A stop ran out of time."""
        tags: dict[str, object] = {
            "queue": subscription.options.queues[0],
            "subscriber": subscription.name,
            "drain_timeout_seconds": seconds,
        }
        self._both(events.DRAIN_TIMEOUT, tags)


def _tags(entry: InHand) -> dict[str, object]:
    return {
        "queue": entry.delivery.queue,
        "subscriber": entry.subscription.name,
        "deliveries_count": entry.delivery.deliveries_count,
    }


def _age(entry: InHand) -> float:
    """From the row's making to its terminal failure, on the database's clock."""
    waited = entry.delivery.acquired_at - entry.delivery.created_at
    return max(0.0, waited.total_seconds() + (entry.duration or 0.0))


def _timed(entry: InHand) -> dict[str, object]:
    tags = _tags(entry)
    if entry.duration is not None:
        tags["duration_seconds"] = entry.duration
    return tags


def _typed(tags: dict[str, object], failure: Failure | None) -> dict[str, object]:
    if failure is not None and failure.exception_type is not None:
        tags["exception_type"] = failure.exception_type
    return tags
