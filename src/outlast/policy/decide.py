"""The one place where a strategy is asked. Whatever it does, a message is never lost to it.

A strategy that raises, or answers with what is no delay, falls back to the default strategy's
delays without its bound on attempts: that is never terminal.
"""

import asyncio
import logging
import math
from datetime import datetime
from typing import Any

from outlast.model.delivery import Attempt
from outlast.model.failure import Failure
from outlast.model.outcome import RETRY_TERMINAL, Outcome, Retry, Terminal
from outlast.policy.retry import HUNDRED_YEARS, ExponentialRetry

_logger = logging.getLogger("outlast")

_FALLBACK = ExponentialRetry(
    initial_delay_seconds=1.0, multiplier=2.0, max_delay_seconds=300.0, jitter_factor=0.2
)

_AT = "get_next_attempt_at"
_DELAY = "get_next_attempt_delay"


def prefers_instant(strategy: object) -> bool:
    """Whether `get_next_attempt_at` is overridden lower in the MRO than the other hook."""
    for cls in type(strategy).__mro__:
        if _AT in vars(cls):
            return _DELAY not in vars(cls)
        if _DELAY in vars(cls):
            return False
    return not hasattr(strategy, _DELAY)


def _ask(strategy: Any, attempt: Attempt, exception: BaseException | None) -> float | None:
    arguments = {
        "first_attempt_at": attempt.first_at,
        "last_attempt_at": attempt.last_at,
        "attempts_count": attempt.count,
        "exception": exception,
    }
    if prefers_instant(strategy):
        instant: datetime | None = strategy.get_next_attempt_at(**arguments)
        if instant is None:
            return None
        if instant.tzinfo is None:
            raise ValueError(f"{_AT} returned {instant!r}, which has no time zone")
        return min(max(0.0, (instant - attempt.last_at).total_seconds()), HUNDRED_YEARS)
    answer = strategy.get_next_attempt_delay(**arguments)
    if answer is None:
        return None
    delay = float(answer)
    if not (math.isfinite(delay) and delay >= 0):
        raise ValueError(f"{_DELAY} returned {answer!r}; a number of seconds >= 0 is needed")
    return min(delay, HUNDRED_YEARS)


def after_failure(
    strategy: Any, attempt: Attempt, exception: BaseException | None, failure: Failure | None
) -> Outcome:
    """What becomes of a row whose attempt failed."""
    try:
        delay = _ask(strategy, attempt, exception)
    # nobody awaits a strategy: an exit or a cancellation from one ends nobody
    except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError):
        _logger.exception(
            "retry strategy %s raised; the message is retried with the default delays",
            type(strategy).__qualname__,
        )
        delay = _FALLBACK.get_next_attempt_delay(
            first_attempt_at=attempt.first_at,
            last_attempt_at=attempt.last_at,
            attempts_count=attempt.count,
        )
    if delay is None:
        return Terminal(RETRY_TERMINAL, failure)
    return Retry(delay, failure)
