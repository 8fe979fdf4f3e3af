"""Brokers for the tests of the FastStream door, and a recorder that tests can wait on."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import MetaData, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from outlast import OutboxBroker, make_dlq_table, make_outbox_table
from outlast.model.events import CLOSING

PATIENCE = 20.0


class Heard:
    """A metrics recorder."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._bell = asyncio.Event()

    def __call__(self, name: str, tags: Mapping[str, Any]) -> None:
        self.events.append((name, dict(tags)))
        self._bell.set()

    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [tags for heard, tags in self.events if heard == name]

    async def closed(self, count: int = 1) -> None:
        """Wait until so many deliveries were closed."""
        await self.until(lambda: sum(name in CLOSING for name in self.names()) >= count)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._bell.clear()
                await self._bell.wait()


def tables(dead_letters: bool = True) -> dict[str, Any]:
    metadata = MetaData()
    made = {"outbox_table": make_outbox_table(metadata)}
    if dead_letters:
        made["dlq_table"] = make_dlq_table(metadata)
    return made


def broker_on(
    engine: AsyncEngine | None = None, *, dead_letters: bool = True, **options: Any
) -> OutboxBroker:
    options.setdefault("logger", None)
    return OutboxBroker(engine, **tables(dead_letters), **options)


def config(broker: OutboxBroker) -> Any:
    return broker.config.broker_config


async def create(engine: AsyncEngine, broker: OutboxBroker) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(config(broker).outbox_table.metadata.create_all)


async def publish(engine: AsyncEngine, broker: OutboxBroker, body: Any, **options: Any) -> Any:
    async with AsyncSession(engine) as session, session.begin():
        return await broker.publish(body, session=session, **options)


async def content(engine: AsyncEngine, broker: OutboxBroker) -> tuple[list[Any], list[Any]]:
    """The rows of the outbox and of the dead letters."""
    async with engine.connect() as connection:
        rows = (await connection.execute(select(config(broker).outbox_table))).mappings().all()
        letters = []
        if config(broker).dlq_table is not None:
            letters = (await connection.execute(select(config(broker).dlq_table))).mappings().all()
    return list(rows), list(letters)


@asynccontextmanager
async def running(engine: AsyncEngine, broker: OutboxBroker) -> AsyncIterator[OutboxBroker]:
    await create(engine, broker)
    async with broker:
        yield broker
