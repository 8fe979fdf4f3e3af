"""Registering a subscriber: what is refused, what is warned about, and on whose line."""

import asyncio
import math
import warnings

import pytest
from faststream import AckPolicy

from outlast import ConstantRetry, ExponentialRetry, NoRetry, OutboxRouter
from outlast.fastapi import OutboxRouter as FastAPIRouter
from outlast.router import OutboxRoute
from tests.doors.outbox import broker_on, tables


async def handler(body: int) -> None: ...


def on_broker(*args, **options):
    return broker_on().subscriber(*args, **options)


def on_router(*args, **options):
    return OutboxRouter().subscriber(*args, **options)


def by_route(*args, **options):
    return OutboxRouter([OutboxRoute(handler, *args, **options)])


def by_fastapi(*args, **options):
    return FastAPIRouter(**tables(), logger=None).subscriber(*args, **options)


PATHS = pytest.mark.parametrize("subscribe", [on_broker, on_router, by_route, by_fastapi])

COUNTS = ("max_workers", "fetch_batch_size", "terminal_flush_batch_size", "max_deliveries")
SECONDS = ("min_fetch_interval", "max_fetch_interval", "lease_ttl_seconds", "lease_limit_seconds")

REFUSED = [
    ([], {}, ValueError, "at least one queue"),
    (5, {}, TypeError, "queue must be a str"),
    ([5], {}, TypeError, "queue must be a str"),
    ("", {}, ValueError, "non-empty"),
    ("q" * 256, {}, ValueError, "255"),
    (["q", "q"], {}, ValueError, "twice"),
    *(("q", {name: "1"}, TypeError, name) for name in COUNTS),
    *(("q", {name: True}, TypeError, name) for name in COUNTS),
    *(("q", {name: 1.0}, TypeError, name) for name in COUNTS),
    *(("q", {name: 0}, ValueError, f"{name} must be >= 1") for name in COUNTS),
    *(("q", {name: math.nan}, ValueError, name) for name in SECONDS),
    *(("q", {name: math.inf}, ValueError, name) for name in SECONDS),
    *(("q", {name: 0}, ValueError, f"{name} must be > 0") for name in SECONDS),
    *(("q", {name: -1.0}, ValueError, f"{name} must be > 0") for name in SECONDS),
    (
        "q",
        {"min_fetch_interval": 3, "max_fetch_interval": 2},
        ValueError,
        r"min_fetch_interval \(3\) must be <= max_fetch_interval \(2\)",
    ),
    ("q", {"ack_policy": AckPolicy.ACK_FIRST}, ValueError, "ACK_FIRST is not supported"),
]


@PATHS
@pytest.mark.parametrize(("queues", "options", "error", "text"), REFUSED)
def test_refused(subscribe, queues, options, error, text):
    """S1-19, S1-20, S1-29: on every construction path, with the option named."""
    with pytest.raises(error, match=text):
        subscribe(queues, **options)


WARNED = [
    (
        {"ack_policy": AckPolicy.REJECT_ON_ERROR, "retry_strategy": ConstantRetry(delay_seconds=1)},
        "REJECT_ON_ERROR rejects on the first handler error",
    ),
    (
        {"ack_policy": AckPolicy.NACK_ON_ERROR, "retry_strategy": NoRetry()},
        "NACK_ON_ERROR with retry_strategy=NoRetry",
    ),
    ({"max_deliveries": 3, "retry_strategy": NoRetry()}, r"NoRetry\(\)"),
    (
        {"max_deliveries": 3, "retry_strategy": NoRetry()},
        "max_deliveries is set but no retry_strategy",
    ),
    ({"max_deliveries": 2, "max_workers": 2}, "max_deliveries=2 with max_workers=2"),
    ({"lease_ttl_seconds": 5}, r"lease_ttl_seconds=5 <= max_fetch_interval=10\.0"),
    ({"ack_policy": AckPolicy.ACK}, "neither retried nor kept"),
]


@PATHS
@pytest.mark.parametrize(("options", "text"), WARNED)
def test_warned_about(subscribe, options, text):
    """S1-17, S1-18, S1-20: a UserWarning on the user's own line."""
    with pytest.warns(UserWarning, match=text) as caught:
        subscribe("q", **options)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ack_policy": AckPolicy.NACK_ON_ERROR},
        {"ack_policy": AckPolicy.REJECT_ON_ERROR},
        {"ack_policy": AckPolicy.REJECT_ON_ERROR, "retry_strategy": NoRetry()},
        {"ack_policy": AckPolicy.MANUAL},
        {"retry_strategy": NoRetry()},
        {"max_deliveries": 3, "max_workers": 8},
        {"max_deliveries": 1},
        {"retry_strategy": ExponentialRetry(initial_delay_seconds=1), "max_deliveries": 5},
    ],
)
def test_not_warned_about(options):
    """S1-31: what is right is left in peace, opting out of retries included."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_broker("q", **options)


def test_a_duplicate_subscriber():
    """A second subscriber of a queue on the same broker."""
    broker = broker_on()
    broker.subscriber(["a", "b"])
    with pytest.warns(UserWarning, match="Duplicate subscriber for 'b'") as caught:
        broker.subscriber(["b", "c"])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        broker.subscriber("d")


def test_no_prefix():
    """A router has no prefix."""
    with pytest.raises(ValueError, match="prefix"):
        broker_on().include_router(OutboxRouter(), prefix="x_")


def test_a_subscriber_cannot_peek():
    """S1-48: both ways name the alternative."""
    subscriber = on_broker("q")

    async def get_one():
        await subscriber.get_one()

    async def iterate():
        async for _ in subscriber:
            pass

    for attempt in (get_one, iterate):
        with pytest.raises(NotImplementedError, match="fetch_unprocessed"):
            asyncio.run(attempt())
