"""A worker process: one engine, one handler that does what the message says, a ledger.

Its scene and role come from a file of `Scene.save`. SIGTERM stops it gracefully.
"""

import asyncio
import json
import logging
import os
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from outlast.engine.engine import Engine
from outlast.engine.options import EngineOptions, SubscriptionOptions
from outlast.model.delivery import Delivery
from outlast.model.errors import OutlastError
from outlast.model.events import Emit
from outlast.model.outcome import ACK, Outcome
from outlast.policy.retry import ConstantRetry
from outlast.policy.verdict import Verdicts
from tests.crash import mutants
from tests.crash.hooks import HookedStore, Trap
from tests.crash.ledger import Ledger
from tests.crash.scene import QUEUE, RETRY_SECONDS, Scene, checksum

ATTEMPTS_MAX = 2
"""Of a message whose handler always fails."""

_logger = logging.getLogger("worker")

STARTS_MAX = 30

VERDICTS = Verdicts(ConstantRetry(delay_seconds=RETRY_SECONDS, max_attempts=ATTEMPTS_MAX), "handle")


class Rejected(Exception):
    """A handler that refuses its message for good."""


class Handler:
    """Does what the message says, and writes down its beginning and its end."""

    def __init__(self, ledger: Ledger, trap: Trap) -> None:
        self._ledger = ledger
        self._trap = trap
        self._random = random.Random(os.getpid())

    async def __call__(self, delivery: Delivery) -> Outcome:
        try:
            await self.run(delivery)
        except Rejected as refusal:
            return VERDICTS.rejected(refusal)
        return ACK

    async def run(self, delivery: Delivery) -> None:
        """The handler proper."""
        told = json.loads(delivery.payload)
        facts = {"row": delivery.id, "token": delivery.token.hex, "m": told["m"]}
        self._ledger.write(
            "start",
            **facts,
            acquired=delivery.acquired_at.timestamp(),
            due=delivery.next_attempt_at.timestamp(),
            attempts=delivery.attempts_count,
            deliveries=delivery.deliveries_count,
            sum=checksum(delivery.payload),
        )
        self._trap.reach("handling")
        try:
            await self._work(told, delivery)
        except asyncio.CancelledError:
            self._ledger.write("end", **facts, how="cancelled")
            raise
        except Exception:
            self._ledger.write("end", **facts, how="fail")
            raise
        self._ledger.write("end", **facts, how="ok")
        self._trap.reach("handled")

    async def _work(self, told: dict[str, Any], delivery: Delivery) -> None:
        kind = told["k"]
        if kind == "exit":
            os._exit(137)
        if (seconds := told.get("s")) is not None:
            await asyncio.sleep(seconds)
        elif self._random.random() < 0.1:
            await asyncio.sleep(self._random.uniform(0.0, 0.03))
        if kind == "reject":
            raise Rejected(told["m"])
        if kind == "always" or (kind == "once" and delivery.attempts_count == 0):
            raise ValueError(f"{told['m']} fails")


def build(
    scene: Scene,
    store: Any,
    deliver: Callable[[Delivery], Awaitable[Outcome]],
    logger: logging.Logger | None = None,
    emit: Emit | None = None,
) -> Engine:
    """An engine of the scene with one subscription."""
    name = f"worker:{os.getpid()}"
    engine = Engine(store, EngineOptions(consumer_instance=name), emit=emit, logger=logger)
    options = SubscriptionOptions(
        queues=QUEUE,
        max_workers=scene.workers,
        fetch_batch_size=scene.batch,
        min_fetch_interval=scene.min_fetch,
        max_fetch_interval=scene.max_fetch,
        lease_ttl_seconds=scene.lease,
        max_deliveries=scene.max_deliveries,
        retry_strategy=VERDICTS.strategy,
    )
    engine.subscribe("handle", options, deliver, VERDICTS)
    return engine


async def main(scene: Scene, role: dict[str, Any]) -> None:
    """Until SIGTERM."""
    asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    ledger = scene.ledger()
    trap = Trap(ledger, role.get("stage"), role.get("at", ()), scene.dsn)
    database = scene.engine()
    handler: Callable[[Delivery], Awaitable[Outcome]] = Handler(ledger, trap)

    def assemble() -> Engine:
        store: Any = scene.store(database)
        store, deliver = mutants.plant(role.get("mutant"), store, handler, database, scene.folder)
        if scene.hooked:
            store = HookedStore(store, ledger, trap)
        return build(scene, store, deliver)

    engine = await _started(assemble)
    ledger.write("ready")
    await asked_to_stop.wait()
    ledger.write("stopping")
    await engine.stop(scene.grace)
    await database.dispose()


async def _started(assemble: Callable[[], Engine]) -> Engine:
    """As whoever supervises a process would: again, when the database is away."""
    for left in reversed(range(STARTS_MAX)):
        engine = assemble()
        try:
            await engine.start()
        except (RuntimeError, OutlastError) as error:
            _logger.warning("not started: %s", error)
            if not left:
                raise
            await asyncio.sleep(0.3)
        else:
            return engine
    raise AssertionError("unreachable")
