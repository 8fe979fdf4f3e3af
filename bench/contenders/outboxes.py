"""outlast and faststream-outbox: the same code, the import changed."""

import contextlib
import importlib
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from bench.contenders.contract import HEADERS, PAYLOAD, QUEUE, Contender, Tally

_PREFILL = (
    "insert into outbox (queue, payload, headers) "
    "select $1, $2, $3::text::jsonb from generate_series(1, $4)"
)


class Outbox(Contender):
    """Settings: `module`, and what the subscriber is given; nothing else means its defaults."""

    is_empty_sql = "select not exists (select from outbox)"

    def __init__(self, dsn: str, settings: dict[str, Any]) -> None:
        super().__init__(dsn, settings)
        self.options = {
            key: value for key, value in settings.items() if key not in {"module", "broker"}
        }
        self.module = importlib.import_module(settings["module"])
        self.metadata = MetaData()
        self.table = self.module.make_outbox_table(self.metadata, "outbox")
        self.letters = self.module.make_dlq_table(self.metadata, "outbox_dlq")

    def engine(self) -> AsyncEngine:
        url = self.dsn.replace("postgresql://", "postgresql+asyncpg://")
        return create_async_engine(url, pool_size=10)

    def broker(self, engine: AsyncEngine) -> Any:
        # without a logger: a line for every message measures the terminal
        return self.module.OutboxBroker(
            engine,
            outbox_table=self.table,
            dlq_table=self.letters,
            logger=None,
            **self.settings.get("broker", {}),
        )

    async def create(self) -> None:
        engine = self.engine()
        async with engine.begin() as connection:
            await connection.exec_driver_sql("drop table if exists outbox, outbox_dlq")
            await connection.run_sync(self.metadata.create_all)
        await engine.dispose()

    async def prefill(self, count: int) -> None:
        connection = await asyncpg.connect(self.dsn)
        await connection.execute(_PREFILL, QUEUE, PAYLOAD, HEADERS, count)
        await connection.execute("analyze outbox")
        await connection.close()

    @contextlib.asynccontextmanager
    async def consuming(self, tally: Tally) -> AsyncIterator[None]:
        engine = self.engine()
        broker = self.broker(engine)

        @broker.subscriber(QUEUE, **self.options)
        async def handle(body: dict) -> None:  # type: ignore[type-arg]
            tally.hit()
            tally.note(body.get("sequence"))

        await broker.start()
        try:
            yield
        finally:
            await broker.stop()
            await engine.dispose()

    @contextlib.asynccontextmanager
    async def publishing(self) -> AsyncIterator[Any]:
        engine = self.engine()
        broker = self.broker(engine)

        async def publish(body: dict[str, Any]) -> float:
            async with AsyncSession(engine) as session:
                await broker.publish(body, queue=QUEUE, session=session)
                began = time.monotonic()
                await session.commit()
            return began

        yield publish
        await engine.dispose()
