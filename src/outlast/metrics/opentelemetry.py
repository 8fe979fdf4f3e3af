"""`OpenTelemetryRecorder`, under its public name."""

from outlast.observe.opentelemetry import OpenTelemetryRecorder

__all__ = ["OpenTelemetryRecorder"]
