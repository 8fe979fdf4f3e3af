"""Events as OpenTelemetry metrics, read back with the in-memory reader."""

import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from outlast.metrics.opentelemetry import OpenTelemetryRecorder
from outlast.model import events

ROW = {"queue": "orders", "subscriber": "handle", "deliveries_count": 2}
RAN = {**ROW, "duration_seconds": 0.3}
SYSTEM = {"messaging.system": "outbox", "messaging.destination.name": "orders"}
PROCESS = {
    **SYSTEM,
    "messaging.operation": "process",
    "messaging.outbox.handler": "handle",
}
OUTBOX = "messaging.outbox."


class Meters:
    """A recorder on a provider of its own, and what it has measured so far."""

    def __init__(self, **options):
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self.reader])
        self.recorder = OpenTelemetryRecorder(meter_provider=self.provider, **options)

    def points(self):
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: [(dict(point.attributes), point) for point in metric.data.data_points]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def test_a_dead_letter_with_an_exception():
    """S0-49: `messaging.outbox.dlq_written` with `dlq_reason` and `error.type` when present."""
    meters = Meters()
    meters.recorder(
        events.DLQ_WRITTEN,
        {**ROW, "failure_reason": "retry_terminal", "exception_type": "KeyError"},
    )
    ((attributes, point),) = meters.points()[OUTBOX + "dlq_written"]
    assert point.value == 1
    assert attributes == {
        **PROCESS,
        OUTBOX + "dlq_reason": "retry_terminal",
        "error.type": "KeyError",
    }


def test_the_time_to_terminal_failure_is_a_histogram():
    """S0-30: in seconds."""
    meters = Meters()
    meters.recorder(events.DLQ_WRITTEN, {**ROW, "failure_reason": "rejected", "age_seconds": 90.0})
    ((_, point),) = meters.points()[OUTBOX + "dead_letter_age"]
    assert (point.sum, point.count) == (90.0, 1)


def test_a_dead_letter_without_an_exception_has_no_error_type():
    """S0-47, S0-49: the attribute is absent, not empty."""
    meters = Meters()
    meters.recorder(events.DLQ_WRITTEN, {**ROW, "failure_reason": "max_deliveries"})
    ((attributes, _),) = meters.points()[OUTBOX + "dlq_written"]
    assert attributes == {**PROCESS, OUTBOX + "dlq_reason": "max_deliveries"}


@pytest.mark.parametrize(
    ("event", "more", "status", "extra"),
    [
        (events.ACKED, {}, "acked", {}),
        (events.NACKED_RETRIED, {"exception_type": "E"}, "nacked", {"error.type": "E"}),
        (
            events.NACKED_TERMINAL,
            {"reason": "rejected"},
            "nacked",
            {OUTBOX + "terminal_reason": "rejected"},
        ),
        (events.LEASE_LOST, {"phase": "retry"}, "error", {OUTBOX + "lease_phase": "retry"}),
        (events.UNSETTLED, {}, "error", {}),
    ],
)
def test_a_handler_that_ended_is_a_duration(event, more, status, extra):
    meters = Meters(include_messages_counters=True)
    meters.recorder(event, {**RAN, **more})
    points = meters.points()
    ((attributes, point),) = points["messaging.process.duration"]
    assert attributes == {**PROCESS, OUTBOX + "status": status, **extra}
    assert (point.count, point.sum) == (1, 0.3)
    ((counted, count),) = points["messaging.process.messages"]
    assert counted == attributes
    assert count.value == 1


def test_durations_have_boundaries_made_for_seconds():
    meters = Meters()
    meters.recorder(events.ACKED, RAN)
    ((_, point),) = meters.points()["messaging.process.duration"]
    assert point.explicit_bounds[0] == 0.005
    assert point.explicit_bounds[-1] == 10


def test_publishes():
    meters = Meters(include_messages_counters=True)
    done = {"queue": "orders", "size_bytes": 10, "duration_seconds": 0.02}
    meters.recorder(events.PUBLISHED, {**done, "status": "success", "count": 5})
    failed = {"status": "error", "count": 0, "exception_type": "OSError"}
    meters.recorder(events.PUBLISHED, {**done, **failed})
    points = meters.points()
    base = {**SYSTEM, "messaging.operation": "publish"}
    success = {**base, OUTBOX + "status": "success"}
    error = {**base, OUTBOX + "status": "error", "error.type": "OSError"}
    durations = points["messaging.publish.duration"]
    assert [attributes for attributes, _ in durations] == [success, error]
    counts = [(attributes, p.value) for attributes, p in points["messaging.publish.messages"]]
    assert counts == [(success, 5), (error, 1)]


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (events.FETCHED, "fetch.batches"),
        (events.NACKED_TERMINAL, "terminal"),
        (events.LEASE_LOST, "lease_lost"),
        (events.DLQ_WRITTEN, "dlq_written"),
        (events.DLQ_WRITE_FAILED, "dlq_write_failed"),
        (events.SETTLE_UNKNOWN, "settle_unknown"),
        (events.UNSETTLED, "unsettled"),
        (events.RELEASED, "released"),
        (events.DISPATCH_ABANDONED, "dispatch_abandoned"),
        (events.DRAIN_TIMEOUT, "drain_timeout"),
    ],
)
def test_without_bus_metrics_only_the_outbox_counters_are_left(event, name):
    meters = Meters(include_bus_metrics=False, include_messages_counters=True)
    tags = {"count": 1, "reason": "r", "phase": "p", "failure_reason": "f"}
    meters.recorder(event, {**RAN, **tags})
    points = meters.points()
    assert set(points) == {OUTBOX + name}
    ((_, point),) = points[OUTBOX + name]
    assert point.value == 1


def test_claims_and_drains_are_received_not_processed():
    meters = Meters()
    meters.recorder(events.FETCHED, {**ROW, "count": 0})
    meters.recorder(events.FETCHED, {**ROW, "count": 4})
    meters.recorder(events.DRAIN_TIMEOUT, {**ROW, "drain_timeout_seconds": 1.0})
    points = meters.points()
    fetches = points[OUTBOX + "fetch.batches"]
    statuses = {attributes[OUTBOX + "status"] for attributes, _ in fetches}
    assert statuses == {"empty", "non_empty"}
    operations = {
        attributes["messaging.operation"]
        for name in ("fetch.batches", "drain_timeout")
        for attributes, _ in points[OUTBOX + name]
    }
    assert operations == {"receive"}


def test_a_meter_is_used_as_given():
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("mine")
    OpenTelemetryRecorder(meter=meter)(events.ACKED, RAN)
    (resource,) = reader.get_metrics_data().resource_metrics
    assert [scope.scope.name for scope in resource.scope_metrics] == ["mine"]


def test_every_word_of_the_vocabulary_is_accepted():
    recorder = Meters(include_messages_counters=True).recorder
    numbers = {"count", "size_bytes", "duration_seconds", "next_delay_seconds", "age_seconds"}
    for event in events.VOCABULARY.values():
        for names in (event.tags, (*event.tags, *event.sometimes)):
            recorder(event.name, {name: 1 if name in numbers else "x" for name in names})


def test_without_the_extra_construction_names_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pip install 'outlast\[opentelemetry\]'"):
        OpenTelemetryRecorder()
