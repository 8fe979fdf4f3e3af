"""What FastStream's pipeline alone allows: bare claims and deletes, its whole consume per message.

No metrics, no leases to refresh, no failures, no shutdown: not a product, but the bound of one
process that runs FastStream's `process_message` for every message.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg

from bench.contenders.contract import HEADERS, PAYLOAD, QUEUE, Contender, Tally

_CREATE = """
drop table if exists floor;
create table floor (
    id bigserial primary key, queue text not null, payload bytea not null, headers jsonb,
    created_at timestamptz not null default now(),
    next_attempt_at timestamptz not null default now(),
    token uuid, deliveries int not null default 0
);
create index floor_pending on floor (queue, next_attempt_at, id) where token is null;
create index floor_leased on floor (queue, next_attempt_at, id) where token is not null;
"""
_FILL = (
    "insert into floor (queue, payload, headers) "
    "select $1, $2, $3::text::jsonb from generate_series(1, $4)"
)
_CLAIM = (
    "update floor set token = $2, deliveries = deliveries + 1 where ctid = any(array("
    "select ctid from floor where queue = $1 and token is null and next_attempt_at <= now() "
    "order by next_attempt_at, id limit $3 for update skip locked)) returning id, payload, headers"
)
_DELETE = "delete from floor where id = any($1::bigint[]) and token = $2"
_TURN = 64


class Floor(Contender):
    """Setting: `batch`."""

    is_empty_sql = "select not exists (select from floor)"

    async def create(self) -> None:
        connection = await asyncpg.connect(self.dsn)
        await connection.execute(_CREATE)
        await connection.close()

    async def prefill(self, count: int) -> None:
        connection = await asyncpg.connect(self.dsn)
        await connection.execute(_FILL, QUEUE, PAYLOAD, HEADERS, count)
        await connection.execute("analyze floor")
        await connection.close()

    @contextlib.asynccontextmanager
    async def consuming(self, tally: Tally) -> AsyncIterator[None]:
        claims, settles = await asyncpg.connect(self.dsn), await asyncpg.connect(self.dsn)
        for connection in (claims, settles):
            await connection.execute("set synchronous_commit = off")
        process = _pipeline(tally)
        claimed: asyncio.Queue[Any] = asyncio.Queue(1)
        handled: asyncio.Queue[Any] = asyncio.Queue(4)

        async def claim() -> None:
            while True:
                token = uuid4()
                rows = await claims.fetch(_CLAIM, QUEUE, token, self.settings["batch"])
                await claimed.put((token, rows))
                if not rows:
                    return

        async def handle() -> None:
            while True:
                token, rows = await claimed.get()
                for number, row in enumerate(rows):
                    await process(row[1], json.loads(row[2]))
                    if number % _TURN == 0:
                        await asyncio.sleep(0)
                await handled.put((token, [row[0] for row in rows]))
                if not rows:
                    return

        async def settle() -> None:
            while True:
                token, ids = await handled.get()
                if not ids:
                    return
                await settles.execute(_DELETE, ids, token)

        tasks = [asyncio.create_task(work()) for work in (claim, handle, settle)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await claims.close()
            await settles.close()


def _pipeline(tally: Tally) -> Any:
    """`process_message` of a subscriber of another broker, fed by hand."""
    from faststream.nats import NatsBroker
    from nats.aio.msg import Msg

    broker = NatsBroker(logger=None)

    @broker.subscriber(QUEUE)
    async def handle(body: dict) -> None:  # type: ignore[type-arg]
        tally.hit()
        tally.note(body.get("sequence"))

    (subscriber,) = broker.subscribers
    broker._setup_logger()
    subscriber._build_fastdepends_model()
    subscriber.running = True

    async def process(payload: bytes, headers: dict[str, str]) -> None:
        message = Msg(_client=None, subject=QUEUE, data=payload, headers=headers)  # type: ignore[arg-type]
        await subscriber.process_message(message)

    return process
