"""The public surface: every documented name is where it is documented to be."""

import ast
import importlib

import pytest

import outlast

from .package import PACKAGE, parsed

ROOT_NAMES = {
    *("ConstantRetry", "ExponentialRetry", "LinearRetry", "NoRetry", "RetryStrategyProto"),
    *("MetricsRecorder", "OutboxBroker", "OutboxMessage", "OutboxPublisher", "OutboxResponse"),
    *("OutboxRouter", "TestOutboxBroker", "TimerConflict"),
    *("make_dlq_table", "make_outbox_table", "outbox_autovacuum_ddl"),
}
OURS = {"LeaseLimitExceeded", "make_operations_tables"}

SUBMODULES = {
    "annotations": [
        *("OutboxMessage", "OutboxBroker", "OutboxProducer", "OutboxClient"),
        *("ContextRepo", "Logger", "NoCast"),
    ],
    "router": ["OutboxRouter", "OutboxRoute"],
    "testing": ["TestOutboxBroker", "fake_session", "FakeOutboxClient"],
    "fastapi": [
        *("OutboxRouter", "OutboxMessage", "OutboxBroker", "OutboxProducer", "OutboxClient"),
        *("Context", "ContextRepo", "Logger"),
    ],
    "metrics": ["MetricsRecorder", "BROKER_SYSTEM"],
    "metrics.prometheus": ["PrometheusRecorder"],
    "metrics.opentelemetry": ["OpenTelemetryRecorder"],
    "prometheus": ["OutboxPrometheusMiddleware", "OutboxMetricsSettingsProvider"],
    "opentelemetry": ["OutboxTelemetryMiddleware", "OutboxTelemetrySettingsProvider"],
    "client": ["OutboxClient", "AbstractOutboxClient"],
    "message": [
        *("OutboxInnerMessage", "OutboxMessage", "DLQFailureReason", "TimerConflict"),
        *("Ack", "Retry", "Terminal"),
    ],
    "response": ["OutboxResponse", "OutboxPublishCommand"],
    "configs": ["OutboxBrokerConfig", "LastExceptionRenderer"],
}


@pytest.mark.parametrize("name", sorted(ROOT_NAMES | OURS))
def test_a_root_name_resolves(name):
    assert getattr(outlast, name) is not None
    assert name in dir(outlast)


def test_the_root_offers_these_names_and_no_others():
    assert set(outlast.__all__) == ROOT_NAMES | OURS


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in SUBMODULES.items() for name in names]
)
def test_a_documented_name_resolves(module, name):
    assert getattr(importlib.import_module(f"outlast.{module}"), name) is not None


def test_route_is_not_a_root_name():
    assert not hasattr(outlast, "OutboxRoute")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="NoSuchName"):
        outlast.NoSuchName


def test_what_type_checkers_see_is_what_is_resolved():
    tree = parsed(PACKAGE / "__init__.py")
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname or alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == outlast._HOMES
    assert set(seen) == set(outlast.__all__)


def test_the_package_is_marked_as_typed():
    assert (PACKAGE / "py.typed").exists()
