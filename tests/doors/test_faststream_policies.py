"""What becomes of a message, for every acknowledgement policy and everything a handler may do.

The same table on the memory store, with and without loops, on SQLite and on PostgreSQL.
"""

import asyncio
import logging
import warnings

import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import (
    AckMessage,
    NackMessage,
    RejectMessage,
    SkipMessage,
    StopConsume,
)
from faststream.message import StreamMessage

from outlast import ConstantRetry, NoRetry, TestOutboxBroker
from outlast.annotations import OutboxMessage
from tests.doors.outbox import Heard, broker_on, content, publish, running

ACKED, RETRIED, REJECTED, UNSETTLED = "acked", "retried", "rejected", "unsettled"

NACK, REJECT, ACK, MANUAL = (
    AckPolicy.NACK_ON_ERROR,
    AckPolicy.REJECT_ON_ERROR,
    AckPolicy.ACK,
    AckPolicy.MANUAL,
)

TABLE = [
    (None, {NACK: ACKED, REJECT: ACKED, ACK: ACKED, MANUAL: UNSETTLED}),
    (ValueError("no"), {NACK: RETRIED, REJECT: REJECTED, ACK: ACKED, MANUAL: RETRIED}),
    (AckMessage(), {NACK: ACKED, REJECT: ACKED, ACK: ACKED, MANUAL: RETRIED}),
    (NackMessage(delay=5), {NACK: RETRIED, REJECT: RETRIED, ACK: RETRIED, MANUAL: RETRIED}),
    (RejectMessage(), {NACK: REJECTED, REJECT: REJECTED, ACK: REJECTED, MANUAL: RETRIED}),
    (SkipMessage(), {NACK: RETRIED, REJECT: RETRIED, ACK: RETRIED, MANUAL: RETRIED}),
]

CASES = [
    pytest.param(raised, policy, expected, id=f"{type(raised).__name__}-{policy.value}")
    for raised, row in TABLE
    for policy, expected in row.items()
]


def ruled(policy, raised, broker, queue="q"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @broker.subscriber(queue, ack_policy=policy, retry_strategy=ConstantRetry(delay_seconds=99))
        async def handle(body: int) -> None:
            if raised is not None:
                raise raised

    return handle


def state_of(rows, letters):
    if letters:
        return letters[0]["failure_reason"]
    if not rows:
        return ACKED
    row = rows[0]
    get = row.__getitem__ if hasattr(row, "keys") else lambda name: getattr(row, name)
    if get("acquired_token") is not None:
        return UNSETTLED
    assert get("attempts_count") == 1
    return RETRIED


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(("raised", "policy", "expected"), CASES)
def test_the_table_in_memory(raised, policy, expected, loops):
    """S0-59, S1-26, S1-27, S1-28, S0-15: one row of the table, in memory."""

    async def main():
        heard = Heard()
        broker = broker_on(metrics_recorder=heard)
        ruled(policy, raised, broker)
        test_broker = TestOutboxBroker(broker, run_loops=loops)
        async with test_broker:
            await broker.publish(1, queue="q")
            await heard.closed()
        client = test_broker.fake_client
        assert state_of(client.rows, client.dlq_rows) == expected
        if expected == REJECTED:
            assert client.dlq_rows[0]["last_exception"] == repr(raised)

    asyncio.run(main())


def test_the_table_in_databases(database):
    """S0-59, S0-15, S1-26, S1-27, S1-28, S0-06: the whole table on one database."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard, graceful_timeout=5)
        cases = [(f"q{i}", *case.values) for i, case in enumerate(CASES)]
        for queue, raised, policy, _ in cases:
            ruled(policy, raised, broker, queue)
        async with running(engine, broker):
            for queue, *_ in cases:
                await publish(engine, broker, 1, queue=queue)
            await heard.closed(len(cases))
        rows, letters = await content(engine, broker)
        found = {
            queue: state_of(
                [r for r in rows if r["queue"] == queue],
                [r for r in letters if r["queue"] == queue],
            )
            for queue, *_ in cases
        }
        assert found == {queue: expected for queue, _, _, expected in cases}

    database.run(body)


def test_without_dead_letters(database):
    """S0-01, S0-08, S0-09: the same code without a table for dead letters; the row goes."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, dead_letters=False, metrics_recorder=heard)

        @broker.subscriber("q", retry_strategy=NoRetry())
        async def handle(body: int) -> None:
            if body:
                raise RuntimeError("boom")

        async with running(engine, broker):
            await publish(engine, broker, 0, queue="q")
            await publish(engine, broker, 1, queue="q")
            await heard.closed(2)
        rows, _ = await content(engine, broker)
        assert rows == []
        assert not heard.of("dlq_written")
        assert heard.of("nacked_terminal")[0]["reason"] == "retry_terminal"

    database.run(body)


class BodyRefused(Exception):
    pass


def undecodable_cases():
    def json_broken(broker, **options):
        @broker.subscriber("q", **options)
        async def handle(body: dict) -> None: ...

    def value_error(broker, **options):
        async def decoder(msg):
            raise ValueError("not mine")

        @broker.subscriber("q", decoder=decoder, **options)
        async def handle(body: dict) -> None: ...

    def parser_error(broker, **options):
        async def parser(msg):
            raise ValueError("not mine")

        @broker.subscriber("q", parser=parser, **options)
        async def handle(body: dict) -> None: ...

    def other_error(broker, **options):
        async def decoder(msg):
            raise BodyRefused

        @broker.subscriber("q", decoder=decoder, **options)
        async def handle(body: dict) -> None: ...

    def no_model(broker, **options):
        @broker.subscriber("q", decoder=lambda msg: "text", **options)
        async def handle(body: int) -> None: ...

    def falls_back(broker, **options):
        async def decoder(msg, original):
            try:
                return await original(msg)
            except ValueError:
                return {}

        @broker.subscriber("q", decoder=decoder, **options)
        async def handle(body: dict) -> None:
            raise ValueError("of the handler")

    return [
        (json_broken, "undecodable"),
        (value_error, "undecodable"),
        (parser_error, "undecodable"),
        (other_error, RETRIED),
        (no_model, RETRIED),
        (falls_back, RETRIED),
    ]


@pytest.mark.parametrize("dead_letters", [True, False])
@pytest.mark.parametrize(("subscribe", "expected"), undecodable_cases())
def test_undecodable(subscribe, expected, dead_letters):
    """S2-03: a body that cannot be read goes at once; without a DLQ it follows the strategy."""

    async def main():
        broker = broker_on(dead_letters=dead_letters)
        subscribe(broker, retry_strategy=ConstantRetry(delay_seconds=9))
        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(
                b"{not json", queue="q", headers={"content-type": "application/json"}
            )
        client = test_broker.fake_client
        wanted = expected if dead_letters else RETRIED
        assert state_of(client.rows, client.dlq_rows) == wanted
        if wanted == "undecodable":
            assert client.dlq_rows[0]["failure_category"] == "VALIDATION"

    asyncio.run(main())


@pytest.mark.parametrize("policy", [NACK, MANUAL, ACK])
@pytest.mark.parametrize("loops", [False, True])
def test_stop_consume(policy, loops):
    """StopConsume stops the subscriber and gives its row back, uncounted."""

    async def main():
        heard = Heard()
        broker = broker_on(metrics_recorder=heard)
        ruled(policy, StopConsume(), broker)
        test_broker = TestOutboxBroker(broker, run_loops=loops)
        async with test_broker:
            await broker.publish(1, queue="q")
            await heard.closed()
            await broker.publish(2, queue="q")
        rows = test_broker.fake_client.rows
        assert [(r.attempts_count, r.deliveries_count) for r in rows] == [(0, 0), (0, 0)]
        assert all(r.acquired_token is None for r in rows)
        assert heard.names().count("dispatched") == 1

    asyncio.run(main())


@pytest.mark.parametrize("loops", [False, True])
def test_system_exit(loops):
    """SystemExit is a failed attempt, and the app is asked to exit."""

    class App:
        exits = 0

        def exit(self):
            self.exits += 1

    async def main():
        heard, app = Heard(), App()
        broker = broker_on(metrics_recorder=heard)
        broker.context.set_global("app", app)
        ruled(REJECT, SystemExit(3), broker)
        test_broker = TestOutboxBroker(broker, run_loops=loops)
        async with test_broker:
            await broker.publish(1, queue="q")
            await heard.closed()
        client = test_broker.fake_client
        assert state_of(client.rows, client.dlq_rows) == RETRIED
        assert app.exits == 1

    asyncio.run(main())


@pytest.mark.parametrize("policy", [NACK, ACK, MANUAL])
def test_no_filter_matches(policy):
    """A message that no filter takes has been seen by nobody: a failed attempt."""

    async def main():
        broker = broker_on()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subscriber = broker.subscriber("q", ack_policy=policy)

        @subscriber(filter=lambda msg: False)
        async def handle(body: int) -> None: ...

        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(1, queue="q")
        client = test_broker.fake_client
        assert state_of(client.rows, client.dlq_rows) == RETRIED

    asyncio.run(main())


def test_the_first_verdict_wins():
    """What a handler has said stands, whatever it does or raises later."""

    async def main():
        broker = broker_on()

        @broker.subscriber("q")
        async def handle(body: int, msg: OutboxMessage) -> None:
            await msg.reject(requeue=True)
            await msg.ack()
            raise RuntimeError("later")

        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(1, queue="q")
        (letter,) = test_broker.fake_client.dlq_rows
        assert (letter["failure_reason"], letter["attempts_count"]) == ("rejected", 1)

    asyncio.run(main())


@pytest.mark.parametrize("loops", [False, True])
def test_a_late_verdict(loops, caplog):
    """S1-28: no verdict is told as a WARNING, and a late one is refused."""
    kept = []

    async def main():
        heard = Heard()
        broker = broker_on(metrics_recorder=heard)

        @broker.subscriber("q", ack_policy=MANUAL)
        async def handle(body: int, msg: OutboxMessage) -> None:
            kept.append(msg)

        async with TestOutboxBroker(broker, run_loops=loops):
            await broker.publish(1, queue="q")
            await heard.closed()
        assert heard.names()[-1] == "unsettled"
        with pytest.raises(RuntimeError, match="came too late"):
            await kept[0].ack()

    with caplog.at_level(logging.WARNING, "outlast"):
        asyncio.run(main())
    told = [r for r in caplog.records if getattr(r, "event", None) == "unsettled"]
    assert [r.levelno for r in told] == [logging.WARNING]


def test_a_middleware_that_swallows():
    """What a user's middleware settles by swallowing is delivered, as FastStream means it."""

    class Swallow(BaseMiddleware):
        async def after_processed(self, exc_type=None, exc_val=None, exc_tb=None):
            return True

    async def main():
        broker = broker_on(middlewares=[Swallow])
        ruled(NACK, RuntimeError("boom"), broker)
        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(1, queue="q")
        client = test_broker.fake_client
        assert state_of(client.rows, client.dlq_rows) == ACKED

    asyncio.run(main())


def test_a_plain_message_of_a_custom_parser():
    """A parser that makes its own message: its verdicts count, too."""

    async def parser(row):
        return StreamMessage(row, body=row.payload)

    async def main():
        broker = broker_on(parser=parser)
        ruled(REJECT, RuntimeError("boom"), broker)
        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(1, queue="q")
        client = test_broker.fake_client
        assert state_of(client.rows, client.dlq_rows) == REJECTED

    asyncio.run(main())


def test_the_renderer():
    """The broker's renderer decides what is kept of an exception."""

    async def main():
        broker = broker_on(last_exception_renderer=lambda error: f"<{type(error).__name__}>")
        ruled(REJECT, RuntimeError("secret"), broker)
        test_broker = TestOutboxBroker(broker)
        async with test_broker:
            await broker.publish(1, queue="q")
        (letter,) = test_broker.fake_client.dlq_rows
        assert letter["last_exception"] == "<RuntimeError>"
        assert letter["subscriber"] == "Handle"
        assert "secret" not in str(letter)

    asyncio.run(main())


def test_a_schema_registry_that_is_down_costs_attempts_and_no_message():
    """A custom decoder that cannot reach its registry follows the strategy and recovers."""

    async def main():
        broker = broker_on()
        down, seen, done = (
            [ConnectionError("registry"), TimeoutError("registry")],
            [],
            asyncio.Event(),
        )

        async def decoder(msg, original):
            if down:
                raise down.pop(0)
            return await original(msg)

        @broker.subscriber(
            "q", decoder=decoder, retry_strategy=ConstantRetry(delay_seconds=0.01, max_attempts=5)
        )
        async def handle(body: dict) -> None:
            seen.append(body)
            done.set()

        test_broker = TestOutboxBroker(broker, run_loops=True)
        async with test_broker:
            await broker.publish({"n": 1}, queue="q")
            async with asyncio.timeout(20):
                await done.wait()
        assert seen == [{"n": 1}]
        assert test_broker.fake_client.dlq_rows == []

    asyncio.run(main())
