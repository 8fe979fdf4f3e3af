"""How long a strategy keeps a message at most. In: a strategy. Out: seconds from the first failure
to the last attempt, handlers' own time aside; None where there is no end, or nobody can say.
"""

import math

from outlast.policy.retry import (
    HUNDRED_YEARS,
    ConstantRetry,
    ExponentialRetry,
    LinearRetry,
    NoRetry,
)

_WAITS_MAX = 10_000
"""Who retries more often than that is not waited for."""


def horizon_seconds(strategy: object) -> float | None:
    """Of our own strategies only: a subclass may do anything."""
    if type(strategy) is NoRetry:
        return 0.0
    if type(strategy) not in {ConstantRetry, LinearRetry, ExponentialRetry}:
        return None
    assert isinstance(strategy, ConstantRetry | LinearRetry | ExponentialRetry)
    bounds = [strategy.max_total_delay_seconds or math.inf, _all_waits(strategy)]
    bound = min(bounds)
    return bound if bound < HUNDRED_YEARS else None


def _all_waits(strategy: ConstantRetry | LinearRetry | ExponentialRetry) -> float:
    if strategy.max_attempts is None or strategy.max_attempts > _WAITS_MAX:
        return math.inf
    most = 1 + strategy.jitter_factor / 2
    return sum(_wait(strategy, count) * most for count in range(1, strategy.max_attempts))


def _wait(strategy: ConstantRetry | LinearRetry | ExponentialRetry, count: int) -> float:
    """After so many attempts, without the jitter."""
    match strategy:
        case ConstantRetry():
            return strategy.delay_seconds
        case LinearRetry():
            return strategy.initial_delay_seconds + strategy.step_seconds * (count - 1)
    most = 1 + strategy.jitter_factor / 2
    # the cap is applied after the jitter
    cap = (strategy.max_delay_seconds or HUNDRED_YEARS) / most
    try:
        return min(strategy.initial_delay_seconds * strategy.multiplier ** (count - 1), cap)
    except OverflowError:
        return cap
