"""Metrics recorders: `MetricsRecorder` is what a broker's `metrics_recorder` must look like."""

from outlast.model.events import Emit
from outlast.observe import BROKER_SYSTEM

MetricsRecorder = Emit

__all__ = ["BROKER_SYSTEM", "MetricsRecorder"]
