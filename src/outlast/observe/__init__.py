"""Translations of the events: logs, Prometheus, OpenTelemetry.

Events come in as `(name, tags)`, nothing goes back: a translation never changes what happens to a
message. Drivers of the extras are imported when a recorder is made, never before.
"""

from typing import Final

BROKER_SYSTEM: Final = "outbox"
"""The broker's name in labels and attributes."""
