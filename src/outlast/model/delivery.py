"""A delivery: one claimed row, under one lease token. Made by a store, carried by the engine."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID


class Delivery(NamedTuple):
    """A tuple rather than a dataclass: one is made for every message on the hot path."""

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
    acquired_at: datetime
    timer_id: str | None
    token: UUID


Pair = tuple[int, UUID]
"""A row id and the token of the lease it was claimed under: what every settle is fenced by."""


class Claim(NamedTuple):
    """The answer to a claim: rows in the order they are due, and the database's clock."""

    rows: list[Delivery]
    now: datetime | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """The counters of a row after a handler ended, on the database's clock."""

    count: int
    first_at: datetime
    last_at: datetime


class RetryEntry(NamedTuple):
    """One row of a retry statement."""

    id: int
    token: UUID
    delay_seconds: float
    attempt: Attempt


class Answer(NamedTuple):
    """What a settle or an extension found: pairs it did not own, and pairs it could not lock."""

    lost: tuple[Pair, ...] = ()
    held: tuple[Pair, ...] = ()


ALL_SETTLED = Answer()
