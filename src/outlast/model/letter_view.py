"""One dead letter as the desk shows it, and what follows from its columns.

In: a row of a dead-letter table. Fields are named as the columns; None is "not recorded", also for
a column that this table does not have. Nothing here is masked: that is done where it is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

from outlast.model.outcome import MAX_DELIVERIES
from outlast.model.query import DISCARDED, LISTED_STATES, RESOLVED

UNCONFIRMED = "unconfirmed"
"""The resolution of a letter whose replayed row is gone without a trace: a person ends it."""

SUPERSEDED = "superseded by "
"""How the resolution begins of a letter that lives on as another one, whose id follows."""


class KeymateStatus(NamedTuple):
    """The three words of Keymate; a dead letter is never NEW."""

    status: Literal["PROCESSED", "FAILED"]
    processed_at: datetime | None
    resolution: str | None


@dataclass(frozen=True, slots=True)
class LetterView:
    """`failed_at` is the column: when the first pass ended. `latest_failure_at` is what is shown
    as "Failed At". `payload` and `headers` are the original ones, before any revision.
    """

    id: int
    original_id: int
    queue: str
    deliveries_count: int
    created_at: datetime
    failed_at: datetime
    failure_reason: str
    payload: bytes | None = None
    headers: Mapping[str, Any] | None = None
    last_exception: str | None = None
    timer_id: str | None = None
    message_id: str | None = None
    event_type: str | None = None
    subscriber: str | None = None
    consumer_instance: str | None = None
    consumer_version: str | None = None
    fingerprint: str | None = None
    owner: str | None = None
    failure_category: str | None = None
    policy_version: str | None = None
    triage: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    stack_trace: str | None = None
    http_status: int | None = None
    attempts_count: int | None = None
    total_deliveries: int | None = None
    revision: int | None = None
    replay_count: int | None = None
    replays_at_reopen: int | None = None
    first_failure_at: datetime | None = None
    last_failure_at: datetime | None = None
    state_changed_at: datetime | None = None
    purge_after: datetime | None = None
    state: str | None = None
    replayed_as: int | None = None
    resolution: str | None = None
    origin: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "LetterView":
        """The view of a row, whichever columns it has; a list may leave the payload out."""
        return cls(**{name: row[name] for name in LETTER_FIELDS if name in row})

    @property
    def latest_failure_at(self) -> datetime:
        """When it failed last: "Failed At", what lists, ages and retention go by."""
        return self.last_failure_at or self.failed_at

    @property
    def bouncing_for(self) -> timedelta | None:
        """From the first failure to the last."""
        if self.first_failure_at is None or self.last_failure_at is None:
            return None
        return max(self.last_failure_at - self.first_failure_at, timedelta(0))

    @property
    def time_to_terminal_failure(self) -> timedelta:
        """From the publish to the end of the first pass; replays do not change it."""
        return max(self.failed_at - self.created_at, timedelta(0))

    @property
    def retry_count(self) -> int | None:
        """Handler calls that failed in the latest pass."""
        return self.attempts_count

    @property
    def workers_died(self) -> int | None:
        """Deliveries of the latest pass that no handler ended."""
        if self.attempts_count is None:
            return None
        # the delivery that went over the limit was ended before any handler started
        ended = 1 if self.failure_reason == MAX_DELIVERIES else 0
        return max(0, self.deliveries_count - self.attempts_count - ended)

    @property
    def replays_since_reopen(self) -> int | None:
        """What the replay limit counts."""
        if self.replay_count is None:
            return None
        return self.replay_count - (self.replays_at_reopen or 0)

    @property
    def is_listed(self) -> bool:
        """Whether it is counted; a table without states holds open letters only."""
        return self.state is None or self.state in LISTED_STATES

    @property
    def dlq_stream(self) -> str:
        """The name Protean would give the place of this letter."""
        return f"{self.queue}:dlq"

    @property
    def error(self) -> str | None:
        """`<Type>: <message>`, as much of it as is recorded."""
        if self.error_type is None:
            return self.error_message or self.last_exception
        return f"{self.error_type}: {self.error_message}" if self.error_message else self.error_type

    @property
    def failure(self) -> str:
        """Why it stopped and with what error: `retry_terminal: KeyError: 'isbn'`."""
        return f"{self.failure_reason}: {self.error}" if self.error else self.failure_reason

    @property
    def keymate(self) -> KeymateStatus:
        """Processed only after a replay that is known to have succeeded."""
        resolution = self.resolution or ""
        if self.state == RESOLVED:
            is_known = resolution != UNCONFIRMED and not resolution.startswith(SUPERSEDED)
            status: Literal["PROCESSED", "FAILED"] = "PROCESSED" if is_known else "FAILED"
            return KeymateStatus(status, self.state_changed_at, self.resolution)
        if self.state == DISCARDED:
            return KeymateStatus("FAILED", self.state_changed_at, self.resolution or DISCARDED)
        return KeymateStatus("FAILED", self.latest_failure_at, self.resolution)


LETTER_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(LetterView))
"""Every column of a dead-letter table of ours."""
