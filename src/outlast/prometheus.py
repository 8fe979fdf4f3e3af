"""Prometheus metrics by FastStream's middleware. For the engine's events: `outlast.metrics`."""

from outlast.faststream.prometheus import (
    OutboxMetricsSettingsProvider,
    OutboxPrometheusMiddleware,
)

__all__ = ["OutboxMetricsSettingsProvider", "OutboxPrometheusMiddleware"]
