"""The vocabulary of events: what happened, when it is told, and with which tags.

Recorders get `(name, tags)`; logs, Prometheus and OpenTelemetry are translations of this table,
and the metrics reference is generated from it. Each `dispatched` is closed by exactly one event
of `CLOSING`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Emit = Callable[[str, Mapping[str, Any]], None]
"""A recorder: called on the event loop; what it raises is logged at DEBUG and changes nothing."""


@dataclass(frozen=True, slots=True)
class Event:
    """One word of the vocabulary. `sometimes` are tags that may be absent (never empty)."""

    name: str
    when: str
    tags: tuple[str, ...]
    sometimes: tuple[str, ...] = ()


FETCHED = "fetched"
DISPATCHED = "dispatched"
ACKED = "acked"
NACKED_RETRIED = "nacked_retried"
NACKED_TERMINAL = "nacked_terminal"
LEASE_LOST = "lease_lost"
DISPATCH_ABANDONED = "dispatch_abandoned"
DLQ_WRITTEN = "dlq_written"
DLQ_WRITE_FAILED = "dlq_write_failed"
SETTLE_UNKNOWN = "settle_unknown"
UNSETTLED = "unsettled"
RELEASED = "released"
DRAIN_TIMEOUT = "drain_timeout"
PUBLISHED = "published"

_ROW = ("queue", "subscriber", "deliveries_count")

VOCABULARY: Mapping[str, Event] = {
    event.name: event
    for event in (
        Event(
            FETCHED,
            "a claim was answered; count 0 when nothing was due",
            ("queue", "subscriber", "count"),
        ),
        Event(DISPATCHED, "a handler is about to start", (*_ROW, "size_bytes")),
        Event(ACKED, "the row of a handler that succeeded is gone", (*_ROW, "duration_seconds")),
        Event(
            NACKED_RETRIED,
            "the next attempt is written",
            (*_ROW, "duration_seconds", "next_delay_seconds"),
            ("exception_type",),
        ),
        Event(
            NACKED_TERMINAL,
            "the row left the queue as a failure",
            (*_ROW, "reason"),
            ("duration_seconds", "exception_type"),
        ),
        Event(
            LEASE_LOST,
            "the lease had been taken over; the outcome was dropped",
            ("queue", "subscriber", "phase", "row_id", "deliveries_count"),
            ("duration_seconds",),
        ),
        Event(
            DISPATCH_ABANDONED,
            "a handler did not end when it was cancelled; its lease runs out",
            (*_ROW, "duration_seconds"),
        ),
        Event(
            DLQ_WRITTEN,
            "a dead letter is stored; emitted before the paired nacked_terminal",
            (*_ROW, "failure_reason"),
            ("age_seconds", "exception_type"),
        ),
        Event(
            DLQ_WRITE_FAILED,
            "a dead letter could not be written; the row stays leased and comes back at expiry",
            (*_ROW, "failure_reason"),
            ("duration_seconds", "exception_type"),
        ),
        Event(
            SETTLE_UNKNOWN,
            "the answer to a settle was lost, and its repeat found no such lease",
            ("queue", "subscriber", "phase"),
            ("duration_seconds",),
        ),
        Event(
            UNSETTLED,
            "the row left the hand without a verdict; its lease runs out",
            _ROW,
            ("duration_seconds",),
        ),
        Event(
            RELEASED,
            "lease and delivery count were given back",
            _ROW,
            ("duration_seconds",),
        ),
        Event(
            DRAIN_TIMEOUT,
            "a stop ran out of time with rows in hand",
            ("queue", "subscriber", "drain_timeout_seconds"),
        ),
        Event(
            PUBLISHED,
            "a publish ended; count is the number of rows that landed",
            ("queue", "status", "count", "size_bytes", "duration_seconds"),
            ("exception_type",),
        ),
    )
}

CLOSING = frozenset(
    {
        ACKED,
        NACKED_RETRIED,
        NACKED_TERMINAL,
        LEASE_LOST,
        DISPATCH_ABANDONED,
        RELEASED,
        UNSETTLED,
        SETTLE_UNKNOWN,
        DLQ_WRITE_FAILED,
    },
)
