"""The options of the engine and of one subscription: frozen, validated, each one documented.

Wrong values are refused here, so every way of building a subscription refuses them alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from outlast.policy.horizon import horizon_seconds
from outlast.policy.names import check_name, check_queue
from outlast.policy.retry import default_strategy


def _count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value!r}")


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    if value <= 0:
        raise ValueError(f"{name} must be > 0, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class SubscriptionOptions:
    """One subscription: which queues, how many at once, for how long."""

    queues: Sequence[str]
    """The queues it serves, in no order of precedence."""
    max_workers: int = 1
    """Handlers at the same time."""
    fetch_batch_size: int = 10
    """Rows of one claim, and the most that wait unstarted while the next claim is under way."""
    min_fetch_interval: float = 1.0
    """The least wait after a claim that came back short, without a wake-up."""
    max_fetch_interval: float = 10.0
    """Where that wait stops doubling while the queue is idle."""
    lease_ttl_seconds: float = 60.0
    """How long a lease lasts without a refresh; a living worker refreshes every third of it."""
    lease_limit_seconds: float | None = None
    """When refreshing ends and the handler is cancelled. None: ten times the TTL."""
    max_deliveries: int | None = None
    """Claims, crashes included, after which a row is ended unrun. None: never."""
    terminal_flush_batch_size: int = 1
    """Above 1 it caps how many outcomes are settled in one statement. 1 means not set."""
    retry_strategy: Any = field(default_factory=default_strategy)
    """Asked after each failure; see `outlast.policy.retry`."""

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):
            object.__setattr__(self, "queues", (self.queues,))
        queues = tuple(check_queue(q) for q in self.queues)
        if not queues:
            raise ValueError("a subscriber needs at least one queue")
        repeated = sorted({q for q in queues if queues.count(q) > 1}) if len(queues) < 1000 else []  # noqa: PLR2004
        if repeated or len(set(queues)) != len(queues):
            raise ValueError(f"a queue is named twice in one subscriber: {repeated or queues!r}")
        object.__setattr__(self, "queues", queues)
        for name in ("max_workers", "fetch_batch_size", "terminal_flush_batch_size"):
            _count(name, getattr(self, name))
        if self.max_deliveries is not None:
            _count("max_deliveries", self.max_deliveries)
        for name in ("min_fetch_interval", "max_fetch_interval", "lease_ttl_seconds"):
            _seconds(name, getattr(self, name))
        if self.lease_limit_seconds is not None:
            _seconds("lease_limit_seconds", self.lease_limit_seconds)
        if self.min_fetch_interval > self.max_fetch_interval:
            raise ValueError(
                f"min_fetch_interval ({self.min_fetch_interval!r}) must be <= "
                f"max_fetch_interval ({self.max_fetch_interval!r})",
            )

    @property
    def lease_limit(self) -> float:
        """The limit in seconds, the default applied."""
        return self.lease_limit_seconds or 10 * self.lease_ttl_seconds

    @property
    def refresh_seconds(self) -> float:
        """How often a lease in hand begins anew."""
        return min(self.lease_ttl_seconds / 3, 10.0)

    @property
    def unstarted_seconds_max(self) -> float:
        """How long a row may wait in hand before it is given back to others."""
        return min(self.lease_ttl_seconds / 3, 5.0)

    @cached_property
    def retry_horizon(self) -> float | None:
        """How long the strategy keeps a message at most, if that is known."""
        return horizon_seconds(self.retry_strategy)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What holds for every subscription of one engine."""

    consumer_instance: str
    """Who this process is in dead letters: host and pid unless told otherwise."""
    consumer_version: str | None = None
    """The application's version in dead letters; never guessed."""
    blocked_loop_seconds: float = 1.0
    """How long the event loop may stand still before a warning names the handler."""
    settle_group_max: int = 500
    """Outcomes of one settle statement."""
    letter_group_max: int = 100
    """Dead letters of one statement."""

    def __post_init__(self) -> None:
        # every dead letter holds them: a value that no database stores would refuse each
        if self.consumer_version is not None:
            check_name("consumer_version", self.consumer_version)
        instance = self.consumer_instance
        check_name("consumer_instance", instance[:255] if isinstance(instance, str) else instance)
