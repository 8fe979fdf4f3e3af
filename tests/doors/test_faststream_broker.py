"""The broker's life on a database: start, stop, ping, connect, what is told at start."""

import asyncio
import logging
import warnings
from collections import Counter
from datetime import timedelta

import pytest
from faststream import FastStream
from faststream.exceptions import IncorrectState
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outlast import ConstantRetry, NoRetry, OutboxBroker, OutboxRouter
from outlast.annotations import OutboxMessage
from outlast.model.errors import SchemaError, UnsupportedDatabase
from tests.doors.outbox import (
    Heard,
    broker_on,
    config,
    content,
    create,
    publish,
    running,
    tables,
)


def test_without_an_engine(sqlite):
    """S0-57: publishing works, the session brings the connection; the rest says what is missing."""

    async def body(engine):
        broker = broker_on()
        await create(engine, broker)
        assert await publish(engine, broker, 1, queue="q") == 1
        assert await broker.ping() is False
        with pytest.raises(RuntimeError, match="not connected"):
            _ = broker.client
        for method in (broker.connect, broker.start, broker.validate_schema):
            with pytest.raises(IncorrectState, match="Engine not available"):
                await method()
        assert not broker.running

    sqlite.run(body)


def test_an_outbox_table_is_needed():
    with pytest.raises(TypeError, match="outbox_table"):
        OutboxBroker()


def test_start_and_stop(database):
    """S1-02: the context manager starts and stops; cycles work; the engine stays the caller's."""

    async def body(engine):
        heard = Heard()
        broker, got = broker_on(engine, metrics_recorder=heard), []

        @broker.subscriber("q")
        async def handle(body: int) -> None:
            got.append(body)

        for number in range(3):
            async with running(engine, broker):
                assert broker.running
                await broker.start()
                await publish(engine, broker, number, queue="q")
                await heard.closed(number + 1)
                assert await broker.ping()
            assert not broker.running
            await broker.stop()
        assert got == [0, 1, 2]
        assert await broker.ping()
        async with engine.connect() as connection:
            await connection.exec_driver_sql("SELECT 1")

    database.run(body)


def test_an_app(sqlite):
    """S1-02: app start and stop drain cleanly."""

    async def body(engine):
        heard = Heard()
        broker, done = broker_on(engine, metrics_recorder=heard), []
        app = FastStream(broker, logger=None)

        @broker.subscriber("q", max_workers=3)
        async def handle(body: int) -> None:
            await asyncio.sleep(0.05)
            done.append(body)

        await create(engine, broker)
        await app.start()
        for number in range(3):
            await publish(engine, broker, number, queue="q")
        await heard.until(lambda: heard.names().count("dispatched") == 3)
        await app.stop()
        assert sorted(done) == [0, 1, 2]
        assert heard.names().count("acked") == 3
        assert (await content(engine, broker))[0] == []

    sqlite.run(body)


def test_a_missing_table(database):
    """S0-07: nothing is created; the error names the table, and nothing is left open."""

    async def body(engine):
        statements = []
        event.listen(
            engine.sync_engine,
            "before_cursor_execute",
            lambda *arguments: statements.append(arguments[2]),
        )
        broker = broker_on(engine)

        @broker.subscriber("q")
        async def handle(body: int) -> None: ...

        with pytest.raises(SchemaError, match="outbox"):
            await broker.start()
        assert not broker.running
        assert not [s for s in statements if "CREATE" in s.upper()]

    database.run(body)


def test_a_driver_that_cannot_consume(postgres_psycopg):
    """Consuming names the drivers that can; publishing works."""

    async def body(engine):
        broker = broker_on(engine)

        @broker.subscriber("q")
        async def handle(body: int) -> None: ...

        await create(engine, broker)
        assert await publish(engine, broker, 1, queue="q") == 1
        with pytest.raises(UnsupportedDatabase, match="asyncpg"):
            await broker.start()

    postgres_psycopg.run(body)


@pytest.mark.parametrize(("serves", "expected"), [(False, 0), (True, 3)])
def test_connections_beside_the_pool(postgres, serves, expected):
    """S1-42, S1-43: three per broker, however many subscribers; none to publish only."""

    async def body(engine):
        broker, opened = broker_on(engine), []
        await create(engine, broker)
        event.listen(engine.sync_engine, "connect", lambda *_: opened.append(1))
        if serves:
            for name in ("a", "b", "c"):

                @broker.subscriber(name, max_workers=8)
                async def handle(body: int) -> None: ...

        async with broker:
            assert len(opened) == expected
            assert await broker.ping()

    postgres.run(body)


def test_a_subscriber_that_comes_later(database):
    """A subscriber of a running broker begins at once, also the first of all."""

    async def body(engine):
        heard = Heard()
        broker, got = broker_on(engine, metrics_recorder=heard), []
        async with running(engine, broker):
            subscriber = broker.subscriber("late")

            @subscriber
            async def handle(body: int) -> None:
                got.append(body)

            await publish(engine, broker, 1, queue="late")
            await subscriber.start()
            await heard.closed()
            await subscriber.stop()
            await publish(engine, broker, 2, queue="late")
            await subscriber.start()
            await heard.closed(2)
        assert got == [1, 2]

    database.run(body)


def test_a_handler_that_stops_its_subscriber(database):
    """stop() from within a handler neither hangs nor loses the message."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)
        subscriber = broker.subscriber("q")

        @subscriber
        async def handle(body: int) -> None:
            subscriber.consuming.request_stop(subscriber)

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q")
            await heard.closed()
            await publish(engine, broker, 2, queue="q")
        rows, _ = await content(engine, broker)
        assert [row["payload"] for row in rows] == [b"2"]
        assert heard.names().count("acked") == 1

    database.run(body)


def test_a_stop_that_runs_out_of_time(database):
    """What is left is given back, claimable at once; the handler was cancelled, and not failed."""

    async def body(engine):
        heard, cancelled = Heard(), []
        broker = broker_on(engine, metrics_recorder=heard, graceful_timeout=0.05)

        @broker.subscriber("q", max_workers=2)
        async def handle(body: int) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(body)
                raise

        async with running(engine, broker):
            for number in range(5):
                await publish(engine, broker, number, queue="q")
            await heard.until(lambda: heard.names().count("dispatched") == 2)
        rows, letters = await content(engine, broker)
        assert (len(rows), letters, sorted(cancelled)) == (5, [], [0, 1])
        assert all(row["acquired_token"] is None for row in rows)
        assert all(row["deliveries_count"] == row["attempts_count"] == 0 for row in rows)
        assert heard.of("drain_timeout")

    database.run(body)


def test_attempts_count_and_end(database):
    """S0-11, S0-22, S0-23, S0-30, S1-41: two attempts, one letter, the row's own created_at."""

    async def body(engine):
        heard = Heard()
        broker, created = broker_on(engine, metrics_recorder=heard), []

        @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01, max_attempts=2))
        async def handle(body: int, msg: OutboxMessage) -> None:
            created.append(msg.raw_message.created_at)
            raise RuntimeError("boom")

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q", correlation_id="c", event_type="e")
            await heard.closed(2)
        rows, (letter,) = await content(engine, broker)
        assert rows == []
        assert letter["failure_reason"] == "retry_terminal"
        assert (letter["deliveries_count"], letter["attempts_count"]) == (2, 2)
        assert letter["created_at"] == created[0] == created[1]
        assert letter["failed_at"] >= letter["created_at"]
        assert letter["headers"]["correlation_id"] == "c"
        assert (letter["event_type"], letter["subscriber"]) == ("e", "Handle")
        assert letter["last_exception"] == "RuntimeError('boom')"

    database.run(body)


def test_who_consumed_it(sqlite):
    """Version and instance of the consumer stand in its dead letters."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(
            engine, metrics_recorder=heard, consumer_version="7", consumer_instance="me"
        )

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            raise RuntimeError

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q")
            await heard.closed()
        _, (letter,) = await content(engine, broker)
        assert (letter["consumer_version"], letter["consumer_instance"]) == ("7", "me")

    sqlite.run(body)


def test_as_many_handlers_as_workers(database):
    """S1-08: never more at once than max_workers."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)
        at_once, most = Counter(), Counter()

        def serve(queue, workers):
            @broker.subscriber(queue, max_workers=workers)
            async def handle(body: int) -> None:
                at_once[queue] += 1
                most[queue] = max(most[queue], at_once[queue])
                await asyncio.sleep(0.01)
                at_once[queue] -= 1

        serve("one", 1)
        serve("eight", 8)
        async with running(engine, broker):
            async with AsyncSession(engine) as session, session.begin():
                for queue in ("one", "eight"):
                    await broker.publish_batch(*range(16), queue=queue, session=session)
            await heard.closed(32)
        assert most["one"] == 1
        assert 1 < most["eight"] <= 8

    database.run(body)


def test_one_subscriber_of_several_queues(database):
    """One handler, a list of queues."""

    async def body(engine):
        heard = Heard()
        broker, got = broker_on(engine, metrics_recorder=heard), []

        @broker.subscriber(["a", "b"])
        async def handle(body: int, msg: OutboxMessage) -> None:
            got.append((body, msg.raw_message.queue))

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="a")
            await publish(engine, broker, 2, queue="b")
            await heard.closed(2)
        assert sorted(got) == [(1, "a"), (2, "b")]

    database.run(body)


def test_notify_turned_off(postgres):
    """notify=False: nothing is sent, polling finds the message."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard, notify=False)
        got = []

        @broker.subscriber("q", min_fetch_interval=0.05, max_fetch_interval=0.1)
        async def handle(body: int) -> None:
            got.append(body)

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q")
            await heard.closed()
        assert got == [1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        postgres.run(body)


def test_a_wake_up(postgres):
    """S1-44: with NOTIFY nobody waits for the poll."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)

        @broker.subscriber("q", min_fetch_interval=30, max_fetch_interval=30)
        async def handle(body: int) -> None: ...

        async with running(engine, broker):
            await heard.until(lambda: heard.of("fetched"))
            for number in range(3):
                await publish(engine, broker, number, queue="q")
                await heard.closed(number + 1)

    postgres.run(body)


def test_competing_subscribers_through_routers(sqlite):
    """Told at start, for routers know each other only then."""

    async def body(engine):
        broker = broker_on(engine)
        for _ in range(2):
            router = OutboxRouter()

            @router.subscriber("q")
            async def handle(body: int) -> None: ...

            broker.include_router(router)
        with pytest.warns(UserWarning, match="compete for the same rows"):
            async with running(engine, broker):
                pass

    sqlite.run(body)


def test_a_pool_that_handlers_may_starve_on(postgres, caplog):
    """S1-45: a small pool starts all the same, with a warning."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)
        for name in ("a", "b", "c"):

            @broker.subscriber(name, max_workers=8)
            async def handle(body: int) -> None: ...

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="c")
            await heard.closed()

    with caplog.at_level(logging.WARNING, "outlast"):
        postgres.run(body, pool_size=1, max_overflow=0)
    assert "up to 24 handlers run at once" in caplog.text


@pytest.mark.parametrize("ttl", [60, 90])
def test_two_brokers_on_one_table(sqlite, caplog, ttl):
    """Only with different options they are told of each other."""

    async def body(engine):
        first, second = broker_on(engine), broker_on(engine)

        @first.subscriber("q", retry_strategy=NoRetry())
        async def one(body: int) -> None: ...

        @second.subscriber("q", lease_ttl_seconds=ttl, retry_strategy=NoRetry())
        async def two(body: int) -> None: ...

        async with running(engine, first), second:
            pass

    with caplog.at_level(logging.WARNING, "outlast"):
        sqlite.run(body)
    assert ("two brokers of this process" in caplog.text) is (ttl != 60)


def test_validate_schema(database):
    """S0-40, S0-42: drift in both tables is told in one error; without drift nothing is."""

    async def body(engine):
        broker = broker_on(engine)
        with pytest.raises(SchemaError) as caught:
            await broker.validate_schema()
        assert str(caught.value).startswith("Outbox schema mismatch: ")
        assert str(caught.value).count("does not exist") == 2
        await create(engine, broker)
        await broker.validate_schema()

    database.run(body)


def test_ping_of_a_database_that_is_gone():
    async def main():
        engine = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:9/none")
        broker = OutboxBroker(engine, **tables(), logger=None)
        assert await broker.ping() is False
        assert await broker.ping(timeout=0.0001) is False

    asyncio.run(main())


def test_the_log_columns():
    """The queue column is as wide as the longest queue."""

    async def main():
        broker = OutboxBroker(**tables())

        @broker.subscriber(["short", "a-rather-long-queue-name"])
        async def handle(body: int) -> None: ...

        broker._setup_logger()
        logger = broker.config.logger.logger.logger
        assert logger.name == "faststream.access.outbox"
        assert "%(queue)-24s | %(message_id)-10s" in logger.handlers[0].formatter._fmt

    asyncio.run(main())


def test_the_driver_type_hints_name_their_shortcut():
    """A handler annotated with the bare class is told what to write."""
    broker = broker_on()
    rows = config(broker).resolved_underlying_driver_annotations
    assert {row.name for row in rows.values()} == {"OutboxBroker", "OutboxMessage"}
    assert {row.module for row in rows.values()} == {"outlast.annotations"}


def test_a_timer_fires(database):
    """A message of the future waits for its time, and then is delivered."""

    async def body(engine):
        heard = Heard()
        broker, got = broker_on(engine, metrics_recorder=heard), []

        @broker.subscriber("q", min_fetch_interval=0.05)
        async def handle(body: int) -> None:
            got.append(body)

        async with running(engine, broker):
            later = timedelta(seconds=0.3)
            await publish(engine, broker, 1, queue="q", activate_in=later, timer_id="t")
            await publish(engine, broker, 2, queue="q")
            await heard.closed(2)
        assert got == [2, 1]

    database.run(body)


def test_a_late_subscriber_that_cannot_begin(sqlite):
    """A first subscriber that fails to start leaves the broker able to start the next."""

    async def body(engine):
        heard = Heard()
        broker, got = broker_on(engine, metrics_recorder=heard), []
        async with broker:
            subscriber = broker.subscriber("q")

            @subscriber
            async def handle(body: int) -> None:
                got.append(body)

            with pytest.raises(SchemaError):
                await subscriber.start()
            await create(engine, broker)
            await subscriber.start()
            await publish(engine, broker, 1, queue="q")
            await heard.closed()
        assert got == [1]

    sqlite.run(body)
