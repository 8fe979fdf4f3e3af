"""`PrometheusRecorder`, under its public name."""

from outlast.observe.prometheus import PrometheusRecorder

__all__ = ["PrometheusRecorder"]
