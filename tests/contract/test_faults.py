"""Cases of the fault catalogue that need a real database and a second connection."""

import asyncio
import hashlib
import json
import os
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import func, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.model.delivery import Attempt, RetryEntry
from outlast.model.errors import StoreFailure
from outlast.model.outcome import ACK
from outlast.publish.run import OutboxWriter
from tests.contract.test_interleavings import engine_over, until
from tests.contract.worlds import TIMEOUT, letter, run_sql


@asynccontextmanager
async def cut_at_commit(host, port):
    """A proxy that passes a COMMIT on to the server and loses everything after it."""
    closing = []

    async def serve(reader, writer):
        to_reader, to_writer = await asyncio.open_connection(host, port)
        state = {"cut": False}

        async def forward():
            while data := await reader.read(65536):
                if b"COMMIT" in data:
                    state["cut"] = True
                to_writer.write(data)
                await to_writer.drain()
            to_writer.close()

        async def back():
            while data := await to_reader.read(65536):
                if state["cut"]:
                    # the server has answered, so it has committed; the client never hears it
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
            writer.close()

        closing.extend([asyncio.create_task(forward()), asyncio.create_task(back())])

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)


def test_a_commit_whose_answer_is_lost(postgres):
    """F-A02: the caller gets an error; the same `timer_id` again makes no second message."""

    async def body(w):
        writer = OutboxWriter(w.outbox)
        url = make_url(postgres.url)

        async def publish(engine):
            async with engine.begin() as connection:
                return await writer.insert(
                    connection,
                    queue="q",
                    payload=b"order",
                    headers=None,
                    activate_in=None,
                    activate_at=None,
                    timer_id="order-1",
                    timer_conflict="ignore",
                )

        async with cut_at_commit(url.host, url.port) as port:
            through = create_async_engine(
                url.set(host="127.0.0.1", port=port), connect_args=postgres.connect_args
            )
            with pytest.raises((DBAPIError, OSError)):
                await publish(through)
            await through.dispose()
        assert await publish(w.engine) is None
        assert [row["payload"] for row in await w.rows()] == [b"order"]

    run_sql(postgres, body)


def test_a_listener_that_is_terminated_misses_nothing(postgres):
    """F-B13: the listening backend dies as a message is committed; it is handled all the same."""

    async def body(w):
        seen = []

        async def deliver(delivery):
            seen.append(delivery.id)
            return ACK

        settings = {"min_fetch_interval": 0.2, "max_fetch_interval": 1.0}
        async with engine_over(w.store, ("h", "q", deliver, settings)):
            for _ in range(5):
                async with w.engine.begin() as connection:
                    await connection.execute(
                        text("select pg_terminate_backend(:pid)"),
                        {"pid": w.store._wires["claims"].last_pid},
                    )
                row_id = await w.add()

                async def handled(row_id=row_id):
                    return row_id in seen

                await until(handled)
        assert len(seen) == len(set(seen)) == 5

    run_sql(postgres, body)


def test_instants_mean_the_same_in_every_time_zone(postgres):
    """F-B16: zones of publisher, session and worker differ, a leap second's eve, the year 9999."""

    async def body(w):
        writer = OutboxWriter(w.outbox)
        instants = [
            datetime(2026, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
            datetime(2027, 3, 28, 2, 30, tzinfo=timezone(timedelta(hours=14))),
            datetime(2020, 1, 1, tzinfo=timezone(-timedelta(hours=11, minutes=30))),
        ]
        for zone in ("Pacific/Apia", "America/St_Johns", "UTC"):
            settings = {**postgres.connect_args["server_settings"], "timezone": zone}
            other = create_async_engine(postgres.url, connect_args={"server_settings": settings})
            async with other.begin() as connection:
                for instant in instants:
                    await writer.insert(
                        connection,
                        queue=zone,
                        payload=b"",
                        headers=None,
                        activate_in=None,
                        activate_at=instant,
                        timer_id=None,
                        timer_conflict="ignore",
                    )
            await other.dispose()
        rows = await w.rows()
        assert [row["next_attempt_at"] for row in rows] == instants * 3
        due = await w.claim("Pacific/Apia", "UTC")
        assert [row.next_attempt_at for row in due.rows] == [instants[3]] * 2

    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Kathmandu"
    time.tzset()
    try:
        run_sql(postgres, body)
    finally:
        os.environ.pop("TZ") if before is None else os.environ.__setitem__("TZ", before)
        time.tzset()


def test_a_migration_that_locks_the_outbox(postgres):
    """F-D07: no connection pile-up, a stop still works, and claiming goes on afterwards."""

    async def body(w):
        seen = []

        async def deliver(delivery):
            seen.append(delivery.id)
            return ACK

        settings = {"min_fetch_interval": 0.1, "max_fetch_interval": 0.5}
        await w.add()
        async with w.engine.connect() as migration:
            await migration.execute(text("lock table outbox in access exclusive mode"))
            async with engine_over(w.store, ("h", "q", deliver, settings)) as engine:
                for _ in range(3):
                    with pytest.raises(StoreFailure):
                        await w.store.extend([(1, w_token())], TIMEOUT)
                count = await migration.execute(
                    text(
                        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
                        "and application_name like 'outlast %' and datname = current_database()"
                    )
                )
                assert count.scalar_one() <= 3
                assert engine.is_healthy
                assert seen == []
                async with asyncio.timeout(10):
                    await engine.stop(0.1)
            await migration.rollback()
        await w.store.open(lambda _queue: None)
        async with engine_over(w.store, ("h", "q", deliver, settings)):

            async def handled():
                return len(seen) == 1

            await until(handled)

    run_sql(postgres, body)


def w_token():
    from uuid import uuid4

    return uuid4()


def test_a_server_process_killed_in_the_middle_of_a_dead_letter(postgres):
    """F-G01, S0-02: killed between insert and delete: the row is there and the letter is not."""

    async def body(w):
        async with w.engine.begin() as connection:
            await connection.execute(
                text(
                    "create function stall() returns trigger language plpgsql as "
                    "'begin perform pg_sleep(60); return new; end'"
                )
            )
            await connection.execute(
                text(
                    "create trigger stall after insert on outbox_dlq for each row "
                    "execute function stall()"
                )
            )
        row_id = await w.add()
        row = await w.claim_one()
        burying = asyncio.create_task(w.store.bury([letter(row)], 30.0))
        pid = w.store._wires["letters"].last_pid

        async def stalled():
            async with w.engine.connect() as connection:
                event = await connection.execute(
                    text("select wait_event from pg_stat_activity where pid = :pid"), {"pid": pid}
                )
                return event.scalar_one_or_none() == "PgSleep"

        await until(stalled)
        async with w.engine.begin() as connection:
            await connection.execute(text("select pg_terminate_backend(:pid)"), {"pid": pid})
        with pytest.raises(StoreFailure):
            await burying
        assert await w.letters() == []
        assert (await w.row(row_id))["acquired_token"] == row.token
        # the same verdict, under the same token, lands once the line is back
        async with w.engine.begin() as connection:
            await connection.execute(text("drop trigger stall on outbox_dlq"))
        await w.store.reconnect("letters")
        assert (await w.store.bury([letter(row)], TIMEOUT)).lost == ()
        assert await w.rows() == []
        assert len(await w.letters()) == 1

    run_sql(postgres, body)


def _digest(payload, headers):
    stored = json.dumps(headers, sort_keys=True, ensure_ascii=False).encode()
    return hashlib.sha256(bytes(payload) + b"\x00" + stored).hexdigest()


def test_body_and_headers_keep_their_digest_all_the_way(database):
    """F-G13: equal at publish, claim, retry, second claim and in the dead letter."""
    payload = bytes(range(256)) * 100
    headers = {"content-type": "x/y", "correlation_id": "ü€\U0001f600", "n": -1.5, "l": [None, {}]}

    async def body(w):
        writer = OutboxWriter(w.outbox)
        async with w.engine.begin() as connection:
            await writer.insert(
                connection,
                queue="q",
                payload=payload,
                headers=headers,
                activate_in=None,
                activate_at=None,
                timer_id=None,
                timer_conflict="ignore",
            )
        wanted = _digest(payload, headers)
        first = await w.claim_one()
        assert _digest(first.payload, first.headers) == wanted
        attempt = Attempt(1, first.created_at, first.created_at)
        await w.store.retry([RetryEntry(first.id, first.token, 0.0, attempt)], TIMEOUT)
        second = await w.claim_one()
        assert _digest(second.payload, second.headers) == wanted
        await w.store.bury([letter(second)], TIMEOUT)
        (stored,) = await w.letters()
        assert _digest(stored["payload"], stored["headers"]) == wanted
        async with w.engine.connect() as connection:
            length = await connection.execute(select(func.length(w.dlq.c.payload)))
            assert length.scalar_one() == len(payload)

    run_sql(database, body)
