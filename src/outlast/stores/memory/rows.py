"""The rows of the memory store: mutable, with the columns of the tables as attributes and keys."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from outlast.model import headers as envelope
from outlast.model.dead_letter import Letter
from outlast.model.delivery import Attempt, Delivery
from outlast.model.failure import Failure


@dataclass(kw_only=True)
class MemoryRow:
    """One row of the outbox."""

    id: int
    queue: str
    payload: bytes
    headers: dict[str, Any] | None
    created_at: datetime
    next_attempt_at: datetime
    attempts_count: int = 0
    deliveries_count: int = 0
    first_attempt_at: datetime | None = None
    last_attempt_at: datetime | None = None
    acquired_at: datetime | None = None
    acquired_token: UUID | None = None
    timer_id: str | None = None

    def lease(self, token: UUID, now: datetime) -> Delivery:
        """Lease the row and show it as a delivery."""
        self.acquired_token, self.acquired_at = token, now
        self.deliveries_count += 1
        return self.in_hand(token, now)

    def in_hand(self, token: UUID, acquired_at: datetime) -> Delivery:
        """The row as a delivery."""
        return Delivery(
            self.id,
            self.queue,
            self.payload,
            None if self.headers is None else dict(self.headers),
            self.attempts_count,
            self.deliveries_count,
            self.created_at,
            self.next_attempt_at,
            self.first_attempt_at,
            self.last_attempt_at,
            acquired_at,
            self.timer_id,
            token,
        )

    def unlease(self) -> None:
        """Give the lease back."""
        self.acquired_token = self.acquired_at = None

    def reschedule(self, at: datetime, attempt: Attempt) -> None:
        """Give the lease back until the next attempt."""
        self.unlease()
        self.next_attempt_at = at
        self.attempts_count = attempt.count
        self.first_attempt_at = attempt.first_at
        self.last_attempt_at = attempt.last_at


def dead_letter(number: int, row: MemoryRow, letter: Letter, now: datetime) -> dict[str, Any]:
    """The dead letter of a row, with every column of the table."""
    return {
        "id": number,
        "original_id": row.id,
        "queue": row.queue,
        "payload": row.payload,
        "headers": row.headers,
        "deliveries_count": row.deliveries_count,
        "created_at": row.created_at,
        "failed_at": now,
        "failure_reason": letter.reason,
        **failure_columns(letter.failure),
        "timer_id": row.timer_id,
        "message_id": envelope.message_id(row.headers, row.id),
        "event_type": letter.event_type,
        "subscriber": letter.subscriber,
        "consumer_instance": letter.consumer_instance,
        "consumer_version": letter.consumer_version,
        "owner": None,
        "policy_version": None,
        "triage": None,
        "attempts_count": letter.attempts_count,
        "total_deliveries": row.deliveries_count,
        "revision": 0,
        "replay_count": 0,
        "replays_at_reopen": 0,
        "first_failure_at": letter.first_failure_at or now,
        "last_failure_at": letter.last_failure_at or now,
        "state_changed_at": now,
        "purge_after": None,
        "state": "open",
        "replayed_as": None,
        "resolution": None,
        "origin": None,
    }


def failure_columns(failure: Failure) -> dict[str, Any]:
    """The columns that say what went wrong."""
    return {
        "last_exception": failure.last_exception,
        "fingerprint": failure.fingerprint,
        "failure_category": failure.category,
        "error_type": failure.error_type,
        "error_message": failure.error_message,
        "stack_trace": failure.stack_trace,
        "http_status": failure.http_status,
    }
