"""Starting: what an operator reads when the database is not as it should be, and what is left."""

import asyncio
import random

import pytest
from sqlalchemy import MetaData, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from outlast import OutboxBroker
from outlast.engine.engine import Engine
from outlast.engine.options import EngineOptions, SubscriptionOptions
from outlast.model.errors import SchemaError, UnsupportedDatabase
from outlast.model.outcome import ACK
from outlast.policy.verdict import Verdicts
from outlast.stores.connect import store_for
from outlast.tables import make_dlq_table, make_outbox_table

SECRET = "s3cret-of-the-test"


def tables():
    metadata = MetaData()
    return metadata, make_outbox_table(metadata), make_dlq_table(metadata)


async def start(engine, **options):
    _, outbox, dlq = tables()
    store = store_for(engine, outbox, dlq)
    worker = Engine(store, EngineOptions(consumer_instance="t:1"))
    try:
        await worker.start()
    finally:
        await worker.stop(0)


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 1},
        {"host": "127.0.0.1", "database": "no_such_database"},
        {"username": "no_such_role"},
        {"host": "host.invalid"},
    ],
)
def test_a_wrong_dsn_is_told_without_its_password(postgres, changes):
    """A RuntimeError that says where, why and what is needed; the password is in none of it."""

    async def main():
        url = make_url(postgres.url).set(password=SECRET, **changes)
        engine = create_async_engine(url)
        with pytest.raises(RuntimeError) as failure:
            await start(engine)
        await engine.dispose()
        error: BaseException | None = failure.value
        assert "cannot open the database" in str(error)
        assert "3 connections" in str(error)
        while error is not None:
            assert SECRET not in str(error)
            assert SECRET not in repr(error)
            error = error.__cause__ or error.__context__

    asyncio.run(main())


def test_a_server_that_refuses_the_connections_says_how_many_are_needed(postgres):
    """S1-45, S1-47, F-D05: too few slots for this role: RuntimeError, and nothing stays open."""

    role = f"narrow_{postgres.schema}"

    async def body(engine):
        metadata, _, _ = tables()
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.execute(text(f"create role {role} login connection limit 2"))
            await connection.execute(text(f"grant all on schema {postgres.schema} to {role}"))
            await connection.execute(
                text(f"grant all on all tables in schema {postgres.schema} to {role}")
            )
        url = make_url(postgres.url).set(username=role)
        narrow = create_async_engine(url, connect_args=postgres.connect_args)
        try:
            with pytest.raises(RuntimeError, match="needs 3 connections") as failure:
                await start(narrow)
            assert "too many connections" in str(failure.value)
            await narrow.dispose()
            async with engine.connect() as connection:
                await _gone(
                    connection, f"select count(*) from pg_stat_activity where usename = '{role}'"
                )
        finally:
            async with engine.begin() as connection:
                await connection.execute(text(f"drop owned by {role}"))
                await connection.execute(text(f"drop role {role}"))

    postgres.run(body)


async def _gone(connection, counting):
    async with asyncio.timeout(10):
        while (await connection.execute(text(counting))).scalar_one():
            await connection.rollback()
            await asyncio.sleep(0.02)


def test_a_missing_table_or_column_is_named(database):
    """S0-07: no DDL is issued; the message names the table, or the column."""

    async def body(engine):
        metadata, outbox, dlq = tables()
        with pytest.raises(SchemaError, match=r"outbox.* does not exist.*create_all"):
            await start(engine)
        async with engine.begin() as connection:
            await connection.run_sync(outbox.create)
        with pytest.raises(SchemaError, match="outbox_dlq"):
            await start(engine)
        async with engine.begin() as connection:
            await connection.run_sync(dlq.create)
            await connection.execute(text("alter table outbox drop column last_attempt_at"))
        with pytest.raises(SchemaError, match="last_attempt_at"):
            await start(engine)
        assert metadata.tables.keys() == {"outbox", "outbox_dlq"}

    database.run(body)


def test_a_driver_that_cannot_consume_is_named_at_start(postgres_psycopg):
    """psycopg publishes; consuming with it is a clear error, not silent polling."""

    async def body(engine):
        metadata, outbox, dlq = tables()
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        broker = OutboxBroker(engine, outbox_table=outbox, dlq_table=dlq, logger=None)

        @broker.subscriber("q")
        async def handle(body: str) -> None:
            raise AssertionError

        with pytest.raises(UnsupportedDatabase, match=r"asyncpg or .* is postgresql\+psycopg"):
            await broker.start()
        async with engine.begin() as connection:
            assert await broker.publish("x", queue="q", session=connection)

    postgres_psycopg.run(body)


def test_start_stop_races_leave_no_connection_and_no_lock(postgres):
    """F-C06: a hundred starts, stopped or cancelled at any instant, with rows under way."""

    async def body(engine):
        metadata, outbox, dlq = tables()
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        random_, pids = random.Random(11), set()

        async def deliver(_delivery):
            await asyncio.sleep(random_.random() * 0.01)
            return ACK

        for number in range(100):
            store = store_for(engine, outbox, dlq)
            worker = Engine(store, EngineOptions(consumer_instance="t:1"))
            options = SubscriptionOptions(queues="q", max_workers=3)
            worker.subscribe("h", options, deliver, Verdicts(options.retry_strategy, "h"))
            if number % 5 == 0:
                async with engine.begin() as connection:
                    await connection.execute(
                        text(
                            "insert into outbox (queue, payload) "
                            "select 'q', '' from generate_series(1, 5)"
                        )
                    )
            starting = asyncio.create_task(worker.start())
            await asyncio.sleep(random_.choice([0, 0.001, 0.005, 0.02, 0.05]))
            if random_.random() < 0.4:
                starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            pids.update(wire.last_pid for wire in store._wires.values() if wire.last_pid)
            await worker.stop(random_.choice([0, 0.5]))
        assert len(pids) > 50
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert left == []
        async with engine.connect() as connection:
            ours = ", ".join(map(str, pids)) or "0"
            await _gone(connection, f"select count(*) from pg_stat_activity where pid in ({ours})")
            locks = (
                "select count(*) from pg_locks l join pg_class c on c.oid = l.relation "
                f"where c.relnamespace = '{postgres.schema}'::regnamespace "
                "and l.pid <> pg_backend_pid()"
            )
            await _gone(connection, locks)
            leased = await connection.execute(
                text("select count(*) from outbox where acquired_token is not null")
            )
            assert leased.scalar_one() == 0

    postgres.run(body, pool_size=1, max_overflow=2)
