"""The client: the same behaviour on the memory store, SQLite and PostgreSQL."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import MetaData, select

from outlast import make_outbox_table
from outlast.client import AbstractOutboxClient, OutboxClient
from outlast.message import OutboxInnerMessage
from outlast.model.errors import SchemaError
from outlast.testing import FakeOutboxClient, fake_session
from tests.doors.outbox import tables

TTL = 60.0


class OnDatabase:
    """A client with its tables, and what tests need to look at."""

    def __init__(self, engine, made):
        self.engine, self.outbox, self.dlq = engine, made["outbox_table"], made["dlq_table"]
        self.client = OutboxClient(engine, self.outbox, dlq_table=self.dlq)

    async def create(self):
        async with self.engine.begin() as connection:
            await connection.run_sync(self.outbox.metadata.create_all)

    @asynccontextmanager
    async def transaction(self):
        async with self.engine.begin() as connection:
            yield connection

    async def rows(self, table=None):
        async with self.engine.connect() as connection:
            found = await connection.execute(select(self.outbox if table is None else table))
            return [dict(row) for row in found.mappings()]

    async def letters(self):
        return await self.rows(self.dlq)


class InMemory:
    def __init__(self):
        self.client = FakeOutboxClient()

    async def create(self):
        pass

    @asynccontextmanager
    async def transaction(self):
        yield fake_session()

    async def rows(self):
        return [vars(row) for row in self.client.rows]

    async def letters(self):
        return self.client.dlq_rows


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def run(request):
    """Run a body on each client."""
    if request.param == "memory":

        async def memory(body):
            await body(InMemory())

        return lambda body: asyncio.run(memory(body))
    database = request.getfixturevalue(request.param)

    def on_database(body):
        async def with_engine(engine):
            world = OnDatabase(engine, tables())
            await world.create()
            await body(world)

        database.run(with_engine)

    return on_database


def row(payload=b"1", **options):
    return {"queue": "q", "payload": payload, "headers": {"k": "v"}, **options}


def test_fetch_and_delete(run):
    """Claims are leased, ordered, counted; a lease fences every delete."""

    async def body(world):
        client = world.client
        assert isinstance(client, AbstractOutboxClient)
        async with world.transaction() as connection:
            first = await client.insert(connection, **row())
            await client.insert_batch(connection, queue="q", rows=[(b"2", None), (b"3", {"a": 1})])
        async with world.transaction() as connection:
            assert await client.fetch(connection, [], limit=9, lease_ttl_seconds=TTL) == []
            got = await client.fetch(connection, ["q"], limit=2, lease_ttl_seconds=TTL)
        assert [m.payload for m in got] == [b"1", b"2"]
        assert all(isinstance(m, OutboxInnerMessage) for m in got)
        assert [(m.deliveries_count, m.headers) for m in got] == [(1, {"k": "v"}), (1, None)]
        one, two = got
        assert one.id == first
        pairs = [(one.id, one.acquired_token), (two.id, uuid4())]
        async with world.transaction() as connection:
            assert not await client.delete_with_lease(connection, one.id, uuid4())
            assert await client.delete_batch_with_lease(connection, pairs) == {pairs[0]}
            assert await client.delete_with_lease(connection, two.id, two.acquired_token)
        assert [r["payload"] for r in await world.rows()] == [b"3"]

    run(body)


def test_a_dead_letter(run):
    """S0-31, S0-32: one step, fenced by the lease."""

    async def body(world):
        client = world.client
        async with world.transaction() as connection:
            await client.insert(connection, **row())
        async with world.transaction() as connection:
            (one,) = await client.fetch(connection, ["q"], limit=1, lease_ttl_seconds=TTL)
        payload = {"failure_reason": "rejected", "last_exception": "E()"}
        async with world.transaction() as connection:
            lost = await client.delete_with_lease(connection, one.id, uuid4(), dlq_payload=payload)
            assert not lost
        assert await world.letters() == []
        async with world.transaction() as connection:
            assert await client.delete_with_lease(
                connection, one.id, one.acquired_token, dlq_payload=payload
            )
        (letter,) = await world.letters()
        assert (letter["failure_reason"], letter["last_exception"]) == ("rejected", "E()")
        assert (letter["payload"], letter["headers"]) == (b"1", {"k": "v"})
        assert await world.rows() == []

    run(body)


def test_mark_pending(run):
    """A retry gives the lease back and keeps the counters it is given."""

    async def body(world):
        client = world.client
        async with world.transaction() as connection:
            await client.insert(connection, **row())
        async with world.transaction() as connection:
            (one,) = await client.fetch(connection, ["q"], limit=1, lease_ttl_seconds=TTL)
        then = datetime(2026, 1, 1, tzinfo=UTC)
        counters = {"attempts_count": 3, "first_attempt_at": then, "last_attempt_at": then}
        async with world.transaction() as connection:
            assert not await client.mark_pending_with_lease(
                connection, one.id, uuid4(), delay_seconds=5, **counters
            )
            assert await client.mark_pending_with_lease(
                connection, one.id, one.acquired_token, delay_seconds=500, **counters
            )
            assert await client.fetch(connection, ["q"], limit=1, lease_ttl_seconds=TTL) == []
        (left,) = await world.rows()
        assert left["acquired_token"] is None
        assert (left["attempts_count"], left["first_attempt_at"]) == (3, then)
        assert left["next_attempt_at"] > one.next_attempt_at + timedelta(seconds=400)

    run(body)


def test_expired_leases_are_fetched(run):
    """S1-12: a lease that is over belongs to who comes next."""

    async def body(world):
        client = world.client
        async with world.transaction() as connection:
            await client.insert(connection, **row())
        async with world.transaction() as connection:
            (one,) = await client.fetch(connection, ["q"], limit=1, lease_ttl_seconds=TTL)
        async with world.transaction() as connection:
            assert await client.fetch(connection, ["q"], limit=1, lease_ttl_seconds=TTL) == []
            (again,) = await client.fetch(connection, ["q"], limit=1, lease_ttl_seconds=1e-9)
        assert (again.id, again.deliveries_count) == (one.id, 2)
        assert again.acquired_token != one.acquired_token

    run(body)


def test_timers_and_looks(run):
    async def body(world):
        client = world.client
        async with world.transaction() as connection:
            later = row(timer_id="t", activate_in=timedelta(hours=1))
            assert await client.insert(connection, **later) is not None
            assert await client.insert(connection, **later) is None
            (seen,) = await client.fetch_unprocessed(connection, queue="q")
            assert (seen.timer_id, seen.deliveries_count) == ("t", 0)
            assert await client.cancel_timer(connection, queue="q", timer_id="t")
            with pytest.raises(TypeError, match="AsyncSession"):
                await client.cancel_timer(object(), queue="q", timer_id="t")
            with pytest.raises(TypeError, match="AsyncSession"):
                await client.fetch_unprocessed(object())

    run(body)


def test_a_rolled_back_claim_never_was(database):
    """Claims run in the caller's transaction."""

    async def body(engine):
        world = OnDatabase(engine, tables())
        await world.create()
        async with world.transaction() as connection:
            await world.client.insert(connection, **row())
        async with engine.connect() as connection:
            assert await world.client.fetch(connection, ["q"], limit=1, lease_ttl_seconds=TTL)
            await connection.rollback()
        (left,) = await world.rows()
        assert (left["acquired_token"], left["deliveries_count"]) == (None, 0)

    database.run(body)


def test_what_a_client_needs(sqlite):
    async def body(engine):
        made = tables()
        client = OutboxClient(engine, made["outbox_table"])
        assert (client.engine, client.table) == (engine, made["outbox_table"])
        for method, arguments in (
            ("fetch", {"queues": ["q"], "limit": 1, "lease_ttl_seconds": 1}),
            ("delete_with_lease", {"id": 1, "token": uuid4()}),
            ("delete_batch_with_lease", {"pairs": []}),
        ):
            with pytest.raises(TypeError, match=f"OutboxClient.{method} requires a live"):
                await getattr(client, method)(None, **arguments)
        assert await client.ping()
        with pytest.raises(SchemaError, match="does not exist"):
            await client.validate_schema()
        async with engine.begin() as connection:
            await connection.run_sync(made["outbox_table"].metadata.create_all)
            with pytest.raises(RuntimeError, match="dlq_table"):
                await client.delete_with_lease(
                    connection, 1, uuid4(), dlq_payload={"failure_reason": "rejected"}
                )
        await client.validate_schema()

    sqlite.run(body)


def test_a_table_whose_names_are_too_long():
    """Also for a table that was not made by make_outbox_table."""
    table = make_outbox_table(MetaData(), "o" * 40)
    with pytest.raises(ValueError, match="63 bytes"):
        OutboxClient(None, table.to_metadata(MetaData(), name="o" * 60))


def test_the_fake():
    """What only the fake has."""

    async def main():
        client = FakeOutboxClient(dlq_enabled=False)
        assert (client.engine, client.table, await client.ping()) == (None, None, True)
        assert client.feed(queue="q", payload=b"1", timer_id="t") == 1
        assert client.feed(queue="q", payload=b"1", timer_id="t") is None
        with pytest.raises(ValueError, match="timezone-aware"):
            client.feed(queue="q", payload=b"1", next_attempt_at=datetime(2030, 1, 1))
        with pytest.raises(ValueError, match="255"):
            client.feed(queue="q" * 256, payload=b"1")
        with pytest.raises(TypeError, match="JSON"):
            client.feed(queue="q", payload=b"1", headers={"k": object()})
        with pytest.raises(NotImplementedError, match="validate_schema is unavailable"):
            await client.validate_schema()
        with pytest.raises(RuntimeError, match="dlq_table"):
            await client.delete_with_lease(
                None, 1, uuid4(), dlq_payload={"failure_reason": "rejected"}
            )

    asyncio.run(main())
