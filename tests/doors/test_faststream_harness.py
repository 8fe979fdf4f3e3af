"""The test broker: what it promises to those who test their handlers with it."""

import asyncio
import warnings
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from faststream import BaseMiddleware, TestApp
from faststream.asgi import AsgiFastStream
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession

from outlast import (
    ConstantRetry,
    NoRetry,
    OutboxResponse,
    OutboxRouter,
    TestOutboxBroker,
    make_dlq_table,
)
from outlast.annotations import OutboxMessage
from outlast.router import OutboxRoute
from outlast.testing import FakeOutboxClient, fake_session
from tests import virtual
from tests.doors.outbox import Heard, broker_on, config


def test_a_session_of_its_own():
    """The fake session passes for an AsyncSession with an open transaction."""
    session = fake_session()
    assert isinstance(session, AsyncSession)
    assert session.in_transaction() is True
    asyncio.run(session.execute("SELECT 1"))


def test_rows_without_a_handler_stay():
    """Nobody serves them; a publisher's double records them and takes nothing away."""

    async def main():
        broker = broker_on()
        publisher = broker.publisher("nobody")
        test_broker = TestOutboxBroker(broker)
        assert isinstance(test_broker.fake_client, FakeOutboxClient)
        assert test_broker.run_loops is False
        async with test_broker as br:
            assert br is broker
            await broker.publish({"a": 1}, queue="nobody")
            publisher.mock.assert_called_once_with({"a": 1})
        (row,) = test_broker.fake_client.rows
        assert (row.queue, row.payload, row.acquired_token) == ("nobody", b'{"a":1}', None)

    asyncio.run(main())


@pytest.mark.parametrize("loops", [False, True])
def test_feeding(loops):
    """feed() stores a row; with loops it is consumed, without it waits to be looked at."""

    async def main():
        heard = Heard()
        broker, got = broker_on(metrics_recorder=heard), []

        @broker.subscriber("q")
        async def handle(msg: OutboxMessage) -> None:
            got.append((msg.body, msg.headers))

        async with TestOutboxBroker(broker, run_loops=loops) as br:
            test_broker = br.fake_client
            row_id = test_broker.feed(queue="q", payload=b"1", headers={"k": "v"})
            if loops:
                await heard.closed()
            else:
                assert [row.id for row in test_broker.rows] == [row_id]
        assert got == ([(b"1", {"k": "v"})] if loops else [])

    asyncio.run(main())


def test_feed_of_the_harness():
    async def main():
        broker = broker_on()
        test_broker = TestOutboxBroker(broker)
        due = datetime(2040, 1, 1, tzinfo=UTC)
        async with test_broker:
            assert test_broker.feed("q", b"1", next_attempt_at=due, timer_id="t") == 1
            assert test_broker.feed("q", b"2", timer_id="t") is None
        (row,) = test_broker.fake_client.rows
        assert (row.next_attempt_at, row.timer_id) == (due, "t")

    asyncio.run(main())


def test_timers_fire_at_once_without_loops():
    """Sync mode waits for nothing."""

    async def main():
        broker, got = broker_on(), []

        @broker.subscriber("q")
        async def handle(body: int) -> None:
            got.append(body)

        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="q", activate_in=timedelta(days=1), timer_id="t")
            await broker.publish(2, queue="q", activate_in=timedelta(days=1), timer_id="t")
            assert broker.fake_client.rows == []
        assert got == [1, 2]

    asyncio.run(main())


def test_retries_and_delays_are_real_with_loops():
    """run_loops: the strategy's delays pass, on a clock that jumps."""

    async def main():
        heard = Heard()
        broker, at = broker_on(metrics_recorder=heard), []

        @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=100, max_attempts=3))
        async def handle(body: int) -> None:
            at.append(asyncio.get_running_loop().time())
            raise RuntimeError("boom")

        test_broker = TestOutboxBroker(broker, run_loops=True)
        test_broker.fake_client.store.clock = virtual.now
        async with test_broker:
            begun = asyncio.get_running_loop().time()
            await broker.publish(1, queue="q", activate_in=timedelta(seconds=50))
            while heard.names().count("nacked_terminal") < 1:
                await asyncio.sleep(10)
        gaps = [later - earlier for earlier, later in zip([begun, *at], at, strict=False)]
        assert [round(gap) for gap in gaps] == [50, 100, 100]
        (letter,) = test_broker.fake_client.dlq_rows
        assert (letter["failure_reason"], letter["attempts_count"]) == ("retry_terminal", 3)

    virtual.run(main())


def test_the_real_pipeline_runs():
    """The real producer and middlewares; a chain runs to its end before publish returns."""
    order = []

    class Watch(BaseMiddleware):
        async def publish_scope(self, call_next, cmd):
            order.append(("publish", cmd.destination))
            return await call_next(cmd)

        async def consume_scope(self, call_next, msg):
            order.append(("consume", msg.raw_message.queue))
            return await call_next(msg)

    async def main():
        broker = broker_on(middlewares=[Watch])

        @broker.subscriber("a")
        async def first(body: int) -> OutboxResponse:
            return OutboxResponse(body + 1, queue="b", session=fake_session())

        @broker.subscriber("b")
        async def second(body: int) -> None:
            await broker.publish(body + 1, queue="c")

        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="a")
            first.mock.assert_called_once_with(1)
            second.mock.assert_called_once_with(2)
            assert [row.payload for row in broker.fake_client.rows] == [b"3"]

    asyncio.run(main())
    assert order == [
        ("publish", "a"),
        ("consume", "a"),
        ("publish", "b"),
        ("consume", "b"),
        ("publish", "c"),
    ]


def test_the_first_of_several_subscribers():
    """One message, one handler: the first that was registered."""

    async def main():
        broker, got = broker_on(), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")

            @broker.subscriber("q")
            async def first(body: int) -> None:
                got.append("first")

            @broker.subscriber("q")
            async def second(body: int) -> None:
                got.append("second")

        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="q")
        assert got == ["first"]

    asyncio.run(main())


def test_events_of_the_sync_mode():
    """S0-44, S0-46, S0-47, S0-50: the same events as the loops tell, in the same order."""

    async def main():
        heard = Heard()
        broker = broker_on(metrics_recorder=heard)

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            if body:
                raise RuntimeError("boom")

        async with TestOutboxBroker(broker):
            await broker.publish(0, queue="q")
            await broker.publish(1, queue="q")
        assert heard.names() == [
            "published",
            "dispatched",
            "acked",
            "published",
            "dispatched",
            "dlq_written",
            "nacked_terminal",
        ]
        row = {"queue": "q", "subscriber": "Handle", "deliveries_count": 1}
        assert heard.of("dlq_written") == [
            {
                **row,
                "failure_reason": "retry_terminal",
                "age_seconds": mock.ANY,
                "exception_type": "RuntimeError",
            }
        ]
        assert heard.of("acked") == [{**row, "duration_seconds": mock.ANY}]

    asyncio.run(main())


def test_max_deliveries_without_loops():
    """S1-13, S0-10: a row that was delivered too often ends unrun."""

    async def main():
        broker, got = broker_on(), []

        @broker.subscriber("q", max_deliveries=3)
        async def handle(body: int) -> None:
            got.append(body)

        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            row_id = test_broker.feed("q", b"1")
            test_broker.fake_client.rows[0].deliveries_count = 3
            await test_broker.deliver([row_id])
        (letter,) = test_broker.fake_client.dlq_rows
        assert got == []
        assert letter["failure_reason"] == "max_deliveries"
        assert letter["last_exception"] is None

    asyncio.run(main())


def test_routers():
    """Handlers of routers and routes, with the router's own middlewares and dependencies."""

    async def main():
        got = []

        async def routed(body: int) -> None:
            got.append(("route", body))

        inner = OutboxRouter([OutboxRoute(routed, "b", max_workers=2)])
        router = OutboxRouter(routers=[inner])

        @router.subscriber("a")
        async def handle(body: int) -> None:
            got.append(("router", body))

        broker = broker_on(routers=[router])
        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="a")
            await broker.publish(2, queue="b")
            assert broker.fake_client.rows == []
        assert got == [("router", 1), ("route", 2)]

    asyncio.run(main())


def test_everything_is_put_back():
    """After the harness the broker is what it was: no fake, no session by itself."""

    async def main():
        broker = broker_on()
        before = {name: getattr(config(broker), name) for name in ("writer", "client", "producer")}
        async with TestOutboxBroker(broker):
            assert await broker.ping()
        assert {name: getattr(config(broker), name) for name in before} == before
        assert not hasattr(broker, "fake_client")
        with pytest.raises(TypeError, match="AsyncSession"):
            await broker.publish(1, queue="q")

    asyncio.run(main())


def test_twice_in_a_row():
    """A harness may be entered again; its rows are still there."""

    async def main():
        broker = broker_on()
        test_broker = TestOutboxBroker(broker)
        for _ in range(2):
            async with test_broker:
                await broker.publish(1, queue="nobody")
        assert len(test_broker.fake_client.rows) == 2

    asyncio.run(main())


def test_with_a_test_app():
    """The app starts what the harness prepared, in either order of hooks."""

    async def main():
        broker, got = broker_on(), []
        app = AsgiFastStream(broker)

        @broker.subscriber("q")
        async def handle(body: int) -> None:
            got.append(body)

        @app.after_startup
        async def seed() -> None:
            await broker.publish(1, queue="q")

        async with TestOutboxBroker(broker), TestApp(app):
            pass
        assert got == [1]

    asyncio.run(main())


def test_no_dead_letters_without_a_table():
    """S0-01: the fake has none where the broker has none."""

    async def main():
        broker = broker_on(dead_letters=False)

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            raise RuntimeError

        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(1, queue="q")
        assert (test_broker.fake_client.rows, test_broker.fake_client.dlq_rows) == ([], [])

    asyncio.run(main())


def test_dead_letters_have_the_columns_of_the_table():
    """S0-56: dicts with the table's keys, and the row is gone in the same step."""

    async def main():
        broker = broker_on()

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            raise RuntimeError

        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="q")
            (letter,) = broker.fake_client.dlq_rows
        assert letter.keys() == set(make_dlq_table(MetaData()).columns.keys())

    asyncio.run(main())
