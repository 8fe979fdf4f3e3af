"""One dead letter to be written: what the row cannot say of itself."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from outlast.model.failure import Failure

COUNT_MAX = 2**31 - 1
"""The largest count of a letter: its columns are narrower than the row's."""


@dataclass(frozen=True, slots=True)
class Letter:
    """The bytes, headers, queue and counters of the row itself are copied by the statement."""

    id: int
    token: UUID
    reason: str
    failure: Failure
    attempts_count: int
    first_failure_at: datetime | None
    last_failure_at: datetime | None
    message_id: str
    event_type: str | None
    subscriber: str | None
    consumer_instance: str | None
    consumer_version: str | None
