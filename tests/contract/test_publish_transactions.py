"""What becomes of a message when the caller's transaction does not go as planned."""

import asyncio
import random

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, select
from sqlalchemy.exc import IntegrityError, InvalidRequestError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outlast.publish.plan import Plan, Row
from outlast.publish.run import OutboxWriter, publish
from outlast.tables import make_outbox_table

METADATA = MetaData()
OUTBOX = make_outbox_table(METADATA)
ORDERS = Table("orders", METADATA, Column("id", Integer, primary_key=True, autoincrement=False))
WRITER = OutboxWriter(OUTBOX)


class Base(DeclarativeBase):
    metadata = MetaData()


class Thing(Base):
    __tablename__ = "thing"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


def on(database, body, **options):
    async def prepared(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
            await connection.run_sync(Base.metadata.create_all)
        return await body(engine)

    return database.run(prepared, **options)


async def put(session, body=b"x"):
    return await publish(Plan(queue="q", rows=(Row(body, None),)), session, WRITER)


async def payloads(engine):
    async with engine.connect() as connection:
        found = await connection.execute(select(OUTBOX.c.payload).order_by(OUTBOX.c.id))
        return [bytes(payload) for payload in found.scalars()]


def test_another_databases_session(sqlite, tmp_path):
    """F-A04: a session of a database without the table is refused by that database."""
    elsewhere = type(sqlite)(f"sqlite+aiosqlite:///{tmp_path / 'elsewhere.db'}")

    async def body(engine):
        wrong = elsewhere.engine()
        try:
            async with AsyncSession(wrong) as session:
                with pytest.raises(OperationalError, match="no such table: outbox"):
                    await put(session)
        finally:
            await wrong.dispose()
        assert await payloads(engine) == []

    on(sqlite, body)


def test_a_missing_table_is_named(postgres):
    async def body(engine):
        async with AsyncSession(engine) as session:
            with pytest.raises(ProgrammingError, match='relation "outbox" does not exist'):
                await put(session)

    postgres.run(body)


def test_without_a_transaction(any_driver):
    """F-A05: the session begins one as for any statement; without a commit nothing is stored."""

    async def body(engine):
        async with AsyncSession(engine) as session:
            assert not session.in_transaction()
            await put(session, b"forgotten")
            assert session.in_transaction()
        assert await payloads(engine) == []
        async with AsyncSession(engine) as session:
            await put(session, b"kept")
            await session.commit()
        assert await payloads(engine) == [b"kept"]

    on(any_driver, body)


def test_in_autocommit(any_driver):
    """F-A05: the message is stored at once, with the statement; that is what AUTOCOMMIT says."""

    async def body(engine):
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await put(connection)
            assert await payloads(engine) == [b"x"]

    on(any_driver, body)


def test_a_flush_that_fails_after_the_publish(any_driver):
    """F-A06: the message goes with the domain row, although the application swallows the error."""

    async def body(engine):
        async with AsyncSession(engine) as session, session.begin():
            session.add(Thing(id=1, name="taken"))
        async with AsyncSession(engine) as session:
            await put(session)
            session.add(Thing(id=2, name="taken"))
            with pytest.raises(IntegrityError):
                await session.flush()
            try:
                await session.commit()
            except InvalidRequestError:
                await session.rollback()
        assert await payloads(engine) == []

    on(any_driver, body)


def test_a_transaction_that_was_open_for_long(postgres):
    """F-A08: its message has the older id and is stored all the same."""

    async def body(engine):
        async with engine.connect() as slow:
            first = await put(slow, b"slow")
            async with engine.begin() as quick:
                assert await put(quick, b"quick") > first
            assert await payloads(engine) == [b"quick"]
            await slow.commit()
        assert await payloads(engine) == [b"slow", b"quick"]

    on(postgres, body)


def test_tasks_cancelled_anywhere(database):
    """F-A03: a message for each order and an order for each message; no connection is left over."""
    seeded = random.Random(7)
    count = 200 if database.is_postgres else 40

    async def order(engine, number):
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(ORDERS.insert().values(id=number))
            await put(session, b"%d" % number)

    async def body(engine):
        for number in range(count):
            task = asyncio.create_task(order(engine, number))
            for _ in range(seeded.randrange(40)):
                await asyncio.sleep(0)
            if seeded.random() < 0.5:
                await asyncio.sleep(seeded.random() * 0.005)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
        async with engine.connect() as connection:
            orders = (await connection.execute(select(ORDERS.c.id).order_by(ORDERS.c.id))).scalars()
            assert [b"%d" % number for number in orders] == await payloads(engine)
        assert engine.pool.checkedout() == 0

    on(database, body)
