"""Bad input and hostile circumstances, through the whole door, on real databases."""

import asyncio
import hashlib
from datetime import timedelta
from uuid import uuid4

import pytest
from faststream.exceptions import RejectMessage
from pydantic import BaseModel
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncSession

from outlast import ConstantRetry, NoRetry, OutboxRouter, TestOutboxBroker
from outlast.annotations import OutboxMessage
from outlast.fastapi import OutboxRouter as FastAPIRouter
from outlast.model.errors import SchemaError
from outlast.policy import jitter
from tests import virtual
from tests.doors.outbox import (
    PATIENCE,
    Heard,
    broker_on,
    config,
    content,
    create,
    publish,
    running,
    tables,
)

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "payload",
    [b"{not json", b'{"a": 1', b'"\xff\xfe"', b"9" * 5000, b"[" * 100_000],
    ids=["invalid", "truncated", "no-utf8", "5000-digits", "deep"],
)
def test_bytes_that_are_no_json(database, payload):
    """F-F01, F-F02: a dead letter with the bytes intact, at once; the next message flows."""

    async def body(engine):
        heard = Heard()
        broker, got = broker_on(engine, metrics_recorder=heard), []

        @broker.subscriber("q")
        async def handle(body: dict) -> None:
            got.append(body)

        async with running(engine, broker):
            # written by another process, past every check of ours
            async with engine.begin() as connection:
                row = {"queue": "q", "payload": payload, "headers": JSON}
                await connection.execute(insert(config(broker).outbox_table), row)
            await publish(engine, broker, {"a": 1}, queue="q")
            await heard.closed(2)
        rows, (letter,) = await content(engine, broker)
        assert (rows, got) == ([], [{"a": 1}])
        assert letter["payload"] == payload
        assert (letter["failure_reason"], letter["failure_category"]) == (
            "undecodable",
            "VALIDATION",
        )
        assert letter["attempts_count"] == 1

    database.run(body)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_has_not(number):
    """F-F03: refused at publish, or stored as what every language reads."""

    async def main():
        broker = broker_on()
        async with TestOutboxBroker(broker):
            try:
                await broker.publish({"a": number}, queue="q")
            except ValueError as error:
                assert "JSON" in str(error)
            else:
                assert broker.fake_client.rows[0].payload == b'{"a":null}'

    asyncio.run(main())


def test_acknowledged_twice():
    """F-F11: the first settle wins, the second changes nothing."""

    async def main():
        heard = Heard()
        broker = broker_on(metrics_recorder=heard)

        @broker.subscriber("q")
        async def handle(body: int, msg: OutboxMessage) -> None:
            await msg.ack()
            await msg.ack()
            await msg.nack()

        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="q")
            assert broker.fake_client.rows == []
        assert heard.names() == ["published", "dispatched", "acked"]

    asyncio.run(main())


def test_follow_ups_of_a_handler_that_fails(database):
    """F-F12: a thousand follow-ups on one session, then an error: none is visible."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            async with AsyncSession(engine) as session, session.begin():
                for number in range(1000):
                    await broker.publish(number, queue="next", session=session)
                raise RuntimeError("boom")

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q")
            await heard.closed()
        rows, letters = await content(engine, broker)
        assert (rows, len(letters)) == ([], 1)

    database.run(body)


class Order(BaseModel):
    order_id: int


def test_a_body_that_does_not_validate():
    """F-F14: an ordinary failure, of category VALIDATION; a strategy may end it at once."""

    async def main():
        broker = broker_on()

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: Order) -> None: ...

        async with TestOutboxBroker(broker):
            await broker.publish({"order_id": "many"}, queue="q")
            (letter,) = broker.fake_client.dlq_rows
        assert letter["failure_reason"] == "retry_terminal"
        assert letter["failure_category"] == "VALIDATION"

    asyncio.run(main())


def test_a_queue_that_nobody_serves(database):
    """F-F15: it stays, pending and to be seen."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)

        @broker.subscriber("served")
        async def handle(body: int) -> None: ...

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="unknown")
            await publish(engine, broker, 2, queue="served")
            await heard.closed()
            async with AsyncSession(engine) as session:
                (row,) = await broker.fetch_unprocessed(session=session)
        assert (row.queue, row.deliveries_count, row.acquired_token) == ("unknown", 0, None)

    database.run(body)


def test_every_way_into_the_dead_letters(database):
    """F-G12, S0-06: each path writes one letter, with its own reason."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)

        @broker.subscriber("rejected")
        async def reject(body: int) -> None:
            raise RejectMessage

        @broker.subscriber("retry_terminal", retry_strategy=NoRetry())
        async def fail(body: int) -> None:
            raise RuntimeError

        @broker.subscriber("undecodable")
        async def decode(body: dict) -> None: ...

        @broker.subscriber("max_deliveries", max_deliveries=3)
        async def never(body: int) -> None: ...

        await create(engine, broker)
        for queue in ("rejected", "retry_terminal", "max_deliveries"):
            await publish(engine, broker, 1, queue=queue)
        await publish(engine, broker, b"{", queue="undecodable", headers=JSON)
        table = config(broker).outbox_table
        async with engine.begin() as connection:
            worn = table.update().where(table.c.queue == "max_deliveries")
            await connection.execute(worn.values(deliveries_count=3))
        async with broker:
            await heard.until(lambda: len(heard.of("nacked_terminal")) == 4)
        rows, letters = await content(engine, broker)
        assert rows == []
        assert all(letter["failure_reason"] == letter["queue"] for letter in letters)
        assert len(letters) == 4
        assert len(heard.of("dlq_written")) == 4

    database.run(body)


def test_the_total_delay_is_a_bound(database):
    """S0-12: a next delay that goes over the total is not waited for."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)
        strategy = ConstantRetry(delay_seconds=10, max_total_delay_seconds=5)

        @broker.subscriber("q", retry_strategy=strategy)
        async def handle(body: int) -> None:
            raise RuntimeError

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q")
            await heard.closed()
        _, (letter,) = await content(engine, broker)
        assert (letter["failure_reason"], letter["deliveries_count"]) == ("retry_terminal", 1)

    database.run(body)


def test_a_dead_letter_notifies_nobody(postgres):
    """S0-29: neither table tells of it."""

    async def body(engine):
        heard, notified = Heard(), []
        # channels are the database's: other tests may send on them at the same time
        queue, last = f"q {uuid4()}", f"last {uuid4()}"
        broker = broker_on(engine, metrics_recorder=heard)

        @broker.subscriber(queue, retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            raise RuntimeError

        async with running(engine, broker), engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            listened = asyncio.Event()

            def hear(_connection, _pid, channel, payload):
                notified.append((channel, payload))
                if payload == last:
                    listened.set()

            for channel in ("outbox_outbox", "outbox_outbox_dlq", "outbox_dlq", "last"):
                await driver.add_listener(channel, hear)
            await publish(engine, broker, 1, queue=queue)
            await heard.closed()
            async with engine.begin() as other:
                await other.execute(text(f"NOTIFY last, '{last}'"))
            async with asyncio.timeout(PATIENCE):
                await listened.wait()
        assert heard.of("dlq_written")
        ours = [found for found in notified if found[1] in {queue, last}]
        assert ours == [("outbox_outbox", queue), ("last", last)]

    postgres.run(body)


def spy_on(wire, said):
    fetch = wire.fetch

    async def told(sql, *arguments):
        said.append(sql)
        return await fetch(sql, *arguments)

    wire.fetch = told


@pytest.mark.parametrize("dead_letters", [True, False])
def test_one_statement_for_a_terminal_failure(postgres, dead_letters):
    """S0-35, S0-31, S0-01: the same number with and without dead letters."""

    async def body(engine):
        heard, said = Heard(), []
        broker = broker_on(engine, metrics_recorder=heard, dead_letters=dead_letters)

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            raise RuntimeError

        async with running(engine, broker):
            wires = config(broker).consuming._engine.store._wires
            for line in ("settles", "letters"):
                spy_on(wires[line], said)
            await publish(engine, broker, 1, queue="q")
            await heard.closed()
        (statement,) = said
        assert "delete from" in statement
        assert ("insert into outbox_dlq" in statement) is dead_letters

    postgres.run(body)


def test_a_missing_index_of_the_dead_letters(postgres):
    """S0-41: named."""

    async def body(engine):
        broker = broker_on(engine)
        await create(engine, broker)
        async with engine.begin() as connection:
            await connection.execute(text("DROP INDEX outbox_dlq_queue_failed_idx"))
        with pytest.raises(SchemaError, match="outbox_dlq_queue_failed_idx"):
            await broker.validate_schema()

    postgres.run(body)


def test_nothing_prunes_dead_letters():
    """S0-52: thirty days pass, and the letter is there."""

    async def main():
        broker = broker_on()
        hour = timedelta(hours=1).total_seconds()

        @broker.subscriber(
            "q",
            retry_strategy=NoRetry(),
            min_fetch_interval=hour,
            max_fetch_interval=hour,
            lease_ttl_seconds=2 * hour,
        )
        async def handle(body: int) -> None:
            raise RuntimeError

        test_broker = TestOutboxBroker(broker, run_loops=True)
        test_broker.fake_client.store.clock = virtual.now
        async with test_broker:
            await broker.publish(1, queue="q")
            before = virtual.now()
            await asyncio.sleep(timedelta(days=30).total_seconds())
        assert virtual.now() - before >= timedelta(days=30)
        assert len(test_broker.fake_client.dlq_rows) == 1

    virtual.run(main())


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_jitter_is_uniform(factor):
    """S1-37: ten thousand samples within the bounds, spread evenly."""
    strategy = ConstantRetry(delay_seconds=10, jitter_factor=factor)
    kw = {"first_attempt_at": None, "last_attempt_at": None, "attempts_count": 1}
    samples = [strategy.get_next_attempt_delay(**kw) for _ in range(10_000)]
    low, high = 10 * (1 - factor / 2), 10 * (1 + factor / 2)
    assert all(low <= sample <= high for sample in samples)
    assert jitter.spread(10, 0) == 10
    if factor:
        tenths = [0] * 10
        for sample in samples:
            tenths[min(9, int((sample - low) / (high - low) * 10))] += 1
        # ten standard deviations: this fails for a skewed source, never for a uniform one
        assert all(700 < count < 1300 for count in tenths)


def test_no_transaction_while_a_handler_runs(postgres):
    """U-20: our connections are idle, and not in a transaction."""

    async def body(engine):
        heard = Heard()
        broker, seen = broker_on(engine, metrics_recorder=heard), []

        @broker.subscriber("q")
        async def handle(body: int) -> None:
            async with engine.connect() as connection:
                found = await connection.execute(
                    text(
                        "SELECT count(*) FROM pg_stat_activity "
                        "WHERE application_name LIKE 'outlast %' "
                        "AND state LIKE 'idle in transaction%'"
                    )
                )
                seen.append(found.scalar())

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="q")
            await heard.closed()
        assert seen == [0]

    postgres.run(body)


def test_bytes_and_headers_arrive_unchanged(database):
    """S0-20, S0-21: equal digests at publish, delivery and in the dead letter."""

    async def body(engine):
        heard = Heard()
        broker, seen = broker_on(engine, metrics_recorder=heard), []
        payload, headers = bytes(range(256)) * 4, {"ключ": "значение", "n": "1", "e": "é\u2028"}

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(msg: OutboxMessage) -> None:
            seen.append((msg.body, msg.headers))
            raise RuntimeError

        async with running(engine, broker):
            await publish(engine, broker, payload, queue="q", headers=headers, correlation_id="c")
            await heard.closed()
        _, (letter,) = await content(engine, broker)
        ((delivered, shown),) = seen
        digests = {hashlib.sha256(b).digest() for b in (payload, delivered, letter["payload"])}
        assert len(digests) == 1
        assert shown == letter["headers"] == headers | {"correlation_id": "c"}

    database.run(body)


@pytest.mark.parametrize("headers", ["[1, 2]", '"text"', "7"])
def test_headers_of_another_process_that_are_no_object(database, headers):
    """A row whose headers are JSON but no object is delivered or buried, and never wedges."""

    async def body(engine):
        heard = Heard()
        broker, got = broker_on(engine, metrics_recorder=heard), []

        @broker.subscriber("q")
        async def handle(msg: OutboxMessage) -> None:
            got.append(msg.body)

        async with running(engine, broker):
            async with engine.begin() as connection:
                await connection.execute(
                    text(
                        "INSERT INTO outbox (queue, payload, headers) "
                        f"VALUES ('q', :body, '{headers}')"
                    ),
                    {"body": b"odd"},
                )
            await publish(engine, broker, b"even", queue="q")
            await heard.closed(2)
        rows, letters = await content(engine, broker)
        assert rows == []
        assert sorted([*got, *(letter["payload"] for letter in letters)]) == [b"even", b"odd"]

    database.run(body)


def test_a_real_broker_under_the_harness(sqlite):
    """with_real: the database is real, handlers and publishers have their mocks."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)
        publisher = broker.publisher("out")

        @broker.subscriber("q")
        async def handle(body: int) -> None: ...

        await create(engine, broker)
        async with TestOutboxBroker(broker, with_real=True):
            await publish(engine, broker, 1, queue="q")
            async with AsyncSession(engine) as session, session.begin():
                await publisher.publish(2, session=session)
            await heard.closed(2)
            handle.mock.assert_called_once_with(1)
            publisher.mock.assert_called_once_with(2)
        assert not broker.running
        assert (await content(engine, broker))[0] == []

    sqlite.run(body)


def test_a_router_in_a_fastapi_router():
    """A broker's router may be included; its handlers are FastAPI's then."""
    inner = OutboxRouter()
    got = []

    @inner.subscriber("q", retry_strategy=NoRetry())
    async def handle(body: int) -> None:
        got.append(body)

    router = FastAPIRouter(**tables(), logger=None)
    router.include_router(inner)

    async def main():
        async with TestOutboxBroker(router.broker) as broker:
            await broker.publish(3, queue="q")
            assert broker.fake_client.dlq_rows == []
        assert got == [3]

    asyncio.run(main())
