"""The code of the seed documents, with the import changed, and what their prose says of it."""

import asyncio
from dataclasses import dataclass

import pytest
from faststream import AckPolicy, FastStream, TestApp
from sqlalchemy import MetaData

from outlast import (
    ConstantRetry,
    ExponentialRetry,
    LinearRetry,
    NoRetry,
    OutboxBroker,
    TestOutboxBroker,
    make_dlq_table,
    make_outbox_table,
)
from outlast.annotations import OutboxBroker as BrokerHere
from outlast.annotations import OutboxClient, OutboxMessage, OutboxProducer
from tests.doors.outbox import broker_on


def test_the_dead_letter_sample():
    """S0-55, S0-57, S0-58, S0-13: as it stands in the document."""

    async def main():
        metadata = MetaData()
        outbox_table = make_outbox_table(metadata, table_name="outbox")
        dlq_table = make_dlq_table(metadata, table_name="outbox_dlq")
        broker = OutboxBroker(outbox_table=outbox_table, dlq_table=dlq_table)

        @broker.subscriber("orders", retry_strategy=NoRetry())
        async def handle(body: dict) -> None:
            raise RuntimeError("boom")

        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish({"order_id": 1}, queue="orders")
            assert broker.fake_client is test_broker.fake_client

        assert test_broker.fake_client.rows == []
        assert len(test_broker.fake_client.dlq_rows) == 1
        assert test_broker.fake_client.dlq_rows[0]["failure_reason"] == "retry_terminal"
        assert test_broker.fake_client.dlq_rows[0]["deliveries_count"] == 1

    asyncio.run(main())


def test_the_basic_example():
    """S1-01, S1-02, S1-03: an app, a scalar body."""

    async def main():
        broker = broker_on()
        app = FastStream(broker)
        got = []

        @broker.subscriber("orders")
        async def handle(order_id: int) -> None:
            got.append(order_id)

        async with TestOutboxBroker(broker), TestApp(app):
            await broker.publish("17", queue="orders", headers={"content-type": "text/plain"})
            await broker.publish(18, queue="orders")
        assert got == [17, 18]

    asyncio.run(main())


@dataclass
class Order:
    order_id: str
    amount: float


def test_a_dataclass_body():
    """S1-04: the handler receives an instance."""

    async def main():
        broker = broker_on()
        got = []

        @broker.subscriber("orders")
        async def handle(body: Order) -> None:
            got.append(body)

        async with TestOutboxBroker(broker):
            await broker.publish({"order_id": "a", "amount": 1.5}, queue="orders")
        assert got == [Order("a", 1.5)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("hint", "body"),
    [
        (list, [1, [2]]),
        (dict, {"a": {"b": [None]}}),
        (bool, True),
        (type(None), None),
        (str, "text"),
        (bytes, b"\x00\xff"),
        (float, 0.5),
    ],
)
def test_any_json_body(hint, body):
    """S1-05: it comes back as it was published."""

    async def main():
        broker = broker_on()
        got = []

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(msg: OutboxMessage) -> None:
            got.append(await msg.decode())

        async with TestOutboxBroker(broker) as _:
            await broker.publish(body, queue="q")
        assert got == [b"" if body is None else body]

    asyncio.run(main())


def test_annotated_parameters():
    """S1-06: each shortcut gives the live object."""

    async def main():
        broker = broker_on()
        got = []

        @broker.subscriber("q")
        async def handle(
            msg: OutboxMessage, here: BrokerHere, producer: OutboxProducer, client: OutboxClient
        ) -> None:
            got.append((msg.raw_message.queue, here, producer, client))

        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(1, queue="q")
            ((queue, here, producer, client),) = got
            assert (queue, here, producer) == ("q", broker, broker._producer)
            assert client is test_broker.fake_client

    asyncio.run(main())


class TransientError(Exception):
    pass


class PermanentError(Exception):
    pass


@pytest.mark.parametrize(
    ("raised", "left", "reason"),
    [(None, 0, None), (TransientError, 1, None), (PermanentError, 0, "rejected")],
)
def test_the_manual_sample(raised, left, reason):
    """S1-28, S1-30, S0-14: a bare `msg` beside the body is the message."""

    async def main():
        broker = broker_on()

        async def write_audit(body: dict) -> None:
            if raised:
                raise raised

        @broker.subscriber("audit", ack_policy=AckPolicy.MANUAL)
        async def handle(msg, body: dict) -> None:
            try:
                await write_audit(body)
                await msg.ack()
            except TransientError:
                await msg.nack()  # retry
            except PermanentError:
                await msg.reject()  # terminal delete

        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish({"a": 1}, queue="audit")
        client = test_broker.fake_client
        assert len(client.rows) == left
        assert all(row.acquired_token is None for row in client.rows)
        assert [row["failure_reason"] for row in client.dlq_rows] == ([reason] if reason else [])
        assert all(row["last_exception"] is None for row in client.dlq_rows)

    asyncio.run(main())


class TransientOnly(ExponentialRetry):
    def get_next_attempt_at(self, *, exception=None, **kw):
        if exception and not isinstance(exception, TransientError):
            return None  # terminal — DELETE
        return super().get_next_attempt_at(exception=exception, **kw)


@pytest.mark.parametrize(("raised", "terminal"), [(TransientError, False), (PermanentError, True)])
def test_retry_only_on_transient_errors(raised, terminal):
    """S1-38, S1-39, S1-40: the old hook decides, and None is terminal."""

    async def main():
        broker = broker_on()
        calls = []

        @broker.subscriber("q", retry_strategy=TransientOnly(initial_delay_seconds=1.0))
        async def handle(body: int) -> None:
            calls.append(body)
            raise raised

        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(1, queue="q")
        assert calls == [1]
        assert len(test_broker.fake_client.rows) == (not terminal)
        assert len(test_broker.fake_client.dlq_rows) == terminal

    asyncio.run(main())


def test_the_options_of_the_samples():
    """S1-16, S1-23, S1-33, S1-34, S1-35, S1-36: each subscriber keeps its own."""
    broker = broker_on()

    @broker.subscriber(
        "high-priority",
        max_workers=8,
        fetch_batch_size=50,
        min_fetch_interval=0.1,
        max_fetch_interval=1.0,
        lease_ttl_seconds=120.0,
    )
    async def handle_urgent(body: dict) -> None: ...

    @broker.subscriber("slow_q", lease_ttl_seconds=600)  # 10 minutes
    async def heavy_job(msg): ...

    @broker.subscriber("fast_q", lease_ttl_seconds=30)
    async def quick_job(msg): ...

    @broker.subscriber(
        "orders",
        retry_strategy=ExponentialRetry(
            initial_delay_seconds=1.0,
            max_delay_seconds=300.0,
            max_attempts=5,
            jitter_factor=0.5,
        ),
    )
    async def handle(order_id: int) -> None: ...

    @broker.subscriber("audit", retry_strategy=NoRetry())  # opt out of retries
    async def handle_audit(payload: dict) -> None: ...

    @broker.subscriber("constant", retry_strategy=ConstantRetry(delay_seconds=5))
    async def handle_constant(payload: dict) -> None: ...

    @broker.subscriber(
        "linear", retry_strategy=LinearRetry(initial_delay_seconds=1, step_seconds=2)
    )
    async def handle_linear(payload: dict) -> None: ...

    options = {s.queues[0]: s.options for s in broker.subscribers}
    urgent = options["high-priority"]
    assert (urgent.max_workers, urgent.fetch_batch_size) == (8, 50)
    assert (urgent.min_fetch_interval, urgent.max_fetch_interval) == (0.1, 1.0)
    assert urgent.lease_ttl_seconds == 120.0
    assert options["slow_q"].lease_ttl_seconds == 600
    assert options["fast_q"].lease_ttl_seconds == 30
    assert options["orders"].retry_strategy.max_attempts == 5


def test_the_defaults():
    """S1-08, S1-09, S1-14, S1-15, S1-32: as documented."""
    broker = broker_on()
    subscriber = broker.subscriber("q")
    options = subscriber.options
    assert (options.max_workers, options.fetch_batch_size) == (1, 10)
    assert (options.min_fetch_interval, options.max_fetch_interval) == (1.0, 10.0)
    assert (options.lease_ttl_seconds, options.lease_limit) == (60.0, 600.0)
    assert options.max_deliveries is None
    assert subscriber.ack_policy is AckPolicy.NACK_ON_ERROR
    assert options.retry_strategy == ExponentialRetry(
        initial_delay_seconds=1.0,
        multiplier=2.0,
        max_delay_seconds=300.0,
        max_attempts=10,
        jitter_factor=0.2,
    )
