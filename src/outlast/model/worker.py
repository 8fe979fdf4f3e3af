"""What a worker tells of itself. Made by the engine, written by a store, read by the desk.

One row for each engine. What it tells is a JSON object: `queues` that it claims from, `subscribers`
with theirs, and what their options and handlers allow for; see `engine.report`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REPORT_SECONDS = 10.0
"""How often a worker is seen."""

KEPT_DAYS = 30
"""How long a worker that is seen no more is remembered."""

FORGOTTEN_MAX = 100
"""How many rows one statement may forget."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One row, without the instants: those are the database's."""

    instance: str
    version: str | None
    running_seconds: float
    """Since it started; the database reckons back from its own clock."""
    told: Mapping[str, Any]
