"""Drain: finish what is in hand within the time given, release the rest, wait for its settles.

What was started is cancelled and awaited before it is released; a handler that does not end (a
thread that runs on) keeps its lease, so that nobody runs it a second time beside it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from outlast.engine.dispatch import FOR_STOP
from outlast.engine.hand import InHand, Subscription
from outlast.engine.tell import Teller
from outlast.model.outcome import RELEASE, Outcome

CANCEL_SECONDS = 0.8
"""How long cancelled handlers may take to end."""
SETTLE_SECONDS = 0.5
"""How long the last settles may take. With the above and what the engine takes to close, a stop
ends within its time + 2 s."""


async def drain(
    subscriptions: Sequence[Subscription],
    seconds: float,
    *,
    settle: Callable[[InHand, Outcome], None],
    tell: Teller,
    logger: logging.Logger,
) -> None:
    """Empty the hands of these subscriptions."""
    for subscription in subscriptions:
        subscription.stopping = True
        subscription.abandoned.clear()
        # slots kept free for expired rows are free for the prefetched ones
        subscription.rouse(subscription.options.max_workers)
    if await _emptied(subscriptions, seconds):
        return
    for subscription in subscriptions:
        if not subscription.hand:
            continue
        logger.warning(
            "drain timed out after %g s: %d rows of %s are given back",
            seconds,
            len(subscription.hand),
            subscription.name,
        )
        tell.drain_timeout(subscription, seconds)
        _give_up_waiting(subscription, settle)
    if not await _emptied(subscriptions, CANCEL_SECONDS):
        abandon(subscriptions, tell)
    await _emptied(subscriptions, SETTLE_SECONDS)


async def _emptied(subscriptions: Sequence[Subscription], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            for subscription in subscriptions:
                while not subscription.is_idle:
                    subscription.idle.clear()
                    await subscription.idle.wait()
    except TimeoutError:
        return False
    return True


def _give_up_waiting(subscription: Subscription, settle: Callable[[InHand, Outcome], None]) -> None:
    for waiting in (subscription.reclaimed, subscription.ready):
        while waiting:
            settle(waiting.popleft(), RELEASE)
    cancel_started(subscription)


def cancel_started(subscription: Subscription) -> None:
    """Its handlers are told to end, and that it is for a stop: no failed attempt."""
    for entry in subscription.hand:
        if entry.task is not None and entry.cancelled_for is None:
            entry.cancelled_for = FOR_STOP
            entry.task.cancel()


def abandon(subscriptions: Sequence[Subscription], tell: Teller) -> None:
    """What is still started is left to itself, and its lease runs out."""
    now = asyncio.get_running_loop().time()
    for subscription in subscriptions:
        for entry in list(subscription.hand):
            if entry.task is not None and entry.started_at is not None:
                tell.abandoned(entry, now - entry.started_at)
                # what its handler returns later finds no row in hand
                subscription.close(entry)
                entry.lost = True
