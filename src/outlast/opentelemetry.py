"""Traces and metrics by FastStream's middleware. For the engine's events: `outlast.metrics`."""

from outlast.faststream.opentelemetry import (
    OutboxTelemetryMiddleware,
    OutboxTelemetrySettingsProvider,
)

__all__ = ["OutboxTelemetryMiddleware", "OutboxTelemetrySettingsProvider"]
