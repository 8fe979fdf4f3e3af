"""Publishing on the caller's transaction, on each driver."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, event, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outlast.publish.plan import Plan, Row, batch_rows
from outlast.publish.run import OutboxWriter, publish, publish_batch
from outlast.tables import make_dlq_table, make_outbox_table

METADATA = MetaData()
OUTBOX = make_outbox_table(METADATA)
DLQ = make_dlq_table(METADATA)
ORDERS = Table("orders", METADATA, Column("id", Integer, primary_key=True))
WRITER = OutboxWriter(OUTBOX)
TOKEN = uuid.uuid4()
HEADERS = {"correlation_id": "c"}
STATEMENT_CLOCK = {
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f000','now')",
    "postgresql": "SELECT clock_timestamp()",
}


def on(database, body, metadata=METADATA, **options):
    async def prepared(engine):
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        return await body(engine)

    return database.run(prepared, **options)


async def put(session, body=b"x", queue="q", headers=HEADERS, **kw):
    return await publish(Plan(queue=queue, rows=(Row(body, headers),), **kw), session, WRITER)


async def rows(engine, table=OUTBOX):
    async with engine.connect() as connection:
        return (await connection.execute(select(table).order_by(table.c.id))).all()


async def clock(connection):
    now = (await connection.execute(text(STATEMENT_CLOCK[connection.dialect.name]))).scalar_one()
    return now if isinstance(now, datetime) else datetime.fromisoformat(now).replace(tzinfo=UTC)


HOSTILE = {
    "quote": "'; DROP TABLE outbox; --",
    "ü🎈": "\x01\x7f \u2028 \\u0000",
    "deep": {"a": [1, 2.5, None, True, {"b": []}]},
    "big": 2**63,
    "empty": "",
    "": "no name",
    "correlation_id": "c",
}


def test_a_row_is_what_was_published(any_driver):
    """S0-20, S0-21, F-F04: bytes and headers come back as they went in."""
    bodies = [b"", b"\x00\xff\xfe'\"", b"\x00" * 8192, "ü".encode()]

    async def body(engine):
        async with AsyncSession(engine) as session, session.begin():
            ids = [await put(session, payload, headers=HOSTILE) for payload in bodies]
            ids.append(await put(session, b"last", headers=None))
        found = await rows(engine)
        assert [row.id for row in found] == ids == sorted(ids)
        assert [row.payload for row in found] == [*bodies, b"last"]
        assert [row.headers for row in found] == [HOSTILE] * 4 + [None]
        for row in found:
            assert (row.queue, row.attempts_count, row.deliveries_count) == ("q", 0, 0)
            assert row.created_at.tzinfo is not None
            assert row.acquired_token is row.acquired_at is row.timer_id is None
        async with engine.connect() as connection:
            null = await connection.execute(
                text("SELECT count(*) FROM outbox WHERE headers IS NULL")
            )
            assert null.scalar_one() == 1

    on(any_driver, body)


def test_rollback_leaves_nothing(any_driver):
    """F-A01: rows and domain data go together; a savepoint takes its own rows only."""

    async def body(engine):
        with pytest.raises(ZeroDivisionError):
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(ORDERS.insert())
                await put(session)
                1 / 0
        assert await rows(engine) == await rows(engine, ORDERS) == []
        async with engine.begin() as connection:
            await put(connection, b"kept")
            savepoint = await connection.begin_nested()
            await put(connection, b"gone")
            await savepoint.rollback()
            async with connection.begin_nested():
                await put(connection, b"kept too")
        assert [row.payload for row in await rows(engine)] == [b"kept", b"kept too"]

    on(any_driver, body)


def test_the_transaction_stays_the_callers(any_driver):
    """S0: never committed, never flushed, no hook of the session runs."""

    class Base(DeclarativeBase):
        metadata = MetaData()

    class Thing(Base):
        __tablename__ = "thing"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str] = mapped_column(String(10))

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        seen = []
        async with AsyncSession(engine) as session:
            for name in ("before_flush", "after_commit", "do_orm_execute"):
                event.listen(session.sync_session, name, lambda *a, name=name: seen.append(name))
            session.add(Thing(id=1))  # a flush would fail: no name
            await put(session)
            await publish_batch(Plan(queue="q", rows=batch_rows([(b"", None)])), session, WRITER)
            assert await WRITER.cancel_timer(session, queue="q", timer_id="t") is False
            assert len(await WRITER.fetch_unprocessed(session)) == 2
            assert session.in_transaction()
            assert seen == []
        assert await rows(engine) == []

    on(any_driver, body)


def test_a_session_of_several_databases_finds_the_right_one(sqlite, tmp_path):
    """F-A04: the table's own bind, and the primary of a session that routes by statement."""

    async def body(engine):
        other = sqlite.engine()
        wrong = type(sqlite)(f"sqlite+aiosqlite:///{tmp_path / 'wrong.db'}").engine()

        class Routing(Session):
            def get_bind(self, mapper=None, *, clause=None, **kw):
                return (engine if getattr(clause, "is_dml", False) else wrong).sync_engine

        try:
            by_table = async_sessionmaker(wrong, binds={OUTBOX: engine})
            by_statement = async_sessionmaker(sync_session_class=Routing)
            for maker in (by_table, by_statement):
                async with maker() as session, session.begin():
                    await put(session)
                    assert len(await WRITER.fetch_unprocessed(session)) > 0
            assert len(await rows(engine)) == 2
        finally:
            await other.dispose()
            await wrong.dispose()

    on(sqlite, body)


def test_due_times_are_the_databases(any_driver):
    """F-A11: relative delays are added in SQL, whatever clock the publisher has."""
    at = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=timezone(timedelta(hours=-3)))

    async def body(engine):
        async with engine.connect() as connection:
            async with connection.begin():
                before = await clock(connection)
                await put(connection, activate_in=timedelta(hours=1, microseconds=1500))
                await put(connection, activate_in=timedelta(seconds=-90))
                await put(connection, activate_at=at)
                await put(connection)
                for when in ({"activate_in": timedelta(days=1)}, {"activate_at": at}, {}):
                    plan = Plan(queue="q", rows=batch_rows([(b"", None)] * 2), **when)
                    await publish_batch(plan, connection, WRITER)
                after = await clock(connection)
        found = await rows(engine)
        second = timedelta(seconds=1)
        for row in found:
            assert before - second / 1000 <= row.created_at <= after + second / 1000
        delays = [row.next_attempt_at - row.created_at for row in found]
        close = timedelta(milliseconds=2)
        for delay, wanted in (
            (delays[0], timedelta(hours=1, microseconds=1500)),
            (delays[1], timedelta(seconds=-90)),
            *((delays[n], timedelta()) for n in (3, 8, 9)),
            *((delays[n], timedelta(days=1)) for n in (4, 5)),
        ):
            assert abs(delay - wanted) < close
        assert [found[n].next_attempt_at for n in (2, 6, 7)] == [at] * 3

    on(any_driver, body)


def test_new_rows_have_the_statements_clock(postgres):
    """A long transaction does not stamp its rows with its beginning."""

    async def body(engine):
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_sleep(0.05)"))
            await put(connection)
            row = (await connection.execute(select(OUTBOX, text("now() AS began")))).one()
        assert row.created_at - row.began >= timedelta(milliseconds=50)
        assert row.next_attempt_at >= row.created_at

    on(postgres, body)


def test_sqlite_stores_one_format(sqlite):
    """Text order is time order, whoever wrote it."""
    at = datetime(2031, 5, 6, 7, 8, 9, tzinfo=timezone(timedelta(hours=2)))

    async def body(engine):
        async with engine.begin() as connection:
            await put(connection, activate_at=at)
            await put(connection, activate_in=timedelta(seconds=1.5))
            await connection.execute(OUTBOX.insert().values(queue="q", payload=b""))
            stored = await connection.execute(
                text("SELECT created_at, next_attempt_at FROM outbox ORDER BY id")
            )
            values = [value for row in stored for value in row]
        assert values[1] == "2031-05-06 05:08:09.000000"
        for value in values:
            assert datetime.fromisoformat(value).isoformat(" ", "microseconds") == value

    on(sqlite, body)


def test_batches(any_driver):
    """F-A10: order, empty bodies and None headers survive; an empty batch is nothing."""
    bodies = [(b"" if n % 3 else b"%d" % n, None if n % 2 else {"n": n}) for n in range(1201)]

    async def body(engine):
        statements = []
        event.listen(
            engine.sync_engine,
            "before_cursor_execute",
            lambda c, cur, sql, params, ctx, many: statements.append(sql),
        )
        async with AsyncSession(engine) as session, session.begin():
            await publish_batch(Plan(queue="q", rows=batch_rows(bodies)), session, WRITER)
            await publish_batch(Plan(queue="q", rows=()), session, WRITER)
        assert sum("INSERT INTO outbox" in sql for sql in statements) == 1
        found = await rows(engine)
        assert [(row.payload, row.headers) for row in found] == bodies
        due = [row.next_attempt_at for row in found]
        assert due == sorted(due)

    on(any_driver, body)


def test_a_huge_batch_is_several_statements_of_one_transaction(database, monkeypatch):
    monkeypatch.setattr("outlast.publish.run.ROWS_PER_STATEMENT", 4)
    monkeypatch.setattr("outlast.publish.run.BYTES_PER_STATEMENT", 100)
    bodies = [b"x" * 90, b"y" * 90, b"z" * 200, *(b"%d" % n for n in range(9))]

    async def body(engine):
        statements = []
        event.listen(
            engine.sync_engine,
            "before_cursor_execute",
            lambda c, cur, sql, params, ctx, many: statements.append(sql),
        )
        plan = Plan(queue="q", rows=batch_rows((payload, None) for payload in bodies))
        async with AsyncSession(engine) as session:
            await publish_batch(plan, session, WRITER)
            # by bytes: 90, 90, 200; by rows: 4, 4, 1
            assert sum("INSERT INTO outbox" in sql for sql in statements) == 6
            await session.rollback()
            assert await rows(engine) == []
            await publish_batch(plan, session, WRITER)
            await session.commit()
        assert [row.payload for row in await rows(engine)] == bodies

    on(database, body)


def test_five_thousand_with_one_invalid(database):
    """F-A07: all or nothing."""

    async def body(engine):
        async def attempt(bad):
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(ORDERS.insert())
                lazy = (
                    ((b"[NaN]" if n == bad else b"[]"), {"content-type": "application/json"})
                    for n in range(5000)
                )
                await put(session)
                await publish_batch(Plan(queue="q", rows=batch_rows(lazy)), session, WRITER)

        with pytest.raises(ValueError, match="message 2500 of the batch"):
            await attempt(2500)
        assert await rows(engine) == await rows(engine, ORDERS) == []
        await attempt(None)
        assert len(await rows(engine)) == 5001

    on(database, body)


def test_a_large_body(any_driver):
    """F-F05: a body of the stated size is stored whole."""
    large = bytes(range(256)) * 4096 * 4

    async def body(engine):
        async with engine.begin() as connection:
            await put(connection, large)
            await publish_batch(Plan(queue="q", rows=(Row(large, None),)), connection, WRITER)
        assert [row.payload == large for row in await rows(engine)] == [True, True]

    on(any_driver, body)


def test_ids_are_never_issued_again(database):
    async def body(engine):
        async with engine.begin() as connection:
            first = await put(connection)
            await connection.execute(OUTBOX.delete())
        async with engine.begin() as connection:
            assert await put(connection) > first

    on(database, body)


def test_fetch_unprocessed(any_driver):
    """Pending, leased, future and uncommitted rows, by id."""

    async def body(engine):
        async with AsyncSession(engine) as session:
            ids = [await put(session, queue=queue) for queue in ("a", "b", "a")]
            ids.append(await put(session, queue="a", activate_in=timedelta(days=1)))
            lease = {"acquired_token": TOKEN, "acquired_at": datetime.now(UTC)}
            await session.execute(update(OUTBOX).where(OUTBOX.c.id == ids[0]).values(lease))
            look = WRITER.fetch_unprocessed
            assert [row["id"] for row in await look(session)] == ids
            assert [row["id"] for row in await look(session, limit=2)] == ids[:2]
            mine = await look(session, queue="a", limit=2**80)
            assert [row["id"] for row in mine] == [ids[0], ids[2], ids[3]]
            assert set(mine[0]) == set(OUTBOX.c.keys())
            assert mine[0]["acquired_token"] == TOKEN
            assert mine[0]["headers"] == HEADERS
            with pytest.raises(ValueError, match="limit must be >= 1, got 0"):
                await look(session, limit=0)
            with pytest.raises(TypeError, match="AsyncSession"):
                await look(None)
            with pytest.raises(ValueError, match="non-empty"):
                await look(session, queue="")

    on(any_driver, body)


@pytest.mark.parametrize("name", ['Od"d.Näme %s :x', "x" * 51], ids=["quoted", "63 bytes"])
@pytest.mark.parametrize("schema", [None, 'Else"where'])
def test_names_and_schemas(database, name, schema):
    """F-D11: quoted names, 63 bytes, another schema."""
    if schema and not database.is_postgres:
        pytest.skip("SQLite has no schemas of this kind")
    if schema:
        schema = f"{schema} {database.schema}"
    metadata = MetaData(schema=schema)
    table = make_outbox_table(metadata, name)
    make_dlq_table(metadata, name[:40] + "_d")
    writer = OutboxWriter(table)

    async def body(engine):
        quoted = engine.dialect.identifier_preparer.quote(schema) if schema else None
        async with engine.begin() as connection:
            if schema:
                await connection.execute(text(f"CREATE SCHEMA {quoted}".replace(":", r"\:")))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(metadata.create_all)
                kw = {"queue": "q", "payload": b"", "headers": None}
                await writer.insert(connection, **kw)
                await writer.insert_batch(connection, queue="q", rows=[(b"", {})])
                for conflict in ("ignore", "extend"):
                    await writer.insert(connection, **kw, timer_id="t", timer_conflict=conflict)
                assert await writer.cancel_timer(connection, queue="q", timer_id="t")
                assert len(await writer.fetch_unprocessed(connection)) == 2
        finally:
            if schema:
                async with engine.begin() as connection:
                    await connection.execute(text(f"DROP SCHEMA {quoted} CASCADE"))

    database.run(body)


def test_statements_are_built_once():
    insertion = WRITER._postgres
    assert insertion.single("now") is insertion.single("now")
    assert insertion.batch("in") is insertion.batch("in")
    assert insertion.single("at") is not insertion.single("in")


def test_a_mock_is_taken_for_postgresql():
    """1.2: a session that cannot say its dialect."""
    from unittest.mock import AsyncMock, MagicMock

    connection = MagicMock()
    inside = MagicMock(connection=MagicMock(return_value=connection))
    run_sync = AsyncMock(side_effect=lambda work, *arguments: work(inside, *arguments))
    asyncio.run(put(AsyncMock(spec=AsyncSession, run_sync=run_sync)))
    assert "pg_notify" in str(connection.execute.call_args.args[0])
