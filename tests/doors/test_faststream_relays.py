"""Relays: a handler's answer goes to another broker, and only then the row goes."""

import asyncio
import logging
import os
import socket
import uuid

import pytest
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.confluent import TestKafkaBroker as TestConfluentBroker
from faststream.kafka import KafkaBroker, TestKafkaBroker
from faststream.nats import NatsBroker, TestNatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue, TestRabbitBroker
from faststream.redis import RedisBroker, TestRedisBroker

from outlast import ConstantRetry, NoRetry, OutboxResponse, TestOutboxBroker
from outlast.annotations import OutboxMessage
from outlast.testing import fake_session
from tests.doors.outbox import PATIENCE, Heard, broker_on, content, create, publish, running

DOUBLES = pytest.mark.parametrize(
    ("make", "double"),
    [
        (RabbitBroker, TestRabbitBroker),
        (NatsBroker, TestNatsBroker),
        (RedisBroker, TestRedisBroker),
        (KafkaBroker, TestKafkaBroker),
        (ConfluentBroker, TestConfluentBroker),
    ],
)


@DOUBLES
@pytest.mark.parametrize("propagate", [False, True])
def test_a_relay(make, double, propagate):
    """The answer arrives, with the inbound headers if asked for, and never a reserved one."""

    async def main():
        got, seen = [], []

        async def spy(msg, original):
            message = await original(msg)
            seen.append(dict(message.headers))
            return message

        foreign, broker = make(logger=None, parser=spy), broker_on()

        @foreign.publisher("out")
        @broker.subscriber("q", propagate_inbound_headers=propagate)
        async def relay(body: dict) -> dict:
            return body | {"relayed": True}

        @foreign.subscriber("out")
        async def arrived(body: dict) -> None:
            got.append(body)

        async with double(foreign), TestOutboxBroker(broker):
            await broker.publish({"a": 1}, queue="q", headers={"k": "v"}, event_type="e")
            assert broker.fake_client.rows == []
        assert got == [{"a": 1, "relayed": True}]
        (headers,) = seen
        assert ("k" in headers) is propagate
        assert not [name for name in headers if name.startswith("outlast-")]

    asyncio.run(main())


@DOUBLES
def test_a_response_and_a_relay(make, double):
    """Refused before anything was published; the row follows the strategy."""

    async def main():
        foreign, broker, got = make(logger=None), broker_on(), []

        @foreign.publisher("out")
        @broker.subscriber("q", retry_strategy=NoRetry())
        async def relay(body: int) -> OutboxResponse:
            return OutboxResponse(body, queue="next", session=fake_session())

        @foreign.subscriber("out")
        async def arrived(body: int) -> None:
            got.append(body)

        async with double(foreign), TestOutboxBroker(broker):
            await broker.publish(1, queue="q")
            assert broker.fake_client.rows == []
            (letter,) = broker.fake_client.dlq_rows
        assert got == []
        assert letter["failure_reason"] == "retry_terminal"
        assert "OutboxResponse" in letter["last_exception"]

    asyncio.run(main())


def test_a_relay_that_fails(database):
    """A failing foreign publish nacks the row: at least once."""

    async def body(engine):
        heard, foreign, got = Heard(), NatsBroker(logger=None), []
        broker = broker_on(engine, metrics_recorder=heard)
        failures = [ConnectionError("gone"), ConnectionError("gone")]

        @foreign.publisher("out")
        @broker.subscriber("q", retry_strategy=ConstantRetry(delay_seconds=0.01))
        async def relay(body: int) -> int:
            return body

        @foreign.subscriber("out")
        async def arrived(body: int) -> None:
            if failures:
                raise failures.pop()
            got.append(body)

        async with TestNatsBroker(foreign), running(engine, broker):
            await publish(engine, broker, 7, queue="q")
            await heard.closed(3)
        assert got == [7]
        assert [t["exception_type"] for t in heard.of("nacked_retried")] == ["ConnectionError"] * 2
        assert (await content(engine, broker))[0] == []

    database.run(body)


def test_a_broker_that_is_not_started(sqlite, caplog):
    """start() names each foreign broker once, with the queues relayed to it."""

    async def body(engine):
        foreign, other, broker = (
            NatsBroker(logger=None),
            RedisBroker(logger=None),
            broker_on(engine),
        )

        @foreign.publisher("x")
        @foreign.publisher("y")
        @broker.subscriber("a")
        async def one(body: int) -> int:
            return body

        @foreign.publisher("x")
        @broker.subscriber("b")
        async def two(body: int) -> int:
            return body

        @other.publisher("x")
        @broker.subscriber("c")
        async def three(body: int) -> int:
            return body

        async with TestRedisBroker(other), running(engine, broker):
            pass

    with caplog.at_level(logging.WARNING, "outlast"):
        sqlite.run(body)
    (told,) = [r.getMessage() for r in caplog.records if "has not been started" in r.getMessage()]
    assert "NatsBroker" in told
    assert "'a', 'b'" in told
    assert "'c'" not in told


def reachable(variable, default):
    address = os.environ.get(variable, default)
    host, port = address.rpartition("@")[2].rpartition("/")[2].rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError as error:
        pytest.skip(f"no service at {host}:{port} ({variable}): {error}")
    return address


def rabbit():
    return RabbitBroker(
        reachable("OUTLAST_TEST_RABBIT", "amqp://guest:guest@127.0.0.1:5672"), logger=None
    )


def nats():
    return NatsBroker(reachable("OUTLAST_TEST_NATS", "nats://127.0.0.1:4222"), logger=None)


def redis():
    return RedisBroker(reachable("OUTLAST_TEST_REDIS", "redis://127.0.0.1:6379"), logger=None)


@pytest.mark.parametrize("make", [rabbit, nats, redis])
def test_a_relay_to_a_real_broker(make, postgres):
    """From PostgreSQL into the real thing, and back into a handler."""

    async def body(engine):
        foreign, heard = make(), Heard()
        broker = broker_on(engine, metrics_recorder=heard)
        name = f"outlast-{uuid.uuid4().hex}"
        arrived = asyncio.Queue()

        @foreign.publisher(name)
        @broker.subscriber("q", propagate_inbound_headers=True)
        async def relay(body: dict, msg: OutboxMessage) -> dict:
            return body | {"id": msg.message_id}

        queue = RabbitQueue(name, auto_delete=True) if isinstance(foreign, RabbitBroker) else name

        @foreign.subscriber(queue)
        async def receive(body: dict) -> None:
            arrived.put_nowait(body)

        await create(engine, broker)
        async with foreign:
            await foreign.start()
            async with broker:
                for number in range(3):
                    await publish(engine, broker, {"n": number}, queue="q", message_id=f"m{number}")
                async with asyncio.timeout(PATIENCE):
                    got = [await arrived.get() for _ in range(3)]
                await heard.closed(3)
        assert sorted(body["n"] for body in got) == [0, 1, 2]
        assert {body["id"] for body in got} == {"m0", "m1", "m2"}
        assert heard.names().count("acked") == 3

    postgres.run(body)
