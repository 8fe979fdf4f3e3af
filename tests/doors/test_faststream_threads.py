"""Plain `def` handlers, which run in a thread that nobody can cancel."""

import asyncio
import threading

import pytest
from fastapi import FastAPI

from outlast import ConstantRetry, NoRetry, TestOutboxBroker
from outlast.fastapi import OutboxRouter
from tests.doors.outbox import PATIENCE, Heard, broker_on, content, publish, running, tables


def test_a_thread_keeps_its_lease_at_a_stop(database):
    """Nobody runs the message beside a thread that runs on; what it returns later is nothing."""
    may_end = threading.Event()

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard, graceful_timeout=0.05)

        @broker.subscriber("q")
        def handle(body: int) -> None:
            may_end.wait(PATIENCE)

        try:
            async with running(engine, broker):
                await publish(engine, broker, 1, queue="q")
                await heard.until(lambda: "dispatched" in heard.names())
        finally:
            may_end.set()
        assert heard.names()[-1] == "dispatch_abandoned"
        (row,) = (await content(engine, broker))[0]
        assert row["acquired_token"] is not None
        assert row["deliveries_count"] == 1

    database.run(body)


def test_a_thread_that_ends_in_time_is_given_back(sqlite):
    """It was cancelled, so it counts as unattempted: at least once."""
    may_end = threading.Event()

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard, graceful_timeout=0.05)

        @broker.subscriber("q")
        def handle(body: int) -> None:
            may_end.wait(PATIENCE)

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q")
            await heard.until(lambda: "dispatched" in heard.names())
            stopping = asyncio.ensure_future(broker.stop())
            await heard.until(lambda: "drain_timeout" in heard.names())
            may_end.set()
            await stopping
        assert heard.names()[-1] == "released"
        (row,) = (await content(engine, broker))[0]
        assert (row["acquired_token"], row["deliveries_count"]) == (None, 0)

    sqlite.run(body)


def test_a_thread_is_not_retried_beside_itself(sqlite):
    """The lease limit strikes when the thread has ended: two never run at once."""

    async def body(engine):
        heard, at_once, most = Heard(), [], []
        may_end = threading.Event()
        broker = broker_on(engine, metrics_recorder=heard)

        @broker.subscriber(
            "q",
            max_workers=2,
            lease_ttl_seconds=0.6,
            min_fetch_interval=0.05,
            max_fetch_interval=0.1,
            lease_limit_seconds=0.1,
            retry_strategy=ConstantRetry(delay_seconds=0.01, max_attempts=2),
        )
        def handle(body: int) -> None:
            at_once.append(body)
            most.append(len(at_once))
            may_end.wait(0.3)
            at_once.pop()

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q")
            await heard.until(lambda: "nacked_terminal" in heard.names())
        assert most == [1, 1]
        assert heard.of("nacked_terminal")[0]["exception_type"] == "LeaseLimitExceeded"

    sqlite.run(body)


def test_a_plain_handler_stays_plain():
    """It is called directly as it was written, and gets its body, its errors, its result."""

    async def main():
        broker, got = broker_on(), []

        @broker.subscriber("q", retry_strategy=NoRetry())
        def handle(body: "int") -> int:
            got.append((body, threading.current_thread() is threading.main_thread()))
            if body < 0:
                raise ValueError("negative")
            return body

        async with TestOutboxBroker(broker) as br:
            await broker.publish(1, queue="q")
            await broker.publish(-1, queue="q")
            (letter,) = br.fake_client.dlq_rows
        assert letter["last_exception"] == "ValueError('negative')"
        assert handle(2) == 2
        assert got == [(1, False), (-1, False), (2, True)]

    asyncio.run(main())


@pytest.mark.parametrize("body", [1, -1])
def test_a_plain_handler_of_fastapi(body):
    async def main():
        router, got = OutboxRouter(**tables(), logger=None), []

        @router.subscriber("q", retry_strategy=NoRetry())
        def handle(body: int) -> None:
            got.append(body)

        app = FastAPI()
        app.include_router(router)
        async with TestOutboxBroker(router.broker), app.router.lifespan_context(app):
            await router.broker.publish(body, queue="q")
            assert router.broker.fake_client.dlq_rows == []
        assert got == [body]

    asyncio.run(main())
