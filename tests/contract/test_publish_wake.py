"""Wake-ups on PostgreSQL: part of the INSERT, so they obey its transaction."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from sqlalchemy import MetaData

from outlast.publish.plan import Plan, Row, batch_rows
from outlast.publish.run import OutboxWriter, publish, publish_batch
from outlast.tables import channel_name, make_outbox_table


@pytest.fixture(params=["postgres", "postgres_psycopg"])
def server(request):
    return request.getfixturevalue(request.param)


async def heard(database, table, body):
    """The payloads that arrive for what `body` commits."""
    async with _engine(database, table) as engine:
        listener = await asyncpg.connect(database.dsn)
        told = []
        fence = asyncio.Event()
        channel = channel_name(table)

        def note(_connection, _pid, _channel, payload):
            (fence.set if payload == "fence" else lambda: told.append(payload))()

        try:
            await listener.add_listener(channel, note)
            await body(engine)
            # notifications arrive in the order of the commits
            await listener.execute("SELECT pg_notify($1, 'fence')", channel)
            await asyncio.wait_for(fence.wait(), 10)
        finally:
            await listener.close()
        return told


class _engine:
    def __init__(self, database, table):
        self.engine, self.table = database.engine(), table

    async def __aenter__(self):
        async with self.engine.begin() as connection:
            await connection.run_sync(self.table.metadata.create_all)
        return self.engine

    async def __aexit__(self, *exc):
        await self.engine.dispose()


def table_of(database):
    # channels belong to the whole database, so each test has a table name of its own
    return make_outbox_table(MetaData(), f"o_{database.schema}")


async def put(writer, connection, queue, count=0, **kw):
    if count:
        rows = batch_rows([(b"", None)] * count)
        return await publish_batch(Plan(queue=queue, rows=rows, **kw), connection, writer)
    return await publish(Plan(queue=queue, rows=(Row(b"", None),), **kw), connection, writer)


def test_one_wake_up_for_each_queue_of_a_transaction(server):
    """1.10: two queues, many publishes, two wake-ups; after the commit only."""
    table = table_of(server)
    writer = OutboxWriter(table)

    async def body(engine):
        async with engine.begin() as connection:
            for _ in range(20):
                await put(writer, connection, "a")
                await put(writer, connection, "b", timer_id=None)
            await put(writer, connection, "a", 50)

    assert sorted(asyncio.run(heard(server, table, body))) == ["a", "b"]


def test_each_way_of_publishing_wakes(server):
    table = table_of(server)
    writer = OutboxWriter(table)

    async def body(engine):
        ways = (
            {"queue": "single"},
            {"queue": "past", "activate_in": timedelta(seconds=-1)},
            {"queue": "batch", "count": 3},
            {"queue": "past batch", "count": 3, "activate_in": timedelta(0)},
            {"queue": "timer", "timer_id": "t"},
            {"queue": "extend", "timer_id": "t", "timer_conflict": "extend"},
        )
        for way in ways:
            async with engine.begin() as connection:
                await put(writer, connection, **way)

    told = asyncio.run(heard(server, table, body))
    assert told == ["single", "past", "batch", "past batch", "timer", "extend"]


def test_what_is_not_due_wakes_nobody(server):
    """1.6: future rows, timers that are taken, empty batches, rolled-back work (F-A01)."""
    table = table_of(server)
    writer = OutboxWriter(table)
    later = {"activate_in": timedelta(hours=1)}

    async def body(engine):
        async with engine.begin() as connection:
            await put(writer, connection, "future", **later)
            await put(writer, connection, "future batch", 3, **later)
            for conflict in ("ignore", "extend"):
                for _ in range(2):
                    timer = {"timer_id": conflict, "timer_conflict": conflict}
                    await put(writer, connection, "timer", **timer, **later)
                await put(writer, connection, "timer", **timer)
            await publish_batch(Plan(queue="empty", rows=()), connection, writer)
            savepoint = await connection.begin_nested()
            await put(writer, connection, "undone")
            await savepoint.rollback()
        async with engine.connect() as connection:
            await put(writer, connection, "undone")
            await connection.rollback()

    assert asyncio.run(heard(server, table, body)) == []


def test_wake_ups_can_be_turned_off(server):
    """`notify=False`"""
    table = table_of(server)
    writer = OutboxWriter(table, notify=False)

    async def body(engine):
        async with engine.begin() as connection:
            await put(writer, connection, "a")
            await put(writer, connection, "a", 3)
            for conflict in ("ignore", "extend"):
                timer = {"timer_id": conflict, "timer_conflict": conflict}
                await put(writer, connection, "a", **timer)

    assert asyncio.run(heard(server, table, body)) == []
