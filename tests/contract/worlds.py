"""The stores under one surface, so that one suite of tests can speak to each of them.

A *world* is a store plus what an application and a clock could do to its rows.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import MetaData, Table, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.model.dead_letter import Letter
from outlast.model.delivery import Claim, Delivery
from outlast.model.failure import Failure
from outlast.model.look import Want
from outlast.ports.store import Store
from outlast.stores.memory.store import MemoryStore
from outlast.tables import make_dlq_table, make_outbox_table

TIMEOUT = 5.0


class World:
    """What every store offers its tests."""

    store: Store
    kind: str

    async def add(
        self,
        queue: str = "q",
        *,
        payload: bytes = b"{}",
        due_in: float = 0.0,
        headers: dict[str, Any] | None = None,
    ) -> int:
        raise NotImplementedError

    async def rows(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    async def letters(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    async def age_lease(self, row_id: int, seconds: float) -> None:
        raise NotImplementedError

    async def remove(self, row_id: int) -> None:
        raise NotImplementedError

    async def row(self, row_id: int) -> dict[str, Any]:
        return next(r for r in await self.rows() if r["id"] == row_id)

    async def claim(self, *queues: str, limit: int = 10, token: UUID | None = None) -> Claim:
        wanted = [Want(queue, limit) for queue in queues or ("q",)]
        return await self.store.claim(wanted, limit, token or uuid4(), TIMEOUT)

    async def claim_one(self, queue: str = "q") -> Delivery:
        claim = await self.claim(queue, limit=1)
        assert len(claim.rows) == 1
        return claim.rows[0]


class MemoryWorld(World):
    kind = "memory"

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def add(self, queue="q", *, payload=b"{}", due_in=0.0, headers=None):
        row_id = self.store.insert(
            queue=queue,
            payload=payload,
            headers=headers,
            activate_in=timedelta(seconds=due_in) if due_in else None,
        )
        assert row_id is not None
        return row_id

    async def rows(self):
        return [dict(vars(row)) for row in self.store.rows]

    async def letters(self):
        return list(self.store.dlq_rows)

    async def age_lease(self, row_id, seconds):
        for row in self.store.rows:
            if row.id == row_id:
                row.acquired_at -= timedelta(seconds=seconds)

    async def remove(self, row_id):
        self.store.rows[:] = [r for r in self.store.rows if r.id != row_id]


class SqlWorld(World):
    def __init__(self, engine: AsyncEngine, store: Store, outbox: Table, dlq: Table, kind: str):
        self.engine, self.store, self.outbox, self.dlq, self.kind = (
            engine,
            store,
            outbox,
            dlq,
            kind,
        )

    async def add(self, queue="q", *, payload=b"{}", due_in=0.0, headers=None):
        now = datetime.now(UTC)
        values = {"queue": queue, "payload": payload, "headers": headers}
        if due_in:
            values["next_attempt_at"] = now + timedelta(seconds=due_in)
        async with self.engine.begin() as connection:
            statement = insert(self.outbox).values(values).returning(self.outbox.c.id)
            return (await connection.execute(statement)).scalar_one()

    async def rows(self):
        async with self.engine.connect() as connection:
            statement = select(self.outbox).order_by(self.outbox.c.id)
            return [dict(r._mapping) for r in await connection.execute(statement)]

    async def letters(self):
        async with self.engine.connect() as connection:
            statement = select(self.dlq).order_by(self.dlq.c.id)
            return [dict(r._mapping) for r in await connection.execute(statement)]

    async def age_lease(self, row_id, seconds):
        row = await self.row(row_id)
        async with self.engine.begin() as connection:
            await connection.execute(
                update(self.outbox)
                .where(self.outbox.c.id == row_id)
                .values(acquired_at=row["acquired_at"] - timedelta(seconds=seconds)),
            )

    async def remove(self, row_id):
        async with self.engine.begin() as connection:
            await connection.execute(delete(self.outbox).where(self.outbox.c.id == row_id))


Body = Callable[[Any], Awaitable[None]]


def run_memory(body: Body) -> None:
    async def main() -> None:
        world = MemoryWorld()
        await world.store.open(lambda _queue: None)
        await body(world)
        await world.store.close()

    asyncio.run(main())


def run_sql(
    database: Any, body: Body, *, wake: Callable[[str | None], None] = lambda _q: None, **names: str
) -> None:
    """Make the tables, open the store, run the body, close everything."""

    async def main(engine: AsyncEngine) -> None:
        metadata = MetaData()
        outbox = make_outbox_table(metadata, names.get("outbox", "outbox"))
        dlq = make_dlq_table(metadata, names.get("dlq", "outbox_dlq"))
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        store: Any
        if database.is_postgres:
            from outlast.stores.postgres.store import PostgresStore

            store = PostgresStore(engine, outbox, dlq)
        else:
            from outlast.stores.sqlite.store import SqliteStore

            store = SqliteStore(engine, outbox, dlq)
        await store.open(wake)
        kind = "postgres" if database.is_postgres else "sqlite"
        try:
            await body(SqlWorld(engine, store, outbox, dlq, kind))
        finally:
            await store.close()

    database.run(main)


def letter(delivery: Delivery, *, reason: str = "rejected", **failure: Any) -> Letter:
    """A dead letter of a delivery, with something in every column."""
    values = {
        "exception_type": "ValueError",
        "last_exception": "ValueError('x')",
        "error_type": "ValueError",
        "error_message": "x",
        "stack_trace": "Traceback …",
        "category": "VALIDATION",
        "fingerprint": "v1:" + "0" * 32,
        "http_status": 422,
    } | failure
    now = datetime.now(UTC)
    return Letter(
        id=delivery.id,
        token=delivery.token,
        reason=reason,
        failure=Failure(**values),
        attempts_count=delivery.attempts_count + 1,
        first_failure_at=now,
        last_failure_at=now,
        message_id="m-1",
        event_type="order.paid",
        subscriber="handle",
        consumer_instance="host:1",
        consumer_version="1.2.3",
    )
