"""Report: this worker tells that it runs, which queues it serves, and what it allows for.

Comes in: the subscriptions, and what their handlers took. Goes out: one row in the table of
workers, where there is one, on the letters line. Others read it; no delivery depends on it.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import uuid4

from outlast.engine.hand import Subscription
from outlast.engine.options import EngineOptions
from outlast.model.errors import Disconnected, OutcomeUnknown, RowLocked, StoreFailure, TryLater
from outlast.model.worker import FORGOTTEN_MAX, REPORT_SECONDS, WorkerReport
from outlast.ports.store import Store

LEFT_MAX = 100
"""Subscribers that have stopped and are still named."""
QUEUES_MAX = 10_000
"""Names of queues in one report; what is beyond it counts as not served."""
STOP_SECONDS = 1.2
"""How long a stop may wait, from its beginning, until it is told: an idle worker's stop ends within
2 s with it, and who drains longer has told it meanwhile."""

_WRITE_SECONDS = 2.0
"""Dead letters wait for this statement, so it may not take long."""
_AGAIN_SECONDS = 0.1
_FORGET_SECONDS = 3600.0


class Reporter:
    """Writes the row of one engine."""

    def __init__(
        self,
        store: Store,
        options: EngineOptions,
        subscriptions: Callable[[], Iterable[Subscription]],
        timeout: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        self._store = store
        self._version = options.consumer_version
        # an instance may be named alike by two processes, and a pid comes again after a restart
        self.instance = f"{options.consumer_instance[:240]}:{uuid4().hex[:8]}"
        self._subscriptions = subscriptions
        self._left: deque[Subscription] = deque(maxlen=LEFT_MAX)
        self._timeout = timeout
        self._logger = logger
        self._started_at = 0.0
        self._write_at = 0.0
        self._forget_at = 0.0
        self._stopping_at: float | None = None
        self._stop_told = asyncio.Event()
        self._failed_before = self._failing = False

    # -- what the engine calls

    def start(self) -> None:
        """The engine runs from now on."""
        self._started_at = asyncio.get_running_loop().time()

    def changed(self) -> None:
        """A subscription came or went: it is told with the next statement."""
        self._write_at = 0.0

    def left(self, subscription: Subscription) -> None:
        """It has stopped: still known, no longer served."""
        self._left.append(subscription)

    def stop(self) -> None:
        """The engine claims no more, whatever it still finishes."""
        self._stopping_at = asyncio.get_running_loop().time()
        self.changed()

    async def stopped(self) -> None:
        """Return when the stop is told, or has waited long enough for it."""
        if self._stopping_at is None or self._store.worker_table is None:
            return
        try:
            async with asyncio.timeout_at(self._stopping_at + STOP_SECONDS):
                await self._stop_told.wait()
        except TimeoutError:
            return

    def next_at(self) -> float | None:
        """When the row is due."""
        return None if self._store.worker_table is None else self._write_at

    async def write(self) -> None:
        """Write the row. Raises only when the line is lost."""
        now = asyncio.get_running_loop().time()
        self._write_at = now + REPORT_SECONDS
        stopping = self._stopping_at is not None
        timeout = min(self._timeout(), _WRITE_SECONDS)
        try:
            await self._store.report(self._report(now, stopping=stopping), timeout)
            await self._forget(now, timeout)
        except StoreFailure as failure:
            self._tell_failing(failure)
            if stopping:
                self._tell_stop_again()
            if isinstance(failure, Disconnected) or _is_lost(failure):
                raise
        else:
            self._tell_working()
            if stopping:
                self._stop_told.set()

    def _tell_stop_again(self) -> None:
        """Soon, as long as a stop could wait for it."""
        assert self._stopping_at is not None
        again = asyncio.get_running_loop().time() + _AGAIN_SECONDS
        if again < self._stopping_at + STOP_SECONDS:
            self._write_at = again

    # -- what is told

    def _report(self, now: float, *, stopping: bool) -> WorkerReport:
        subscriptions = [*self._subscriptions(), *self._left]
        running = max(0.0, now - self._started_at)
        told = tell_of(subscriptions, stopping=stopping)
        return WorkerReport(self.instance, self._version, running, told)

    async def _forget(self, now: float, timeout: float) -> None:
        if now < self._forget_at:
            return
        self._forget_at = now + _FORGET_SECONDS
        if await self._store.forget_workers(timeout) >= FORGOTTEN_MAX:
            self._forget_at = 0.0

    def _tell_failing(self, failure: StoreFailure) -> None:
        is_passing = isinstance(failure, RowLocked | TryLater | OutcomeUnknown | Disconnected)
        if is_passing and not self._failed_before:
            # the next one comes before anybody misses this
            self._failed_before = True
        elif not self._failing:
            self._failing = True
            self._logger.warning(
                "the row in %s that tells that this worker runs cannot be written; deliveries go "
                "on, but the desk does not see it: %s",
                self._store.worker_table,
                failure,
            )

    def _tell_working(self) -> None:
        self._failed_before = False
        if self._failing:
            self._failing = False
            self._logger.warning("the row in %s is written again", self._store.worker_table)


def _is_lost(failure: StoreFailure) -> bool:
    return isinstance(failure, OutcomeUnknown) and not failure.timed_out


def tell_of(subscriptions: Sequence[Subscription], *, stopping: bool) -> dict[str, Any]:
    """`queues` are those it claims from now: none of a subscription that stops."""
    serving = [s for s in subscriptions if not (stopping or s.stopping)]
    queues = {queue for s in serving for queue in s.options.queues}
    told: dict[str, Any] = {
        "queues": sorted(queues)[:QUEUES_MAX],
        "subscribers": _subscribers(subscriptions),
        "lease": max((s.ttl for s in subscriptions), default=None),
        "max_workers": sum(s.options.max_workers for s in serving),
        "retry_horizon": _longest([s.options.retry_horizon for s in subscriptions]),
        **_percentiles([seconds for s in subscriptions for seconds in s.durations]),
    }
    if stopping:
        told["stopped"] = True
    return told


def _subscribers(subscriptions: Sequence[Subscription]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    left = QUEUES_MAX
    for subscription in subscriptions:
        if left <= 0:
            break
        queues = sorted(subscription.options.queues)[:left]
        left -= len(queues)
        told.append(
            {
                "name": subscription.name[:255],
                "queues": queues,
                "lease": subscription.ttl,
                "max_workers": subscription.options.max_workers,
                "retry_horizon": subscription.options.retry_horizon,
                **_percentiles(subscription.durations),
            }
        )
    return told


def _longest(horizons: Sequence[float | None]) -> float | None:
    known = [horizon for horizon in horizons if horizon is not None]
    return max(known) if known and len(known) == len(horizons) else None


def _percentiles(durations: Iterable[float]) -> dict[str, float]:
    """Of the handlers that ended last; nothing before the first."""
    values = sorted(durations)
    if not values:
        return {}
    return {
        name: round(values[math.ceil(part * len(values)) - 1], 6)
        for name, part in (("p50", 0.5), ("p99", 0.99))
    }
