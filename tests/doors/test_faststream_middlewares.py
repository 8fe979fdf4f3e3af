"""The native middlewares: FastStream's Prometheus and OpenTelemetry ones, told about outboxes."""

import asyncio
import builtins
import importlib
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from outlast import NoRetry, TestOutboxBroker
from outlast.opentelemetry import OutboxTelemetryMiddleware, OutboxTelemetrySettingsProvider
from outlast.prometheus import OutboxMetricsSettingsProvider, OutboxPrometheusMiddleware
from tests.doors.outbox import broker_on


def exercise(middleware):
    async def main():
        broker = broker_on(middlewares=[middleware])

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            if body:
                raise RuntimeError("boom")

        async with TestOutboxBroker(broker):
            await broker.publish(0, queue="q", correlation_id="c", message_id="m")
            await broker.publish(1, queue="q")
            await broker.publish_batch(0, 0, 0, queue="q")

    asyncio.run(main())


def test_prometheus():
    """Counts by queue, with the labels of FastStream's other brokers."""
    registry = CollectorRegistry()
    exercise(
        OutboxPrometheusMiddleware(registry=registry, app_name="app", custom_labels={"x": "y"})
    )

    def value(name, **labels):
        common = {"app_name": "app", "broker": "outbox", "x": "y"}
        return registry.get_sample_value(f"faststream_{name}", common | labels)

    processed = "received_processed_messages_total"
    assert value("received_messages_total", handler="q") == 5
    assert value(processed, handler="q", status="acked") == 4
    assert value(processed, handler="q", status="error") == 1
    assert value("published_messages_total", destination="q", status="success") == 5
    assert OutboxMetricsSettingsProvider().messaging_system == "outbox"


def test_opentelemetry():
    """Spans carry row id, correlation id, size and queue; batches their count."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    exercise(
        OutboxTelemetryMiddleware(
            tracer_provider=tracer_provider,
            meter_provider=MeterProvider([reader]),
            include_messages_counters=True,
        )
    )
    spans = [dict(span.attributes) for span in exporter.get_finished_spans()]
    assert all(span["messaging.system"] == "outbox" for span in spans)
    first = next(s for s in spans if s.get("messaging.message.id") == "m")
    assert first["messaging.message.conversation_id"] == "c"
    assert first["messaging.message.payload_size_bytes"] == 1
    assert first["messaging.destination_publish.name"] == "q"
    assert 3 in {span.get("messaging.batch.message_count") for span in spans}
    names = {
        metric.name
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {"messaging.process.duration", "messaging.publish.messages"} <= names
    assert OutboxTelemetrySettingsProvider().messaging_system == "outbox"


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("prometheus", "prometheus_client", "prometheus"),
        ("opentelemetry", "opentelemetry", "opentelemetry"),
        ("fastapi", "fastapi", "fastapi"),
    ],
)
def test_a_missing_extra(monkeypatch, module, missing, extra):
    """The error says what to install."""
    for name in list(sys.modules):
        top = name.partition(".")[0]
        heavy = name.startswith((f"faststream.{module}", f"faststream._internal.{module}"))
        if top == missing or heavy or name in {f"outlast.{module}", f"outlast.faststream.{module}"}:
            monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.partition(".")[0] == missing:
            raise ImportError(f"no {missing}")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"pip install 'outlast\[{extra}\]'"):
        importlib.import_module(f"outlast.{module}")
