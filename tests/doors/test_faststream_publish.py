"""Publishing through the broker: arguments, the envelope, publishers, responses, timers."""

import asyncio
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from faststream import BaseMiddleware
from faststream.response import PublishCommand, PublishType
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from outlast import ConstantRetry, NoRetry, OutboxResponse, TestOutboxBroker
from outlast.annotations import OutboxMessage
from outlast.response import OutboxPublishCommand
from outlast.testing import fake_session
from tests.doors.outbox import Heard, broker_on, content, create, publish, running

NOW = datetime.now(UTC)

REFUSED = [
    (
        {"activate_in": timedelta(1), "activate_at": NOW},
        ValueError,
        "accepts at most one of activate_in / activate_at",
    ),
    (
        {"activate_at": NOW.replace(tzinfo=None)},
        ValueError,
        "requires activate_at to be timezone-aware",
    ),
    ({"session": object()}, TypeError, "AsyncSession"),
    ({"session": None}, TypeError, "AsyncSession"),
    ({"queue": 5}, TypeError, "queue must be a str"),
    ({"queue": ""}, ValueError, "non-empty"),
    ({"queue": "q" * 256}, ValueError, "255"),
    ({"timer_id": "t" * 256}, ValueError, "255"),
    ({"timer_conflict": "replace"}, ValueError, "timer_conflict"),
    ({"timer_conflict": "extend"}, ValueError, "timer_conflict"),
]


async def by_broker(**options):
    await broker_on().publish(1, **options)


async def by_publisher(queue, **options):
    await broker_on().publisher(queue).publish(1, **options)


async def by_response(**options):
    OutboxResponse(1, **options)


async def by_empty_batch(**options):
    await broker_on().publish_batch(**options)


@pytest.mark.parametrize(
    ("how", "options", "error", "text"),
    [
        (how, *case)
        for how in (by_broker, by_publisher, by_response, by_empty_batch)
        for case in REFUSED
        if how is not by_empty_batch or not any(name.startswith("timer") for name in case[0])
    ],
)
def test_arguments_that_are_refused(how, options, error, text):
    """S1-25: the same words at every door, before anything is sent."""
    given = {"queue": "q", "session": fake_session(), **options}
    with pytest.raises(error, match=text):
        asyncio.run(how(**given))


@pytest.mark.parametrize(
    ("how", "context"),
    [
        (by_broker, "OutboxPublishCommand"),
        (by_publisher, "OutboxPublishCommand"),
        (by_response, "OutboxResponse"),
        (by_empty_batch, "broker.publish_batch"),
    ],
)
def test_errors_begin_with_what_was_called(how, context):
    options = {"activate_in": timedelta(1), "activate_at": NOW}
    with pytest.raises(ValueError, match=f"^{context} accepts at most one"):
        asyncio.run(how(queue="q", session=fake_session(), **options))


@pytest.mark.parametrize("name", ["timer_id", "correlation_id", "message_id"])
def test_one_of_several(name):
    """What belongs to one message is refused for a batch."""
    with pytest.raises(ValueError, match="batch"):
        OutboxPublishCommand(1, 2, queue="q", session=fake_session(), **{name: "x"})


def test_what_is_not_supported():
    """Requests, decorating with a publisher, commands of other brokers."""
    broker = broker_on()
    publisher = broker.publisher("q")
    command = PublishCommand(1, _publish_type=PublishType.PUBLISH)
    with pytest.raises(NotImplementedError, match="request-reply"):
        asyncio.run(broker.request(1, "q"))
    with pytest.raises(NotImplementedError, match="request-reply"):
        asyncio.run(publisher.request(1))
    with pytest.raises(NotImplementedError, match="cannot decorate"):
        publisher(lambda body: body)
    with pytest.raises(NotImplementedError, match="from_cmd is not supported"):
        OutboxPublishCommand.from_cmd(command)


class Model(BaseModel):
    a: int


@pytest.mark.parametrize(
    ("body", "payload", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", None),
        ("text", b"text", "text/plain"),
        (None, b"", None),
        ({"a": 1}, b'{"a":1}', "application/json"),
        ([1, "x"], b'[1,"x"]', "application/json"),
        (7, b"7", "application/json"),
        (Model(a=1), b'{"a":1}', "application/json"),
    ],
)
def test_the_envelope(body, payload, content_type):
    """S0-20, S0-21: bytes, content type and correlation id of a row."""

    async def main():
        broker = broker_on()
        async with TestOutboxBroker(broker):
            row_id = await broker.publish(body, queue="q", headers={"k": "v"})
            (row,) = broker.fake_client.rows
        assert (row.id, row.payload) == (row_id, payload)
        correlation = row.headers.pop("correlation_id")
        assert len(correlation) == 36
        expected = {"k": "v"} | ({"content-type": content_type} if content_type else {})
        assert row.headers == expected

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"headers": {"content-type": "text/html"}}, "content-type"),
        ({"headers": {"correlation_id": "a"}, "correlation_id": "b"}, "correlation_id"),
        ({"headers": {"outlast-replay": "1"}}, "outlast-replay"),
        ({"message_id": "x" * 256}, "message_id"),
        ({"event_type": ""}, "event_type"),
    ],
)
def test_envelopes_that_are_refused(options, text):
    async def main():
        broker = broker_on()
        async with TestOutboxBroker(broker):
            with pytest.raises(ValueError, match=text):
                await broker.publish({"a": 1}, queue="q", **options)
            assert broker.fake_client.rows == []

    asyncio.run(main())


def test_a_response_refuses_a_reserved_header_at_once():
    with pytest.raises(ValueError, match="outlast-x"):
        OutboxResponse(1, queue="q", session=fake_session(), headers={"outlast-x": "1"})


def test_what_a_handler_sees():
    """S0-21: reserved headers are attributes, not headers."""

    async def main():
        broker, seen = broker_on(), []

        @broker.subscriber("q")
        async def handle(msg: OutboxMessage) -> None:
            seen.append(msg)

        async with TestOutboxBroker(broker):
            await broker.publish(
                {"a": 1},
                queue="q",
                headers={"k": "v"},
                correlation_id="c",
                message_id="m",
                event_type="made",
            )
            row_id = await broker.publish(b"x", queue="q")
        first, second = seen
        assert (first.message_id, first.event_type, first.correlation_id) == ("m", "made", "c")
        assert first.headers == {
            "k": "v",
            "content-type": "application/json",
            "correlation_id": "c",
        }
        assert first.content_type == "application/json"
        assert first.reply_to == "q"
        assert (second.message_id, second.event_type) == (str(row_id), None)
        assert second.raw_message.queue == "q"
        assert second.raw_message.deliveries_count == 1

    asyncio.run(main())


def test_a_publisher():
    """Static headers come with every message; those of a call win."""

    async def main():
        broker = broker_on()
        publisher = broker.publisher("q", headers={"a": "1", "b": "1"})
        assert (publisher.queue, publisher.headers) == ("q", {"a": "1", "b": "1"})

        async with TestOutboxBroker(broker) as br:
            await publisher.publish({"n": 1}, session=fake_session(), headers={"b": "2"})
            publisher.mock.assert_called_once_with({"n": 1})
            (row,) = br.fake_client.rows
        assert (row.headers["a"], row.headers["b"]) == ("1", "2")

    asyncio.run(main())


def test_a_batch():
    """Every row has its own correlation id; None is a body; nothing runs before `published`."""

    async def main():
        heard = Heard()
        broker, order = broker_on(metrics_recorder=heard), []

        @broker.subscriber("q")
        async def handle(msg: OutboxMessage) -> None:
            order.append((await msg.decode(), msg.correlation_id, msg.event_type))

        async with TestOutboxBroker(broker):
            await broker.publish_batch(1, None, 3, queue="q", event_type="e")
            await broker.publish_batch(queue="q")
        assert [body for body, _, _ in order] == [1, b"", 3]
        assert len({correlation for _, correlation, _ in order}) == 3
        assert {event for _, _, event in order} == {"e"}
        assert heard.names()[0] == "published"
        assert heard.of("published") == [
            {
                "queue": "q",
                "status": "success",
                "count": 3,
                "size_bytes": 2,
                "duration_seconds": mock.ANY,
            }
        ]

    asyncio.run(main())


def test_published_tells_errors_and_conflicts():
    async def main():
        heard = Heard()
        broker = broker_on(metrics_recorder=heard)
        async with TestOutboxBroker(broker):
            timer = {"queue": "q", "timer_id": "t"}
            assert await broker.publish(1, **timer) == 1
            assert await broker.publish(2, **timer) is None
            with pytest.raises(ValueError, match="outlast-"):
                await broker.publish(3, queue="q", headers={"outlast-x": "1"})
        told = [(t["status"], t["count"], t.get("exception_type")) for t in heard.of("published")]
        assert told == [("success", 1, None), ("success", 0, None), ("error", 0, "ValueError")]

    asyncio.run(main())


def test_a_recorder_that_raises_changes_nothing():
    async def main():
        def recorder(name, tags):
            raise RuntimeError("no metrics today")

        broker = broker_on(metrics_recorder=recorder)
        handled = []

        @broker.subscriber("q")
        async def handle(body: int) -> None:
            handled.append(body)

        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="q")
            assert broker.fake_client.rows == []
        assert handled == [1]

    asyncio.run(main())


def test_publish_middlewares_run():
    """A middleware may change what is inserted."""

    class Stamp(BaseMiddleware):
        async def publish_scope(self, call_next, cmd):
            cmd.add_headers({"stamp": str(len(cmd.batch_bodies))})
            return await call_next(cmd)

    async def main():
        broker = broker_on(middlewares=[Stamp])
        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="q")
            await broker.publish_batch(1, 2, queue="q")
            stamps = [row.headers["stamp"] for row in broker.fake_client.rows]
        assert stamps == ["1", "2", "2"]

    asyncio.run(main())


@pytest.mark.parametrize("opened", [True, False])
def test_a_response(opened):
    """A response is inserted on its session; without an open transaction it is a failure."""

    async def main():
        broker = broker_on()
        session = fake_session()
        session.in_transaction.return_value = opened

        @broker.subscriber("in", retry_strategy=NoRetry())
        async def handle(body: int) -> OutboxResponse:
            return OutboxResponse(body + 1, queue="out", session=session, headers={"k": "v"})

        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="in", correlation_id="c")
            rows, letters = broker.fake_client.rows, broker.fake_client.dlq_rows
        if opened:
            ((row,), letters) = rows, letters
            assert letters == []
            assert (row.queue, row.payload, row.headers["correlation_id"]) == ("out", b"2", "c")
            assert row.headers["k"] == "v"
        else:
            assert rows == []
            assert "transaction" in letters[0]["last_exception"]

    asyncio.run(main())


def test_the_correlation_id_of_a_response():
    """Explicit, else of its headers, else the inbound message's."""
    session = fake_session()
    make = {"queue": "q", "session": session}
    assert OutboxResponse(1, correlation_id="a", **make).correlation_id == "a"
    assert OutboxResponse(1, headers={"correlation_id": "b"}, **make).correlation_id == "b"
    assert OutboxResponse(1, **make).correlation_id is None
    command = OutboxResponse(1, timer_id="t", timer_conflict="extend", **make).as_publish_command()
    assert isinstance(command, OutboxPublishCommand)
    assert (command.queue, command.timer_id, command.timer_conflict) == ("q", "t", "extend")


def test_a_plain_answer_publishes_nothing():
    async def main():
        broker = broker_on()

        @broker.subscriber("q")
        async def handle(body: int) -> int:
            return body

        async with TestOutboxBroker(broker):
            await broker.publish(1, queue="q")
            assert broker.fake_client.rows == []

    asyncio.run(main())


def test_inbound_headers_travel_with_a_response():
    """propagate_inbound_headers: without the envelope, never reserved, never over own headers."""

    async def main():
        broker = broker_on()

        def answer(name, **options):
            @broker.subscriber(name, propagate_inbound_headers=True)
            async def handle(body: int) -> OutboxResponse:
                return OutboxResponse("text", queue="out", session=fake_session(), **options)

        answer("bare")
        answer("own", headers={"own": "1"})
        async with TestOutboxBroker(broker):
            for queue in ("bare", "own"):
                await broker.publish(1, queue=queue, headers={"k": "v"}, event_type="e")
            bare, own = broker.fake_client.rows
        assert bare.headers["k"] == "v"
        assert bare.headers["content-type"] == "text/plain"
        assert "outlast-event-type" not in bare.headers
        assert own.headers["own"] == "1"
        assert "k" not in own.headers

    asyncio.run(main())


def test_on_the_callers_transaction(database):
    """S1-25: a rolled-back publish leaves nothing; session and connection both work."""

    async def body(engine):
        broker = broker_on(engine)
        await create(engine, broker)
        async with AsyncSession(engine) as session:
            await broker.publish(1, queue="q", session=session)
            await session.rollback()
        async with engine.begin() as connection:
            assert isinstance(connection, AsyncConnection)
            row_id = await broker.publish(2, queue="q", session=connection)
            unseen = await broker.fetch_unprocessed(session=connection, queue="q")
            assert [row.id for row in unseen] == [row_id]
        rows, _ = await content(engine, broker)
        assert [row["payload"] for row in rows] == [b"2"]

    database.run(body)


def test_looking_changes_nothing(database):
    """S1-49: fetch_unprocessed takes no lease and counts nothing."""

    async def body(engine):
        broker = broker_on(engine)
        await create(engine, broker)
        await publish(engine, broker, 1, queue="a")
        await publish(engine, broker, 2, queue="b", activate_in=timedelta(hours=1))
        before, _ = await content(engine, broker)
        async with AsyncSession(engine) as session:
            every = await broker.fetch_unprocessed(session=session)
            one = await broker.fetch_unprocessed(session=session, limit=1)
            with pytest.raises(ValueError, match="limit"):
                await broker.fetch_unprocessed(session=session, limit=0)
        after, _ = await content(engine, broker)
        assert before == after
        assert [(r.queue, r.payload, r.acquired_token) for r in every] == [
            ("a", b"1", None),
            ("b", b"2", None),
        ]
        assert [r.queue for r in one] == ["a"]

    database.run(body)


def test_timers(database):
    """A timer is one live message; cancelling it is the caller's transaction, too."""

    async def body(engine):
        broker = broker_on(engine)
        await create(engine, broker)
        later = {"queue": "q", "timer_id": "t", "activate_in": timedelta(hours=1)}
        assert await publish(engine, broker, 1, **later) is not None
        assert await publish(engine, broker, 2, **later) is None
        moved = {**later, "activate_in": timedelta(hours=2), "timer_conflict": "extend"}
        assert await publish(engine, broker, 3, **moved) is not None
        rows, _ = await content(engine, broker)
        assert [row["payload"] for row in rows] == [b"3"]
        async with AsyncSession(engine) as session, session.begin():
            assert await broker.cancel_timer(queue="q", timer_id="t", session=session)
            assert not await broker.cancel_timer(queue="q", timer_id="t", session=session)
        assert (await content(engine, broker))[0] == []

    database.run(body)


def test_a_chain_in_a_database(database):
    """A handler's own session carries the answer; a failing one leaves neither."""

    async def body(engine):
        heard = Heard()
        broker = broker_on(engine, metrics_recorder=heard)
        got = []

        @broker.subscriber("in", retry_strategy=ConstantRetry(delay_seconds=0.01))
        async def first(number: int, msg: OutboxMessage) -> None:
            async with AsyncSession(engine) as session, session.begin():
                await broker.publish(number + 1, queue="out", session=session)
                if msg.raw_message.attempts_count == 0:
                    raise RuntimeError("once")

        @broker.subscriber("out")
        async def second(number: int) -> None:
            got.append(number)

        async with running(engine, broker):
            await publish(engine, broker, 1, queue="in")
            await heard.closed(3)
        assert got == [2]
        assert [n for n in heard.names() if n in {"acked", "nacked_retried"}] == [
            "nacked_retried",
            "acked",
            "acked",
        ]

    database.run(body)
