"""A worker process: one engine, one handler that does what the message says, a ledger.

`python -m tests.crash.worker FILE`, with a file of `Scene.save`. SIGTERM stops it gracefully.
"""

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
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
from tests.crash.scene import QUEUE, RETRY_SECONDS, Scene, checksum, load

ATTEMPTS_MAX = 2
"""Of a message whose handler always fails."""

STARTS_MAX = 30

_verdicts = Verdicts(ConstantRetry(delay_seconds=RETRY_SECONDS, max_attempts=ATTEMPTS_MAX), "handle")


class Rejected(Exception):
    """A handler that refuses its message for good."""


class Handler:
    """Does what the message says, and writes down its beginning and its end."""

    def __init__(self, ledger: Ledger, trap: Trap) -> None:
        self._ledger = ledger
        self._trap = trap
        self._random = random.Random(os.getpid())

    async def __call__(self, delivery: Delivery) -> Outcome:
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
        except Rejected as refusal:
            self._ledger.write("end", **facts, how="fail")
            return _verdicts.rejected(refusal)
        except Exception:
            self._ledger.write("end", **facts, how="fail")
            raise
        self._ledger.write("end", **facts, how="ok")
        self._trap.reach("handled")
        return ACK

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
        retry_strategy=_verdicts.strategy,
    )
    engine.subscribe("handle", options, deliver, _verdicts)
    return engine


async def work(scene: Scene, role: dict[str, Any]) -> None:
    """Until SIGTERM."""
    asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    ledger = scene.ledger()
    trap = Trap(ledger, role.get("stage"), role.get("at", ()), scene.dsn)
    database = scene.engine()
    store: Any = scene.store(database)
    deliver: Callable[[Delivery], Awaitable[Outcome]] = Handler(ledger, trap)
    store, deliver = mutants.plant(role.get("mutant"), store, deliver, database)
    if scene.hooked:
        store = HookedStore(store, ledger, trap)
    engine = build(scene, store, deliver)
    await _start(engine)
    ledger.write("ready")
    await asked_to_stop.wait()
    ledger.write("stopping")
    await engine.stop(scene.grace)
    await database.dispose()


async def _start(engine: Engine) -> None:
    """As whoever supervises a process would: again, when the database is away."""
    for _ in range(STARTS_MAX - 1):
        try:
            return await engine.start()
        except (RuntimeError, OutlastError) as error:
            logging.warning("not started: %s", error)
            await asyncio.sleep(0.3)
    return await engine.start()


def die_with_parent() -> None:
    """No process outlives the test that started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(work(*load(sys.argv[1])))
