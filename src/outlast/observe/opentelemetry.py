"""Events as OpenTelemetry metrics, under the names of its messaging conventions.

A meter comes in, measurements on it go out. `opentelemetry` is imported when a recorder is made.
Attributes come from queue and handler names and exception types, never from messages.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from outlast.model import events
from outlast.observe import BROKER_SYSTEM

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

Tags = Mapping[str, Any]

DURATION_BOUNDARIES: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
AGE_BOUNDARIES: Final = (1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0)

_SYSTEM: Final = "messaging.system"
_DESTINATION: Final = "messaging.destination.name"
_OPERATION: Final = "messaging.operation"
_ERROR: Final = "error.type"
_HANDLER: Final = "messaging.outbox.handler"
_STATUS: Final = "messaging.outbox.status"
_TERMINAL_REASON: Final = "messaging.outbox.terminal_reason"
_LEASE_PHASE: Final = "messaging.outbox.lease_phase"
_DLQ_REASON: Final = "messaging.outbox.dlq_reason"

_PROCESSED: Final[Mapping[str, str]] = {
    events.ACKED: "acked",
    events.NACKED_RETRIED: "nacked",
    events.NACKED_TERMINAL: "nacked",
    events.LEASE_LOST: "error",
    events.DISPATCH_ABANDONED: "error",
    events.SETTLE_UNKNOWN: "error",
    events.DLQ_WRITE_FAILED: "error",
    events.UNSETTLED: "error",
}

OUTBOX_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    events.FETCHED: ("fetch.batches", "Claims"),
    events.NACKED_TERMINAL: ("terminal", "Messages that failed for good"),
    events.LEASE_LOST: ("lease_lost", "Outcomes dropped because the lease was lost"),
    events.DLQ_WRITTEN: ("dlq_written", "Dead letters written"),
    events.DLQ_WRITE_FAILED: ("dlq_write_failed", "Dead letters not written"),
    events.SETTLE_UNKNOWN: ("settle_unknown", "Settles whose outcome stayed unknown"),
    events.UNSETTLED: ("unsettled", "Handlers that returned without a verdict"),
    events.RELEASED: ("released", "Messages given back unattempted"),
    events.DISPATCH_ABANDONED: ("dispatch_abandoned", "Handlers that could not be cancelled"),
    events.DRAIN_TIMEOUT: ("drain_timeout", "Stops that ran out of time"),
}

_ATTRIBUTE_OF_TAG: Final[Mapping[str, str]] = {
    "reason": _TERMINAL_REASON,
    "phase": _LEASE_PHASE,
    "failure_reason": _DLQ_REASON,
    "exception_type": _ERROR,
}

_RECEIVING: Final = frozenset({events.FETCHED, events.DRAIN_TIMEOUT})


class OpenTelemetryRecorder:
    """Give it to a broker as `metrics_recorder`.

    Without `meter` and `meter_provider` the global provider is asked. `include_messages_counters`
    adds counters of messages to the histograms of durations. With FastStream's telemetry
    middleware on the same meter, pass `include_bus_metrics=False`: each message would be counted
    twice.
    """

    def __init__(
        self,
        *,
        meter_provider: "MeterProvider | None" = None,
        meter: "Meter | None" = None,
        include_messages_counters: bool = False,
        include_bus_metrics: bool = True,
    ) -> None:
        try:
            from opentelemetry import metrics  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError(
                "OpenTelemetryRecorder needs opentelemetry: pip install 'outlast[opentelemetry]'"
            ) from error
        if meter is None:
            meter = metrics.get_meter("outlast", meter_provider=meter_provider)
        self._counters = {
            event: meter.create_counter(f"messaging.outbox.{name}", description=about)
            for event, (name, about) in OUTBOX_COUNTERS.items()
        }
        self._age = meter.create_histogram(
            "messaging.outbox.dead_letter_age",
            unit="s",
            description="From a message's making to its terminal failure",
            explicit_bucket_boundaries_advisory=AGE_BOUNDARIES,
        )
        self._bus = _Bus(meter, with_counters=include_messages_counters)
        self._with_bus = include_bus_metrics

    def __call__(self, name: str, tags: Tags) -> None:
        """Measure one event."""
        if (counter := self._counters.get(name)) is not None:
            counter.add(1, _attributes(name, tags))
        if name == events.DLQ_WRITTEN and (age := tags.get("age_seconds")) is not None:
            self._age.record(age, _attributes(name, tags))
        if not self._with_bus:
            return
        if name == events.PUBLISHED:
            self._bus.published(tags)
        elif name in _PROCESSED:
            self._bus.processed(name, tags)


class _Bus:
    """The metrics any FastStream broker has."""

    def __init__(self, meter: "Meter", *, with_counters: bool) -> None:
        self._process = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="From the handler's start to its settled end",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES,
        )
        self._publish = meter.create_histogram(
            "messaging.publish.duration",
            unit="s",
            description="Duration of a publish",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES,
        )
        self._counts = with_counters
        if with_counters:
            self._process_count = meter.create_counter(
                "messaging.process.messages", unit="message", description="Processed messages"
            )
            self._publish_count = meter.create_counter(
                "messaging.publish.messages", unit="message", description="Published messages"
            )

    def processed(self, name: str, tags: Tags) -> None:
        attributes = {**_attributes(name, tags), _STATUS: _PROCESSED[name]}
        if (duration := tags.get("duration_seconds")) is not None:
            self._process.record(duration, attributes)
        if self._counts:
            self._process_count.add(1, attributes)

    def published(self, tags: Tags) -> None:
        attributes = {
            _SYSTEM: BROKER_SYSTEM,
            _DESTINATION: tags["queue"],
            _OPERATION: "publish",
            _STATUS: tags["status"],
        }
        if (exception := tags.get("exception_type")) is not None:
            attributes[_ERROR] = exception
        self._publish.record(tags["duration_seconds"], attributes)
        if self._counts:
            amount = tags["count"] if tags["status"] == "success" else 1
            self._publish_count.add(amount, attributes)


def _attributes(name: str, tags: Tags) -> dict[str, Any]:
    attributes = {
        _SYSTEM: BROKER_SYSTEM,
        _DESTINATION: tags["queue"],
        _OPERATION: "receive" if name in _RECEIVING else "process",
        _HANDLER: tags["subscriber"],
    }
    for tag, attribute in _ATTRIBUTE_OF_TAG.items():
        if tag in tags:
            attributes[attribute] = tags[tag]
    if name == events.FETCHED:
        attributes[_STATUS] = "non_empty" if tags["count"] > 0 else "empty"
    return attributes
