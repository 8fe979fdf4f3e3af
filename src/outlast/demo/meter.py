"""What the live picture shows: counts of events, and the speed of the last seconds.

In: the broker's events, as a recorder. Out: numbers for the screen. They are quick, not proven:
the last table never reads them.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from outlast.model import events

_SPEED_SECONDS = 2.0


@dataclass(slots=True)
class Picture:
    """One frame: everything that the screen shows."""

    elapsed: float
    committed: int
    delivered: Mapping[str, int]
    retried: Mapping[str, int]
    dead: Mapping[str, int]
    waiting: int
    oldest_seconds: float
    per_second: float
    phase: str


class Meter:
    """A metrics recorder, as any application can pass one to its broker."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.delivered: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._counters = {
            events.ACKED: self.delivered,
            events.NACKED_RETRIED: self.retried,
            events.DLQ_WRITTEN: self.dead,
        }

    def __call__(self, name: str, tags: Mapping[str, Any]) -> None:
        """Count what happened."""
        counter = self._counters.get(name)
        if counter is not None:
            counter[tags["queue"]] += 1

    def per_second(self) -> float:
        """Deliveries per second, over the last moments."""
        now, delivered = self._clock(), self.delivered.total()
        self._samples.append((now, delivered))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _SPEED_SECONDS:  # noqa: PLR2004
            self._samples.popleft()
        began, before = self._samples[0]
        return (delivered - before) / (now - began) if now > began else 0.0
