"""Timers: one live message per queue and timer, moved or cancelled only while it is unleased."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import MetaData, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from outlast.publish.plan import Plan, Row
from outlast.publish.run import OutboxWriter, publish
from outlast.tables import make_outbox_table

METADATA = MetaData()
OUTBOX = make_outbox_table(METADATA)
WRITER = OutboxWriter(OUTBOX)
HOUR = timedelta(hours=1)


def on(database, body, **options):
    async def prepared(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
        return await body(engine)

    return database.run(prepared, **options)


async def timer(session, payload=b"x", *, conflict="ignore", queue="q", timer_id="t", **when):
    row = Row(payload, {"is": payload.decode()})
    plan = Plan(queue=queue, rows=(row,), timer_id=timer_id, timer_conflict=conflict, **when)
    return await publish(plan, session, WRITER)


async def only(engine):
    async with engine.connect() as connection:
        return (await connection.execute(select(OUTBOX))).one()


async def change(engine, **values):
    async with engine.begin() as connection:
        await connection.execute(update(OUTBOX).values(values))


async def apart(engine, *args, **kw):
    async with engine.begin() as connection:
        return await timer(connection, *args, **kw)


def lease():
    return {"acquired_token": uuid.uuid4(), "acquired_at": datetime.now(UTC)}


def test_ignore_leaves_the_live_row(any_driver):
    """1.6: None, and nothing changes; another queue or timer is another message."""

    async def body(engine):
        async with AsyncSession(engine) as session, session.begin():
            first = await timer(session, b"first", activate_in=HOUR)
            assert await timer(session, b"second") is None
        found = await only(engine)
        assert (found.id, found.payload, found.timer_id) == (first, b"first", "t")
        await change(engine, **lease())
        assert await apart(engine, b"third") is None
        assert await apart(engine, b"other", queue="q2") is not None
        assert await apart(engine, b"other", timer_id="t2") is not None

    on(any_driver, body)


@pytest.mark.parametrize("conflict", ["ignore", "extend"])
def test_the_timer_is_free_after_the_row_is_gone(any_driver, conflict):
    async def body(engine):
        first = await apart(engine, conflict=conflict)
        async with engine.begin() as connection:
            await connection.execute(OUTBOX.delete())
        second = await apart(engine, conflict=conflict)
        assert second > first
        assert (await only(engine)).id == second

    on(any_driver, body)


def test_extend_moves_to_a_later_time(any_driver):
    """1.6: a new message, fresh attempts, the same row."""
    at = datetime.now(UTC).replace(microsecond=0) + 2 * HOUR

    async def body(engine):
        first = await apart(engine, b"first", conflict="extend", activate_in=HOUR)
        now = datetime.now(UTC)
        await change(engine, attempts_count=3, first_attempt_at=now, last_attempt_at=now)
        assert await apart(engine, b"second", conflict="extend", activate_at=at) == first
        found = await only(engine)
        assert (found.payload, found.headers) == (b"second", {"is": "second"})
        assert found.next_attempt_at == at
        assert (found.attempts_count, found.first_attempt_at, found.last_attempt_at) == (
            0,
            None,
            None,
        )

    on(any_driver, body)


def test_extend_never_shortens(any_driver):
    """1.6: the id of the unleased row, which stays as it is."""

    async def body(engine):
        first = await apart(engine, b"first", conflict="extend", activate_in=2 * HOUR)
        await change(engine, attempts_count=3)
        before = await only(engine)
        for when in ({"activate_in": HOUR}, {}, {"activate_at": before.next_attempt_at}):
            assert await apart(engine, b"second", conflict="extend", **when) == first
        assert await only(engine) == before

    on(any_driver, body)


def test_extend_without_a_time_moves_an_overdue_row_to_now(any_driver):
    async def body(engine):
        first = await apart(engine, b"first", activate_in=-HOUR)
        assert await apart(engine, b"second", conflict="extend") == first
        found = await only(engine)
        assert found.payload == b"second"
        assert found.next_attempt_at - found.created_at < timedelta(minutes=1)

    on(any_driver, body)


def test_extend_of_a_leased_row_is_refused(any_driver):
    """1.6: None only when a worker holds the row."""

    async def body(engine):
        await apart(engine, b"first")
        await change(engine, **lease())
        before = await only(engine)
        for when in ({"activate_in": HOUR}, {"activate_in": -HOUR}, {}):
            assert await apart(engine, b"second", conflict="extend", **when) is None
        assert await only(engine) == before

    on(any_driver, body)


def test_extend_does_not_lock_a_leased_row(postgres):
    """4.1: the worker settles while the publisher's transaction is still open."""

    async def body(engine):
        await apart(engine)
        await change(engine, **lease())
        async with engine.connect() as publisher:
            for when in ({"activate_in": HOUR}, {"activate_in": -HOUR}):
                assert await timer(publisher, conflict="extend", **when) is None
            async with engine.begin() as worker:
                await worker.execute(text("SET lock_timeout = '200ms'"))
                assert (await worker.execute(OUTBOX.delete())).rowcount == 1
            await publisher.rollback()

    on(postgres, body)


def test_extend_does_not_lock_what_it_does_not_change(postgres):
    async def body(engine):
        await apart(engine, activate_in=2 * HOUR)
        async with engine.connect() as publisher:
            assert await timer(publisher, conflict="extend", activate_in=HOUR) is not None
            async with engine.begin() as worker:
                await worker.execute(text("SET lock_timeout = '200ms'"))
                assert (await worker.execute(update(OUTBOX).values(lease()))).rowcount == 1
            await publisher.rollback()

    on(postgres, body)


async def _waits_for_lock(engine):
    """Until an insert of this test waits for another transaction."""
    blocked = text(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%INSERT INTO outbox%' "
        "AND application_name = current_setting('application_name') "
        "AND cardinality(pg_blocking_pids(pid)) > 0"
    )
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        for _ in range(2000):
            if (await connection.execute(blocked)).scalar():
                return
            await asyncio.sleep(0.005)
    raise AssertionError("nobody waited")


@pytest.mark.parametrize("conflict", ["ignore", "extend"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_same_timer_in_two_transactions(postgres, conflict, ends):
    """F-A09: the second waits; after a commit it is told, after a rollback it wins."""

    async def body(engine):
        async with engine.connect() as one:
            first = await timer(one, b"first", conflict=conflict, activate_in=HOUR)
            second = asyncio.create_task(
                apart(engine, b"second", conflict=conflict, activate_in=2 * HOUR)
            )
            await _waits_for_lock(engine)
            await getattr(one, ends)()
            answer = await asyncio.wait_for(second, 10)
        found = await only(engine)
        if ends == "rollback":
            assert (found.payload, found.id) == (b"second", answer)
        elif conflict == "ignore":
            assert (found.payload, answer) == (b"first", None)
        else:
            assert (found.payload, found.id, answer) == (b"second", first, first)

    on(postgres, body)


def test_extend_waits_for_a_claim_and_then_leaves_the_row(postgres):
    """A row claimed at that very moment is the worker's."""

    async def body(engine):
        await apart(engine, b"first")
        async with engine.connect() as worker:
            await worker.execute(update(OUTBOX).values(lease()))
            second = asyncio.create_task(apart(engine, b"second", conflict="extend"))
            await _waits_for_lock(engine)
            await worker.commit()
            assert await asyncio.wait_for(second, 10) is None
        assert (await only(engine)).payload == b"first"

    on(postgres, body)


def test_extend_during_a_settle_becomes_a_new_message(postgres):
    """The row is deleted while we wait: the message must not be lost."""

    async def body(engine):
        first = await apart(engine, b"first", activate_in=-HOUR)
        async with engine.connect() as worker:
            await worker.execute(OUTBOX.delete())
            second = asyncio.create_task(apart(engine, b"second", conflict="extend"))
            await _waits_for_lock(engine)
            await worker.commit()
            answer = await asyncio.wait_for(second, 10)
        found = await only(engine)
        assert (found.payload, found.id) == (b"second", answer)
        assert answer != first

    on(postgres, body)


def test_one_timer_on_sqlite_from_two_connections(sqlite):
    """F-A09: the second writer waits for the first one's commit."""

    async def body(engine):
        async with engine.connect() as one:
            first = await timer(one, b"first", conflict="extend", activate_in=HOUR)
            second = asyncio.create_task(
                apart(engine, b"second", conflict="extend", activate_in=2 * HOUR)
            )
            await asyncio.sleep(0)
            await one.commit()
            assert await asyncio.wait_for(second, 10) == first
        assert (await only(engine)).payload == b"second"

    on(sqlite, body)


def test_cancel(any_driver):
    """1.2: only an unleased row, True for the call that deleted it, undone by a rollback."""

    async def body(engine):
        await apart(engine, activate_in=HOUR)
        async with AsyncSession(engine) as session:
            assert await WRITER.cancel_timer(session, queue="q", timer_id="t") is True
            assert await WRITER.cancel_timer(session, queue="q", timer_id="t") is False
            await session.rollback()
        await change(engine, **lease())
        async with AsyncSession(engine) as session, session.begin():
            assert await WRITER.cancel_timer(session, queue="q", timer_id="t") is False
            assert await WRITER.cancel_timer(session, queue="q2", timer_id="t") is False
        await only(engine)
        async with AsyncSession(engine) as session:
            for bad, error in (({"queue": 1}, TypeError), ({"timer_id": None}, TypeError)):
                with pytest.raises(error):
                    await WRITER.cancel_timer(session, **({"queue": "q", "timer_id": "t"} | bad))
        with pytest.raises(TypeError, match="AsyncSession"):
            await WRITER.cancel_timer(object(), queue="q", timer_id="t")

    on(any_driver, body)


def test_a_missing_timer_index_is_told(any_driver):
    """F-D08: without the unique index a timer is refused, not stored twice."""

    async def body(engine):
        async with engine.begin() as connection:
            await connection.execute(text("DROP INDEX outbox_timer_id_uq"))
        with pytest.raises(DBAPIError, match="ON CONFLICT"):
            await apart(engine)

    on(any_driver, body)
