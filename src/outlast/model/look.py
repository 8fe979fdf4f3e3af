"""What a look asks and answers: the next due instant of queues, and leases that have expired."""

from datetime import datetime
from typing import NamedTuple


class Want(NamedTuple):
    """One queue of a claim and how many rows it may give."""

    queue: str
    quota: int


class WalkStep(NamedTuple):
    """One queue of the expired walk: its TTL, where to go on, and how many leases to pass."""

    queue: str
    ttl_seconds: float
    after: tuple[datetime, int] | None
    limit: int


INSTANTS_PER_PEEK = 16


def peek_depth(queues: int) -> int:
    """How many due instants a peek tells of each queue: several where there are few queues, for
    timers stand close together; one where there are many.
    """
    return max(1, INSTANTS_PER_PEEK // max(1, queues))


class Walked(NamedTuple):
    """What one step of the walk saw. `after` is None when the queue's walk is finished."""

    queue: str
    expired: tuple[int, ...]
    next_expiry_seconds: float | None
    after: tuple[datetime, int] | None


class Sight(NamedTuple):
    """The answer to a look. `due` maps a queue to the seconds until its next unleased rows are due,
    the earliest first (zero or less: now); a queue without such a row is absent.
    """

    due: dict[str, list[float]]
    walked: tuple[Walked, ...]
    now: datetime | None


class Expired(NamedTuple):
    """A row that looked abandoned; the take-over checks again, with this TTL."""

    id: int
    ttl_seconds: float
