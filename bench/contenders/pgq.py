"""pgqueuer through its public API. It decodes nothing, so the handler parses the JSON itself."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from bench.contenders.contract import PAYLOAD, QUEUE, Contender, Tally

_PORTION = 5_000


class PgQueuerQueue(Contender):
    """Settings: `batch_size`, `pool`; nothing means its defaults on one connection."""

    is_empty_sql = "select not exists (select from pgqueuer)"

    async def create(self) -> None:
        connection = await asyncpg.connect(self.dsn)
        queries = Queries(AsyncpgDriver(connection))
        if await connection.fetchval("select to_regclass('pgqueuer') is not null"):
            await queries.uninstall()
        await queries.install()
        await connection.close()

    async def prefill(self, count: int) -> None:
        connection = await asyncpg.connect(self.dsn)
        queries = Queries(AsyncpgDriver(connection))
        for start in range(0, count, _PORTION):
            size = min(_PORTION, count - start)
            await queries.enqueue([QUEUE] * size, [PAYLOAD] * size, [0] * size)
        await connection.execute("analyze pgqueuer")
        await connection.close()

    @contextlib.asynccontextmanager
    async def consuming(self, tally: Tally) -> AsyncIterator[None]:
        source: Any
        if self.settings.get("pool"):
            source = await asyncpg.create_pool(self.dsn, min_size=4, max_size=8)
            worker = PgQueuer.from_asyncpg_pool(source)
        else:
            source = await asyncpg.connect(self.dsn)
            worker = PgQueuer.from_asyncpg_connection(source)

        @worker.entrypoint(QUEUE)
        async def handle(job: Any) -> None:
            body = json.loads(job.payload)
            tally.hit()
            tally.note(body.get("sequence"))

        size = self.settings.get("batch_size")
        running = asyncio.create_task(worker.run(**({"batch_size": size} if size else {})))
        try:
            yield
        finally:
            worker.shutdown.set()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(running, 15)
            await source.close()

    @contextlib.asynccontextmanager
    async def publishing(self) -> AsyncIterator[Any]:
        pool = await asyncpg.create_pool(self.dsn, min_size=1, max_size=4)
        queries = Queries(AsyncpgPoolDriver(pool))

        async def publish(body: dict[str, Any]) -> float:
            began = time.monotonic()
            await queries.enqueue(QUEUE, json.dumps(body).encode())
            return began

        yield publish
        await pool.close()
