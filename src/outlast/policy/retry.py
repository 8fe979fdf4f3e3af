"""Retry strategies: given the counters and the exception, when to try again, or not at all.

User code overrides `get_next_attempt_delay` (seconds) or `get_next_attempt_at` (a datetime);
`policy.decide` calls whichever of the two is overridden lower in the class tree.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from outlast.policy import jitter

HUNDRED_YEARS = 100 * 365.25 * 86_400.0


@runtime_checkable
class RetryStrategyProto(Protocol):
    """What a subscriber needs of a strategy."""

    def get_next_attempt_delay(
        self,
        *,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
        attempts_count: int,
        exception: BaseException | None = None,
    ) -> float | None:
        """Seconds until the next attempt, or None for a terminal failure."""


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be > 0 and finite, got {value!r}")


@dataclass(kw_only=True)
class _Template:
    """The bounds every strategy shares. `attempts_count` includes the attempt that just failed."""

    max_attempts: int | None = None
    max_total_delay_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError(f"max_attempts must be >= 1, got {self.max_attempts!r}")
        _positive(self, "max_total_delay_seconds")

    def _delay(self, attempts_count: int) -> float:
        raise NotImplementedError

    def get_next_attempt_delay(
        self,
        *,
        first_attempt_at: datetime,
        last_attempt_at: datetime,
        attempts_count: int,
        exception: BaseException | None = None,  # noqa: ARG002 - part of the hook
    ) -> float | None:
        """Seconds until the next attempt, or None for a terminal failure."""
        if self.max_attempts is not None and attempts_count >= self.max_attempts:
            return None
        delay = self._delay(attempts_count)
        if self.max_total_delay_seconds is not None:
            elapsed = (last_attempt_at - first_attempt_at).total_seconds()
            if elapsed + delay > self.max_total_delay_seconds:
                return None
        return delay

    def get_next_attempt_at(
        self, *, exception: BaseException | None = None, **kw: Any
    ) -> datetime | None:
        """The same as an instant, for subclasses that would rather override this one."""
        delay = self.get_next_attempt_delay(exception=exception, **kw)
        if delay is None:
            return None
        return _later(kw["last_attempt_at"], delay)


def _later(instant: datetime, seconds: float) -> datetime:
    try:
        return instant + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


@dataclass(kw_only=True)
class NoRetry:
    """The first failure is the last."""

    def get_next_attempt_delay(
        self,
        *,
        first_attempt_at: datetime,  # noqa: ARG002
        last_attempt_at: datetime,  # noqa: ARG002
        attempts_count: int,  # noqa: ARG002
        exception: BaseException | None = None,  # noqa: ARG002
    ) -> float | None:
        """Never again."""
        return None

    def get_next_attempt_at(
        self, *, exception: BaseException | None = None, **kw: Any
    ) -> datetime | None:
        """Never again, unless a subclass knows better."""
        delay = self.get_next_attempt_delay(exception=exception, **kw)
        return None if delay is None else _later(kw["last_attempt_at"], delay)


@dataclass(kw_only=True)
class _Jittered(_Template):
    jitter_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.jitter_factor <= 2:  # noqa: PLR2004
            raise ValueError(f"jitter_factor must be in [0, 2], got {self.jitter_factor!r}")


@dataclass(kw_only=True)
class ConstantRetry(_Jittered):
    """Always the same delay."""

    delay_seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "delay_seconds")

    def _delay(self, attempts_count: int) -> float:  # noqa: ARG002
        return jitter.spread(self.delay_seconds, self.jitter_factor)


@dataclass(kw_only=True)
class LinearRetry(_Jittered):
    """The delay grows by a step."""

    initial_delay_seconds: float
    step_seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "initial_delay_seconds")
        if not (self.step_seconds >= 0 and math.isfinite(self.step_seconds)):
            raise ValueError(f"step_seconds must be >= 0, got {self.step_seconds!r}")

    def _delay(self, attempts_count: int) -> float:
        steps = max(0, attempts_count - 1)
        return jitter.spread(
            self.initial_delay_seconds + self.step_seconds * steps, self.jitter_factor
        )


@dataclass(kw_only=True)
class ExponentialRetry(_Jittered):
    """The delay is multiplied each time; the cap is applied after the jitter."""

    initial_delay_seconds: float
    multiplier: float = 2.0
    max_delay_seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "initial_delay_seconds", "multiplier", "max_delay_seconds")

    def _delay(self, attempts_count: int) -> float:
        try:
            delay = self.initial_delay_seconds * self.multiplier ** max(0, attempts_count - 1)
        except OverflowError:
            delay = HUNDRED_YEARS
        delay = jitter.spread(delay, self.jitter_factor)
        cap = HUNDRED_YEARS if self.max_delay_seconds is None else self.max_delay_seconds
        return min(delay, cap, HUNDRED_YEARS)


def default_strategy() -> ExponentialRetry:
    """Ten attempts over about eight and a half minutes."""
    return ExponentialRetry(
        initial_delay_seconds=1.0,
        multiplier=2.0,
        max_delay_seconds=300.0,
        max_attempts=10,
        jitter_factor=0.2,
    )
