"""What a handler gets: the row (`OutboxInnerMessage`) and the message around it (`OutboxMessage`).

Both only record what was decided; the engine writes it. A row is closed when it has left the hand
of its worker, and a verdict that comes after that is refused.
"""

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from faststream.message import StreamMessage

from outlast.model.delivery import Attempt, Delivery
from outlast.model.outcome import (
    ACK,
    MAX_DELIVERIES,
    REJECTED,
    Ack,
    Outcome,
    Retry,
    Terminal,
)
from outlast.policy.decide import after_failure
from outlast.policy.retry import NoRetry

Verdict = Literal["ack", "nack", "reject"]


class _Log(Protocol):
    def log(self, level: int, msg: Any, /, **options: Any) -> None: ...


@dataclass(kw_only=True, slots=True)
class OutboxInnerMessage:
    """One claimed row, with the columns of the table.

    Its counters run on the worker's clock while it is in hand; what is stored, on the database's.
    """

    id: int
    queue: str
    payload: bytes
    headers: dict[str, Any] | None
    attempts_count: int
    deliveries_count: int
    created_at: datetime
    next_attempt_at: datetime
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    acquired_at: datetime | None
    acquired_token: UUID | None
    timer_id: str | None = None
    retry_strategy: Any = None
    last_exception: BaseException | None = None
    verdict: Verdict | None = field(default=None, init=False, repr=False)
    handler_verdict: Verdict | None = field(default=None, init=False, repr=False)
    """What had been decided when an exception left the handler."""
    undecodable: BaseException | None = field(default=None, init=False, repr=False)
    """The exception of a parser or decoder that says the body will never be readable."""
    replies: bool = field(default=False, init=False, repr=False)
    """Whether its handler returned an `OutboxResponse`."""
    foreign: StreamMessage[Any] | None = field(default=None, init=False, repr=False)
    """The message of a custom parser that does not lead its verdicts here."""
    closed: bool = field(default=False, init=False, repr=False)
    _outcome: Outcome | None = field(default=None, init=False, repr=False)

    def ack(self) -> None:
        """Delivered. The first verdict wins."""
        self._decide("ack")

    def nack(self) -> None:
        """Failed: the retry strategy says what becomes of it. The first verdict wins."""
        self._decide("nack")

    def reject(self) -> None:
        """Failed for good. The first verdict wins."""
        self._decide("reject")

    def _decide(self, verdict: Verdict) -> None:
        if self.verdict is not None:
            return
        if self.closed:
            raise RuntimeError(
                f"{verdict}() came too late: the handler of message {self.id} has returned, and "
                "the row has left the hand; it is delivered again when its lease runs out",
            )
        self.verdict = verdict
        self.attempts_count += 1
        self.last_attempt_at = datetime.now(UTC)
        if self.first_attempt_at is None:
            self.first_attempt_at = self.last_attempt_at

    @property
    def state_set(self) -> bool:
        """Whether it has been decided what becomes of the row."""
        return self.verdict is not None or self._outcome is not None

    @property
    def outcome(self) -> Outcome | None:
        """What becomes of the row, as far as is known: None while nothing was decided."""
        if self._outcome is None and self.verdict is not None:
            self._outcome = self._derived(self.verdict)
        return self._outcome

    def _derived(self, verdict: Verdict) -> Outcome:
        if verdict == "ack":
            return ACK
        if verdict == "reject":
            return Terminal(REJECTED)
        now = self.last_attempt_at or datetime.now(UTC)
        attempt = Attempt(self.attempts_count, self.first_attempt_at or now, now)
        return after_failure(self.retry_strategy or NoRetry(), attempt, self.last_exception, None)

    @property
    def terminal_failure_reason(self) -> str | None:
        """Why it is a dead letter, if it is one."""
        outcome = self.outcome
        return outcome.reason if isinstance(outcome, Terminal) else None

    @property
    def pending_delay_seconds(self) -> float | None:
        """In how many seconds it is tried again, if it is."""
        outcome = self.outcome
        return outcome.delay_seconds if isinstance(outcome, Retry) else None

    def allow_delivery(self, *, max_deliveries: int | None, logger: _Log | None = None) -> bool:
        """Whether a handler may start; if not, the row is terminal with `max_deliveries`."""
        if max_deliveries is None or self.deliveries_count <= max_deliveries:
            return True
        self._outcome = Terminal(MAX_DELIVERIES)
        if logger is not None:
            logger.log(
                logging.WARNING,
                f"message {self.id} was delivered {self.deliveries_count} times, "
                f"max_deliveries is {max_deliveries}: it is ended unrun",
            )
        return False

    def assert_state_set(self, logger: _Log | None = None) -> None:
        """Tell when a handler has returned without a verdict; the row then waits for its lease."""
        if not self.state_set and logger is not None:
            logger.log(
                logging.WARNING,
                f"the handler of message {self.id} returned without ack, nack or reject; "
                "the row stays leased until its TTL",
            )

    def settled_as(self, outcome: Outcome) -> None:
        """What the engine was told."""
        self._outcome = outcome


def inner_message(delivery: Delivery, strategy: Any = None) -> OutboxInnerMessage:
    """A delivery as FastStream's raw message."""
    return OutboxInnerMessage(
        id=delivery.id,
        queue=delivery.queue,
        payload=delivery.payload,
        headers=delivery.headers,
        attempts_count=delivery.attempts_count,
        deliveries_count=delivery.deliveries_count,
        created_at=delivery.created_at,
        next_attempt_at=delivery.next_attempt_at,
        first_attempt_at=delivery.first_attempt_at,
        last_attempt_at=delivery.last_attempt_at,
        acquired_at=delivery.acquired_at,
        acquired_token=delivery.token,
        timer_id=delivery.timer_id,
        retry_strategy=strategy,
    )


class OutboxMessage(StreamMessage[OutboxInnerMessage]):
    """The message a handler sees: headers without the reserved ones, which are attributes here."""

    event_type: str | None = None

    async def ack(self, **options: Any) -> None:  # noqa: ARG002 - other brokers have some
        """Delivered. Options are accepted and mean nothing here."""
        self.raw_message.ack()
        await super().ack()

    async def nack(self, **options: Any) -> None:  # noqa: ARG002
        """Failed: the retry strategy says what becomes of it."""
        self.raw_message.nack()
        await super().nack()

    async def reject(self, **options: Any) -> None:  # noqa: ARG002
        """Failed for good: a dead letter, where there is a table for them."""
        self.raw_message.reject()
        await super().reject()


__all__ = [
    "Ack",
    "Attempt",
    "OutboxInnerMessage",
    "OutboxMessage",
    "Retry",
    "Terminal",
    "inner_message",
]
