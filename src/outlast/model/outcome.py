"""The end of an attempt, as a sum type that is settled once.

A deliverer returns one of these; the engine turns it into exactly one statement.
"""

from dataclasses import dataclass

from outlast.model.failure import Failure

MAX_DELIVERIES = "max_deliveries"
RETRY_TERMINAL = "retry_terminal"
REJECTED = "rejected"
UNDECODABLE = "undecodable"


@dataclass(frozen=True, slots=True)
class Ack:
    """Delivered: the row goes."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Failed, to be tried again after the delay."""

    delay_seconds: float
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Terminal:
    """Failed for good: a dead letter where there is a table for them, else the row goes."""

    reason: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Unsettled:
    """The handler returned without a verdict: the row leaves the hand, its lease runs out."""


@dataclass(frozen=True, slots=True)
class Release:
    """No attempt took place: lease and delivery count are given back."""


@dataclass(frozen=True, slots=True)
class Postpone:
    """No attempt may take place here: as released, and due after the delay, for others as well."""

    delay_seconds: float


Outcome = Ack | Retry | Terminal | Unsettled | Release | Postpone

ACK = Ack()
UNSETTLED = Unsettled()
RELEASE = Release()
