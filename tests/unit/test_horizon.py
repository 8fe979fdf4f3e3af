"""How long a strategy keeps a message: an upper bound that real delays keep, or None."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from outlast.policy import jitter
from outlast.policy.horizon import horizon_seconds
from outlast.policy.retry import (
    ConstantRetry,
    ExponentialRetry,
    LinearRetry,
    NoRetry,
    default_strategy,
)

BOUNDED = [
    NoRetry(),
    default_strategy(),
    ConstantRetry(delay_seconds=3, max_attempts=7, jitter_factor=1.5),
    ConstantRetry(delay_seconds=3, max_total_delay_seconds=20),
    LinearRetry(initial_delay_seconds=1, step_seconds=2, max_attempts=9, jitter_factor=0.3),
    ExponentialRetry(initial_delay_seconds=1, multiplier=3, max_delay_seconds=40, max_attempts=12),
    ExponentialRetry(initial_delay_seconds=8, multiplier=0.5, max_attempts=40, jitter_factor=2),
    ExponentialRetry(
        initial_delay_seconds=1, max_attempts=8, max_total_delay_seconds=30, jitter_factor=0.2
    ),
]


@pytest.mark.parametrize("at", [0.0, 1.0], ids=["shortest", "longest"])
@pytest.mark.parametrize("strategy", BOUNDED, ids=range(len(BOUNDED)))
def test_no_message_is_kept_longer_and_the_luckiest_nearly_as_long(strategy, at, monkeypatch):
    monkeypatch.setattr(jitter, "uniform", lambda low, high: low + at * (high - low))
    first = last = datetime(2030, 1, 1, tzinfo=UTC)
    for count in range(1, 1000):
        delay = strategy.get_next_attempt_delay(
            first_attempt_at=first, last_attempt_at=last, attempts_count=count
        )
        if delay is None:
            break
        last += timedelta(seconds=delay)
    else:
        pytest.fail("no end")
    kept, bound = (last - first).total_seconds(), horizon_seconds(strategy)
    assert bound is not None
    assert kept <= bound + 0.001
    if at == 1.0 and getattr(strategy, "max_total_delay_seconds", None) is None:
        assert kept == pytest.approx(bound)


class Own(ConstantRetry):
    """May do anything."""


@pytest.mark.parametrize(
    "strategy",
    [
        ConstantRetry(delay_seconds=1),
        ConstantRetry(delay_seconds=1, max_attempts=10**9),
        ExponentialRetry(initial_delay_seconds=1, multiplier=10, max_attempts=5000),
        LinearRetry(initial_delay_seconds=1, step_seconds=1e308, max_attempts=20),
        Own(delay_seconds=1, max_attempts=3),
        object(),
        None,
    ],
    ids=range(7),
)
def test_what_has_no_end_or_is_not_ours_has_no_horizon(strategy):
    assert horizon_seconds(strategy) is None


def test_a_bound_in_time_holds_whatever_the_number_of_attempts():
    endless = ConstantRetry(delay_seconds=1, max_attempts=10**9)
    bounded = dataclasses.replace(endless, max_total_delay_seconds=60.0)
    assert horizon_seconds(bounded) == 60.0
