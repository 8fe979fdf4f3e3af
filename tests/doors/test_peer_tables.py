"""Tables that faststream-outbox 0.13 to 0.19 made and filled: used as they are."""

import asyncio
import json
import logging
from uuid import uuid4

import pytest
from sqlalchemy import MetaData, Table, text
from sqlalchemy.ext.asyncio import AsyncSession

from outlast import NoRetry, OutboxBroker, make_dlq_table, make_outbox_table

OUTBOX = """
create table outbox (
  id bigserial primary key, queue varchar(255) not null, payload bytea not null, headers jsonb,
  attempts_count bigint not null default 0, deliveries_count bigint not null default 0,
  created_at timestamptz not null default now(), next_attempt_at timestamptz not null default now(),
  first_attempt_at timestamptz, last_attempt_at timestamptz, acquired_at timestamptz,
  acquired_token uuid, timer_id varchar(255),
  constraint outbox_lease_ck check ((acquired_token is null) = (acquired_at is null)))
"""
INDEXES = {
    "0.13": (
        (
            "create index outbox_pending_idx on outbox (queue, next_attempt_at) "
            "where acquired_token is null"
        ),
        (
            "create index outbox_lease_idx on outbox (queue, acquired_at) "
            "where acquired_token is not null"
        ),
    ),
    "0.19": (
        (
            "create index outbox_pending_idx on outbox (queue, next_attempt_at, id) "
            "where acquired_token is null"
        ),
        (
            "create index outbox_leased_idx on outbox (queue, next_attempt_at, id) "
            "where acquired_token is not null"
        ),
    ),
}
TIMERS = (
    "create unique index outbox_timer_id_uq on outbox (queue, timer_id) where timer_id is not null"
)
DLQ = """
create table outbox_dlq (
  id bigserial primary key, original_id bigint not null, queue varchar(255) not null,
  payload bytea not null, headers jsonb, deliveries_count bigint not null,
  created_at timestamptz not null, failed_at timestamptz not null default now(),
  failure_reason varchar(64) not null, last_exception varchar {timer})
"""


async def _make(engine, version):
    timer = ", timer_id varchar(255)" if version == "0.19" else ""
    async with engine.begin() as connection:
        for statement in (OUTBOX, *INDEXES[version], TIMERS, DLQ.format(timer=timer)):
            await connection.execute(text(statement))
        await connection.execute(
            text("create index outbox_dlq_queue_failed_at_idx on outbox_dlq (queue, failed_at)")
        )
        # a message its publisher wrote, one that a dead worker of its left leased, one retried
        headers = json.dumps({"content-type": "application/json", "correlation_id": "c-1"})
        for extra in (
            "now(), null, null, 0",
            f"now(), '{uuid4()}', now() - interval '1 hour', 1",
            "now() - interval '1 minute', null, null, 3",
        ):
            await connection.execute(
                text(
                    "insert into outbox (queue, payload, headers, next_attempt_at, "
                    "acquired_token, acquired_at, deliveries_count) values "
                    f"('orders', :payload, :headers, {extra})"
                ),
                {"payload": b'{"id": 1}', "headers": headers},
            )


@pytest.mark.parametrize("reflected", [False, True])
@pytest.mark.parametrize("version", ["0.13", "0.19"])
def test_published_into_consumed_and_dead_lettered_unchanged(postgres, version, reflected):
    """S0-59: its rows are handled, ours are added, failures land in its dead-letter table."""

    async def body(engine):
        await _make(engine, version)
        metadata = MetaData()
        if reflected:
            async with engine.connect() as connection:
                outbox = await connection.run_sync(
                    lambda sync: Table("outbox", metadata, autoload_with=sync)
                )
                dlq = await connection.run_sync(
                    lambda sync: Table("outbox_dlq", metadata, autoload_with=sync)
                )
        else:
            outbox, dlq = make_outbox_table(metadata), make_dlq_table(metadata)
        broker = OutboxBroker(engine, outbox_table=outbox, dlq_table=dlq, logger=None)
        seen, done = [], asyncio.Event()

        @broker.subscriber(
            "orders", min_fetch_interval=0.1, lease_ttl_seconds=60.0, max_fetch_interval=0.5
        )
        async def handle(body: dict) -> None:
            seen.append(body["id"])
            if len(seen) == 4:
                done.set()

        @broker.subscriber("bad", retry_strategy=NoRetry())
        async def fail(body: dict) -> None:
            raise ValueError("boom")

        records = []
        handler = logging.Handler()
        handler.emit = records.append
        logger = logging.getLogger("outlast")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            async with broker:
                async with AsyncSession(engine) as session, session.begin():
                    await broker.publish({"id": 2}, queue="orders", session=session)
                    await broker.publish({"id": 3}, queue="bad", session=session, timer_id="t")
                async with asyncio.timeout(20):
                    await done.wait()
                    while not await _count(engine, "outbox_dlq"):
                        await asyncio.sleep(0.01)
                    while await _count(engine, "outbox"):
                        await asyncio.sleep(0.01)
        finally:
            logger.removeHandler(handler)
        assert sorted(seen) == [1, 1, 1, 2]
        async with engine.connect() as connection:
            row = (await connection.execute(text("select * from outbox_dlq"))).mappings().one()
        assert row["failure_reason"] == "retry_terminal"
        assert row["last_exception"] == "ValueError('boom')"
        if version == "0.19":
            assert row["timer_id"] == "t"
        lacks = [r for r in records if "lacks optional columns" in r.getMessage()]
        assert len(lacks) == 1
        assert lacks[0].levelno == logging.INFO
        await broker.validate_schema()

    postgres.run(body)


async def _count(engine, table):
    async with engine.connect() as connection:
        return (await connection.execute(text(f"select count(*) from {table}"))).scalar_one()


def test_its_workers_and_ours_fence_each_other(postgres):
    """A lease its worker holds is left alone while it lasts, whoever asks."""

    async def body(engine):
        await _make(engine, "0.19")
        async with engine.begin() as connection:
            await connection.execute(text("delete from outbox"))
            await connection.execute(
                text(
                    "insert into outbox (queue, payload, acquired_token, acquired_at, "
                    f"deliveries_count) values ('orders', '\\x7b7d', '{uuid4()}', now(), 1)"
                )
            )
        metadata = MetaData()
        broker = OutboxBroker(
            engine,
            outbox_table=make_outbox_table(metadata),
            dlq_table=make_dlq_table(metadata),
            logger=None,
        )
        seen = []

        @broker.subscriber("orders", min_fetch_interval=0.05, max_fetch_interval=0.1)
        async def handle(body: dict) -> None:
            seen.append(body)

        @broker.subscriber("probe")
        async def probe(body: str) -> None:
            probed.set()

        probed = asyncio.Event()
        async with broker:
            async with AsyncSession(engine) as session, session.begin():
                await broker.publish("x", queue="probe", session=session)
            async with asyncio.timeout(20):
                await probed.wait()
        assert seen == []
        assert await _count(engine, "outbox") == 1

    postgres.run(body)


def test_a_reflected_table_on_sqlite(sqlite):
    """The same on SQLite: a reflected Table publishes, delivers and keeps its instants."""

    async def body(engine):
        made = MetaData()
        make_outbox_table(made)
        make_dlq_table(made)
        async with engine.begin() as connection:
            await connection.run_sync(made.create_all)
        metadata = MetaData()
        async with engine.connect() as connection:
            outbox = await connection.run_sync(
                lambda sync: Table("outbox", metadata, autoload_with=sync)
            )
            dlq = await connection.run_sync(
                lambda sync: Table("outbox_dlq", metadata, autoload_with=sync)
            )
        broker = OutboxBroker(engine, outbox_table=outbox, dlq_table=dlq, logger=None)
        seen = asyncio.Event()

        @broker.subscriber("orders")
        async def handle(body: dict) -> None:
            seen.set()

        @broker.subscriber("bad", retry_strategy=NoRetry())
        async def fail(body: dict) -> None:
            raise ValueError("boom")

        async with broker:
            async with AsyncSession(engine) as session, session.begin():
                await broker.publish({"id": 2}, queue="orders", session=session)
                await broker.publish({"id": 2}, queue="bad", session=session)
            async with asyncio.timeout(20):
                await seen.wait()
                while not await _count(engine, "outbox_dlq"):
                    await asyncio.sleep(0.01)

    sqlite.run(body)
