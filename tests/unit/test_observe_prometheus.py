"""Events as Prometheus metrics, read back from a real registry."""

import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from outlast.metrics import BROKER_SYSTEM, MetricsRecorder
from outlast.metrics.prometheus import PrometheusRecorder
from outlast.model import events

ROW = {"queue": "orders", "subscriber": "handle", "deliveries_count": 2}
RAN = {**ROW, "duration_seconds": 0.3}
CONSUME = {"app_name": "shop", "broker": "outbox", "handler": "handle"}
PUBLISH = {"app_name": "shop", "broker": "outbox", "destination": "orders"}
BUS = "faststream_received_"


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def recorder(registry):
    return PrometheusRecorder(registry=registry, app_name="shop")


def consumed(registry, name, **labels):
    return registry.get_sample_value(name, {**CONSUME, **labels})


def published(registry, name, **labels):
    return registry.get_sample_value(name, {**PUBLISH, **labels})


def test_a_dead_letter_is_counted_by_reason(registry, recorder):
    """S0-48: `faststream_outbox_dlq_written_total{reason="rejected"}` is 1 in the exposition."""
    recorder(events.DLQ_WRITTEN, {**ROW, "failure_reason": "rejected"})
    assert consumed(registry, "faststream_outbox_dlq_written_total", reason="rejected") == 1
    (line,) = [
        line
        for line in generate_latest(registry).decode().splitlines()
        if line.startswith("faststream_outbox_dlq_written_total{")
    ]
    assert 'reason="rejected"' in line
    assert line.endswith(" 1.0")


def test_the_time_to_terminal_failure_is_a_histogram(registry, recorder):
    """S0-30: a message that died after 90 seconds is in the bucket above a minute."""
    recorder(events.DLQ_WRITTEN, {**ROW, "failure_reason": "rejected", "age_seconds": 90.0})
    name = "faststream_outbox_dead_letter_age_seconds"
    assert consumed(registry, f"{name}_sum") == 90.0
    assert consumed(registry, f"{name}_bucket", le="60.0") == 0
    assert consumed(registry, f"{name}_bucket", le="600.0") == 1


def test_a_message_from_dispatch_to_ack(registry, recorder):
    recorder(events.DISPATCHED, {**ROW, "size_bytes": 100})
    assert consumed(registry, BUS + "messages_in_process") == 1
    recorder(events.ACKED, RAN)
    assert consumed(registry, BUS + "messages_total") == 1
    assert consumed(registry, BUS + "messages_in_process") == 0
    assert consumed(registry, BUS + "processed_messages_total", status="acked") == 1
    assert consumed(registry, BUS + "processed_messages_duration_seconds_sum") == 0.3
    assert consumed(registry, BUS + "messages_size_bytes_sum") == 100


@pytest.mark.parametrize(
    ("event", "more", "status"),
    [
        (events.ACKED, {}, "acked"),
        (events.NACKED_RETRIED, {"next_delay_seconds": 1.0}, "nacked"),
        (events.NACKED_TERMINAL, {"reason": "retry_terminal"}, "nacked"),
        (events.LEASE_LOST, {"phase": "terminal", "row_id": 7}, "error"),
        (events.DISPATCH_ABANDONED, {}, "error"),
        (events.SETTLE_UNKNOWN, {"phase": "retry"}, "error"),
        (events.DLQ_WRITE_FAILED, {"failure_reason": "rejected"}, "error"),
        (events.UNSETTLED, {}, "error"),
        (events.RELEASED, {}, None),
    ],
)
def test_each_closing_event_ends_what_dispatched_began(registry, recorder, event, more, status):
    assert event in events.CLOSING
    recorder(events.DISPATCHED, {**ROW, "size_bytes": 1})
    recorder(event, {**RAN, **more})
    assert consumed(registry, BUS + "messages_in_process") == 0
    for other in ("acked", "nacked", "error"):
        expected = 1 if other == status else None
        assert consumed(registry, BUS + "processed_messages_total", status=other) == expected, other


def test_a_row_ended_unrun_was_never_in_process(registry, recorder):
    recorder(events.NACKED_TERMINAL, {**ROW, "reason": "max_deliveries"})
    assert consumed(registry, BUS + "messages_in_process") is None
    assert consumed(registry, "faststream_outbox_terminal_total", reason="max_deliveries") == 1


def test_exceptions_are_counted_by_type_and_absent_without_one(registry, recorder):
    name = BUS + "processed_messages_exceptions_total"
    recorder(events.NACKED_RETRIED, {**RAN, "next_delay_seconds": 1.0})
    assert consumed(registry, name, exception_type="KeyError") is None
    recorder(events.NACKED_RETRIED, {**RAN, "exception_type": "KeyError"})
    assert consumed(registry, name, exception_type="KeyError") == 1


def test_publishes_count_rows_and_failures_count_once(registry, recorder):
    done = {"queue": "orders", "size_bytes": 10, "duration_seconds": 0.02}
    recorder(events.PUBLISHED, {**done, "status": "success", "count": 5})
    recorder(events.PUBLISHED, {**done, "status": "success", "count": 0})
    failed = {"status": "error", "count": 0, "exception_type": "OSError"}
    recorder(events.PUBLISHED, {**done, **failed})
    name = "faststream_published_messages"
    assert published(registry, f"{name}_total", status="success") == 5
    assert published(registry, f"{name}_total", status="error") == 1
    assert published(registry, f"{name}_duration_seconds_count") == 3
    assert published(registry, f"{name}_exceptions_total", exception_type="OSError") == 1


@pytest.mark.parametrize(
    ("event", "more", "metric", "labels"),
    [
        (events.FETCHED, {"count": 3}, "fetch_batches", {"non_empty": "true"}),
        (events.FETCHED, {"count": 0}, "fetch_batches", {"non_empty": "false"}),
        (events.NACKED_TERMINAL, {"reason": "rejected"}, "terminal", {"reason": "rejected"}),
        (events.LEASE_LOST, {"phase": "retry"}, "lease_lost", {"phase": "retry"}),
        (events.DRAIN_TIMEOUT, {"drain_timeout_seconds": 15.0}, "drain_timeout", {}),
        (
            events.DLQ_WRITE_FAILED,
            {"failure_reason": "rejected"},
            "dlq_write_failed",
            {"reason": "rejected"},
        ),
        (events.SETTLE_UNKNOWN, {"phase": "terminal"}, "settle_unknown", {"phase": "terminal"}),
        (events.UNSETTLED, {}, "unsettled", {}),
        (events.RELEASED, {}, "released", {}),
        (events.DISPATCH_ABANDONED, {}, "dispatch_abandoned", {}),
    ],
)
@pytest.mark.parametrize("bus", [True, False])
def test_outbox_metrics_are_always_there(registry, event, more, metric, labels, bus):
    recorder = PrometheusRecorder(registry=registry, app_name="shop", include_bus_metrics=bus)
    recorder(event, {**RAN, **more})
    assert consumed(registry, f"faststream_outbox_{metric}_total", **labels) == 1


def test_without_bus_metrics_none_of_them_is_made(registry):
    recorder = PrometheusRecorder(registry=registry, include_bus_metrics=False)
    recorder(events.DISPATCHED, {**ROW, "size_bytes": 1})
    recorder(events.ACKED, RAN)
    text = generate_latest(registry).decode()
    assert "_received_" not in text
    assert "_published_" not in text


def test_terminal_failures_and_dead_letters_pair(registry, recorder):
    for reason, times in {"rejected": 2, "retry_terminal": 3, "max_deliveries": 1}.items():
        for _ in range(times):
            recorder(events.DLQ_WRITTEN, {**ROW, "failure_reason": reason})
            recorder(events.NACKED_TERMINAL, {**ROW, "reason": reason})
        written = consumed(registry, "faststream_outbox_dlq_written_total", reason=reason)
        ended = consumed(registry, "faststream_outbox_terminal_total", reason=reason)
        assert written == ended == times


def test_prefix_app_name_and_custom_labels(registry):
    recorder = PrometheusRecorder(
        registry=registry,
        metrics_prefix="shop",
        custom_labels={"zone": "eu", "tenant": lambda tags: tags["queue"].split(".")[0]},
    )
    recorder(events.ACKED, {**RAN, "queue": "acme.orders"})
    labels = {**CONSUME, "app_name": "shop", "zone": "eu", "tenant": "acme", "status": "acked"}
    assert registry.get_sample_value("shop_received_processed_messages_total", labels) == 1


def test_custom_size_buckets(registry):
    recorder = PrometheusRecorder(
        registry=registry, app_name="shop", received_messages_size_buckets=[10, 20]
    )
    recorder(events.DISPATCHED, {**ROW, "size_bytes": 15})
    assert consumed(registry, BUS + "messages_size_bytes_bucket", le="10.0") == 0
    assert consumed(registry, BUS + "messages_size_bytes_bucket", le="20.0") == 1


def test_default_buckets(registry, recorder):
    recorder(events.DISPATCHED, {**ROW, "size_bytes": 1})
    recorder(events.ACKED, RAN)
    sizes, durations = set(), set()
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == BUS + "messages_size_bytes_bucket":
                sizes.add(float(sample.labels["le"]))
            if sample.name == BUS + "processed_messages_duration_seconds_bucket":
                durations.add(float(sample.labels["le"]))
    infinite = float("inf")
    assert sizes == {2.0**power for power in range(4, 25, 2)} | {infinite}
    seconds = {0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, infinite}
    assert durations == seconds


def test_two_recorders_share_a_registry(registry):
    for app in ("shop", "shop", "desk"):
        PrometheusRecorder(registry=registry, app_name=app)(events.ACKED, RAN)
    name = BUS + "processed_messages_total"
    assert consumed(registry, name, status="acked") == 2
    assert consumed(registry, name, status="acked", app_name="desk") == 1


def test_other_labels_on_the_same_registry_are_refused_at_construction(registry):
    PrometheusRecorder(registry=registry)
    with pytest.raises(ValueError, match="custom_labels"):
        PrometheusRecorder(registry=registry, custom_labels={"zone": "eu"})


def test_it_shares_a_registry_with_the_frameworks_own_metrics(registry):
    container = pytest.importorskip("faststream.prometheus.container")
    container.MetricsContainer(registry, custom_label_names=())
    PrometheusRecorder(registry=registry, app_name="shop")(events.ACKED, RAN)
    assert consumed(registry, BUS + "processed_messages_total", status="acked") == 1


def test_every_word_of_the_vocabulary_is_accepted(recorder):
    numbers = {"count", "size_bytes", "duration_seconds", "next_delay_seconds", "age_seconds"}
    for event in events.VOCABULARY.values():
        for names in (event.tags, (*event.tags, *event.sometimes)):
            recorder(event.name, {name: 1 if name in numbers else "x" for name in names})


def test_without_the_extra_construction_names_the_pip_line(monkeypatch, registry):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install 'outlast\[prometheus\]'"):
        PrometheusRecorder(registry=registry)


def test_public_names():
    assert BROKER_SYSTEM == "outbox"
    assert MetricsRecorder is events.Emit
