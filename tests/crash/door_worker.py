"""A worker process with the FastStream door: the same handler behind `@broker.subscriber`."""

import asyncio
import logging
import os
import signal
from types import SimpleNamespace
from typing import Any

from outlast import OutboxBroker
from outlast.annotations import OutboxMessage
from tests.crash.hooks import Trap
from tests.crash.scene import QUEUE, Scene, dlq, outbox
from tests.crash.worker import STARTS_MAX, VERDICTS, Handler, Rejected


async def main(scene: Scene, role: dict[str, Any]) -> None:
    """Until SIGTERM."""
    asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    ledger = scene.ledger()
    handler = Handler(ledger, Trap(ledger, role.get("stage"), role.get("at", ())))
    database = scene.engine()
    broker = OutboxBroker(
        database,
        outbox_table=outbox,
        dlq_table=dlq,
        consumer_instance=f"door:{os.getpid()}",
        graceful_timeout=scene.grace,
        logger=logging.getLogger("door"),
        log_level=logging.DEBUG,
    )

    @broker.subscriber(
        QUEUE,
        max_workers=scene.workers,
        fetch_batch_size=scene.batch,
        min_fetch_interval=scene.min_fetch,
        max_fetch_interval=scene.max_fetch,
        lease_ttl_seconds=scene.lease,
        max_deliveries=scene.max_deliveries,
        retry_strategy=VERDICTS.strategy,
    )
    async def handle(body: Any, message: OutboxMessage) -> None:
        row = message.raw_message
        delivery: Any = SimpleNamespace(
            id=row.id,
            token=row.acquired_token,
            payload=row.payload,
            acquired_at=row.acquired_at,
            next_attempt_at=row.next_attempt_at,
            attempts_count=row.attempts_count,
            deliveries_count=row.deliveries_count,
        )
        assert body["m"]
        try:
            await handler.run(delivery)
        except Rejected:
            await message.reject()

    await _start(broker)
    await asked_to_stop.wait()
    await broker.stop()
    await database.dispose()


async def _start(broker: OutboxBroker) -> None:
    for left in reversed(range(STARTS_MAX)):
        try:
            return await broker.start()
        except RuntimeError:
            if not left:
                raise
            await asyncio.sleep(0.3)
    return None
