"""What two connections can do to each other, played on the real databases (design 4 and 4.1)."""

import asyncio
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from sqlalchemy import text

from outlast.engine.engine import Engine
from outlast.engine.options import EngineOptions, SubscriptionOptions
from outlast.model.delivery import Attempt, RetryEntry
from outlast.model.errors import CannotWrite, RowLocked, RowRefused
from outlast.model.look import Expired
from outlast.model.outcome import ACK, Terminal
from outlast.policy.retry import ConstantRetry
from outlast.policy.verdict import Verdicts
from outlast.publish.run import OutboxWriter
from tests.contract.worlds import TIMEOUT, letter, run_sql


@asynccontextmanager
async def engine_over(store, *subscriptions, **options):
    """An engine over a store that is open already; records its events."""
    events = []
    engine = Engine(
        store,
        EngineOptions(consumer_instance="t:1", **options),
        emit=lambda name, tags: events.append((name, dict(tags))),
    )
    opened = store.open

    async def already_open(wake):
        if hasattr(store, "_wake"):
            store._wake = wake

    store.open = already_open
    for name, queues, deliver, settings in subscriptions:
        made = SubscriptionOptions(queues=queues, **settings)
        engine.subscribe(name, made, deliver, Verdicts(made.retry_strategy, name))
    await engine.start()
    engine.events = events
    try:
        yield engine
    finally:
        store.open = opened
        await engine.stop(0.5)


async def until(done, seconds=20.0):
    """Wait for a fact of the real world; the bound is there to fail, not to measure."""
    async with asyncio.timeout(seconds):
        while not await done():
            await asyncio.sleep(0.01)


def test_commit_mode_and_lock_bound_are_seen_by_no_other_session(postgres):
    """Settings belong to our three connections; the application's pool keeps the database's."""

    async def body(w):
        wanted = {"claims": "off", "settles": "off", "letters": "on"}
        for line, mode in wanted.items():
            connection = w.store._wires[line].connection
            assert await connection.fetchval("show synchronous_commit") == mode
            assert await connection.fetchval("show lock_timeout") == "300ms"
            assert await connection.fetchval("show enable_seqscan") == "off"
            assert await connection.fetchval("show jit") == "off"
            level = await connection.fetchval("show default_transaction_isolation")
            assert level == "read committed"
        async with w.engine.connect() as connection:
            for name, value in (
                ("synchronous_commit", "on"),
                ("lock_timeout", "0"),
                ("enable_seqscan", "on"),
                ("jit", "on"),
            ):
                assert (await connection.execute(text(f"show {name}"))).scalar_one() == value

    run_sql(postgres, body)


def test_three_connections_beside_a_pool_of_one(postgres):
    """S1-42, S1-43, S1-45: whatever the number of subscribers and workers, three and no more."""

    async def body(w):
        async def deliver(_delivery):
            await asyncio.sleep(0.01)
            return ACK

        subs = [(f"s{n}", f"q{n}", deliver, {"max_workers": 8}) for n in range(3)]
        async with engine_over(w.store, *subs):
            for n in range(30):
                await w.add(f"q{n % 3}")

            async def empty():
                return not await w.rows()

            await until(empty)
            async with w.engine.connect() as connection:
                names = (
                    await connection.execute(
                        text(
                            "select application_name from pg_stat_activity where datname = "
                            "current_database() and application_name like 'outlast %' "
                            "and pid = any(:pids)"
                        ),
                        {"pids": [wire.last_pid for wire in w.store._wires.values()]},
                    )
                ).scalars()
                assert sorted(names) == ["outlast claims", "outlast letters", "outlast settles"]

    run_sql_with_pool(postgres, body, pool_size=1, max_overflow=0)


def run_sql_with_pool(database, body, **options):
    plain = database.run
    database.run = lambda main, **more: plain(main, **options, **more)
    try:
        run_sql(database, body)
    finally:
        database.run = plain


@pytest.mark.parametrize("method", ["ack", "extend", "release", "retry", "bury"])
def test_a_row_locked_by_the_application_is_told_and_then_skipped(postgres, method):
    """A lock held elsewhere: 55P03 within the bound; the skipping form answers held, not lost."""

    async def body(w):
        ids = [await w.add() for _ in range(3)]
        rows = (await w.claim()).rows

        async def settle(skip):
            pairs = [(r.id, r.token) for r in rows]
            if method == "bury":
                return await w.store.bury([letter(r) for r in rows], TIMEOUT, skip=skip)
            if method == "retry":
                when = Attempt(1, rows[0].created_at, rows[0].created_at)
                entries = [RetryEntry(*pair, 1.0, when) for pair in pairs]
                return await w.store.retry(entries, TIMEOUT, skip=skip)
            return await getattr(w.store, method)(pairs, TIMEOUT, skip=skip)

        async with w.engine.connect() as connection:
            await connection.execute(
                text("select 1 from outbox where id = :id for update"), {"id": ids[1]}
            )
            with pytest.raises(RowLocked):
                await settle(skip=False)
            answer = await settle(skip=True)
            assert answer.held == ((ids[1], rows[1].token),)
            assert answer.lost == ()
            await connection.rollback()
        again = await settle(skip=True)
        assert (ids[1], rows[1].token) not in again.lost
        if method == "bury":
            assert sorted(x["original_id"] for x in await w.letters()) == ids

    run_sql(postgres, body)


def test_a_locked_row_and_a_locked_dlq_table_beside_healthy_acks_and_extensions(postgres):
    """A migration locks the DLQ: acks and refreshes go on, the letter lands when it is free."""

    async def body(w):
        delivered = []

        async def deliver(delivery):
            if bytes(delivery.payload) == b"bad":
                return Terminal("rejected")
            if bytes(delivery.payload) == b"long":
                await asyncio.sleep(4.0)
            delivered.append(delivery.id)
            return ACK

        settings = {
            "max_workers": 8,
            "lease_ttl_seconds": 3.0,
            "max_fetch_interval": 1.0,
            "min_fetch_interval": 0.1,
        }
        async with w.engine.connect() as migration:
            await migration.execute(text("lock table outbox_dlq in access exclusive mode"))
            async with engine_over(w.store, ("h", "q", deliver, settings)) as engine:
                await w.add(payload=b"bad")
                await w.add(payload=b"long")
                for _ in range(20):
                    await w.add()

                async def only_the_letter_waits():
                    return len(await w.rows()) == 1

                await until(only_the_letter_waits)
                assert len(delivered) == 21
                assert len(set(delivered)) == 21
                await migration.rollback()

                async def buried():
                    return not await w.rows()

                await until(buried)
                assert len(await w.letters()) == 1
                assert not [e for e in engine.events if e[0] == "lease_lost"]

    run_sql(postgres, body)


def test_a_timer_extended_by_the_application_while_leased_locks_nothing(database):
    """The publisher's open transaction must not hold up the worker's settle of that row."""

    async def body(w):
        writer = OutboxWriter(w.outbox)
        async with w.engine.begin() as connection:
            timer = await writer.insert(
                connection,
                queue="q",
                payload=b"1",
                headers=None,
                activate_in=None,
                activate_at=None,
                timer_id="t",
                timer_conflict="ignore",
            )
        row = await w.claim_one()
        assert row.id == timer
        if w.kind == "sqlite":
            # one writer at a time there: the publisher is simply not in a transaction now
            async with w.engine.begin() as connection:
                assert await _extend(writer, connection) is None
            assert (await w.store.ack([(row.id, row.token)], TIMEOUT)).lost == ()
            return
        async with w.engine.begin() as connection:
            assert await _extend(writer, connection) is None
            # its transaction is still open
            answer = await w.store.ack([(row.id, row.token)], TIMEOUT)
            assert answer == ((), ())
        assert await w.rows() == []

    run_sql(database, body)


async def _extend(writer, connection):
    from datetime import timedelta

    return await writer.insert(
        connection,
        queue="q",
        payload=b"2",
        headers=None,
        activate_in=timedelta(seconds=60),
        activate_at=None,
        timer_id="t",
        timer_conflict="extend",
    )


def test_a_dead_letter_that_fails_leaves_the_row_leased(database):
    """S0-33, S0-40: a dropped column fails the whole statement; the delete is undone."""

    async def body(w):
        row_id = await w.add()
        row = await w.claim_one()
        async with w.engine.begin() as connection:
            await connection.execute(text("alter table outbox_dlq drop column last_exception"))
        with pytest.raises(CannotWrite) as failure:
            await w.store.bury([letter(row)], TIMEOUT)
        assert "last_exception" in str(failure.value)
        assert (await w.row(row_id))["acquired_token"] == row.token
        # an ack does not name the DLQ at all (S0-16)
        assert (await w.store.ack([(row.id, row.token)], TIMEOUT)).lost == ()

    run_sql(database, body)


def test_acks_work_with_the_dlq_table_gone(database):
    """S0-16: the success path never touches the DLQ."""

    async def body(w):
        await w.add()
        row = await w.claim_one()
        async with w.engine.begin() as connection:
            await connection.execute(text("drop table outbox_dlq"))
        assert (await w.store.ack([(row.id, row.token)], TIMEOUT)).lost == ()

    run_sql(database, body)


def test_a_value_the_database_refuses_is_told_as_such(database):
    async def body(w):
        await w.add()
        row = await w.claim_one()
        bad = letter(row, reason="r" * 70 if w.kind == "postgres" else "r")
        if w.kind == "sqlite":
            async with w.engine.begin() as connection:
                await connection.execute(
                    text(
                        "create trigger refuse before insert on outbox_dlq begin "
                        "select raise(abort, 'refused by a constraint'); end"
                    )
                )
        with pytest.raises(RowRefused):
            await w.store.bury([bad], TIMEOUT)
        assert (await w.row(row.id))["acquired_token"] == row.token

    run_sql(database, body)


def test_dead_letters_and_acks_are_told_apart_by_connection(postgres):
    """S0-02, S0-31, S0-35: one statement deletes and inserts, with a durable commit of its own."""

    async def body(w):
        seen = []
        for line, wire in w.store._wires.items():
            fetch = wire.fetch

            async def spy(sql, arguments, timeout, line=line, fetch=fetch):
                seen.append((line, sql))
                return await fetch(sql, arguments, timeout)

            wire.fetch = spy
        for _ in range(2):
            await w.add()
        first, second = (await w.claim()).rows
        await w.store.ack([(first.id, first.token)], TIMEOUT)
        await w.store.bury([letter(second)], TIMEOUT)
        acks = [sql for line, sql in seen if line == "settles"]
        letters = [sql for line, sql in seen if line == "letters"]
        assert len(acks) == len(letters) == 1
        assert "outbox_dlq" not in acks[0]
        assert "delete from" in letters[0]
        assert "insert into" in letters[0]

    run_sql(postgres, body)


def test_a_dlq_table_of_the_peer_is_written_as_it_is(database):
    """A table without our columns is found out at open, and gets what it has room for."""
    import logging

    async def body(w):
        optional = ["timer_id", "message_id", "fingerprint", "state", "replay_count"]
        dropped = [c.name for c in w.dlq.columns if c.name not in PEER_COLUMNS]
        assert set(optional) - {"timer_id"} <= set(dropped)
        async with w.engine.begin() as connection:
            if w.kind == "sqlite":
                await connection.execute(text("drop table outbox_dlq"))
                await connection.execute(text(PEER_SQLITE))
            else:
                for name in dropped:
                    await connection.execute(text(f"alter table outbox_dlq drop column {name}"))
        await w.store.close()
        records = []
        handler = logging.Handler()
        handler.emit = records.append
        logger = logging.getLogger("outlast")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            await w.store.open(lambda _queue: None)
        finally:
            logger.removeHandler(handler)
        assert any("fingerprint" in r.getMessage() and r.levelno == logging.INFO for r in records)
        await w.add()
        row = await w.claim_one()
        assert (await w.store.bury([letter(row)], TIMEOUT)).lost == ()
        async with w.engine.connect() as connection:
            stored = (await connection.execute(text("select * from outbox_dlq"))).mappings().one()
        assert stored["original_id"] == row.id
        assert stored["failure_reason"] == "rejected"

    run_sql(database, body)


PEER_COLUMNS = {
    "id",
    "original_id",
    "queue",
    "payload",
    "headers",
    "deliveries_count",
    "created_at",
    "failed_at",
    "failure_reason",
    "last_exception",
}
PEER_SQLITE = (
    "create table outbox_dlq (id integer primary key autoincrement, original_id bigint not null, "
    "queue varchar(255) not null, payload blob not null, headers json, deliveries_count bigint "
    "not null, created_at datetime not null, failed_at datetime not null default "
    "(strftime('%Y-%m-%d %H:%M:%f000','now')), failure_reason varchar(64) not null, "
    "last_exception varchar)"
)


def test_take_over_skips_what_somebody_else_is_taking(postgres):
    """Two workers meet at an expired row: one gets it, the other nothing and no error."""

    async def body(w):
        row_id = await w.add()
        await w.claim()
        await w.age_lease(row_id, 100)
        async with w.engine.connect() as connection:
            await connection.execute(
                text("select 1 from outbox where id = :id for update"), {"id": row_id}
            )
            claim = await w.store.take_over([Expired(row_id, 60.0)], uuid4(), TIMEOUT)
            assert claim.rows == []
            await connection.rollback()
        claim = await w.store.take_over([Expired(row_id, 60.0)], uuid4(), TIMEOUT)
        assert len(claim.rows) == 1

    run_sql(postgres, body)


def test_a_partitioned_or_inherited_outbox_is_refused(postgres):
    """ctid is per table: a claim there would lease rows of another one."""
    from sqlalchemy import MetaData

    from outlast.model.errors import UnsupportedDatabase
    from outlast.stores.postgres.store import PostgresStore
    from outlast.tables import make_outbox_table

    async def body(engine):
        metadata = MetaData()
        outbox = make_outbox_table(metadata)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.execute(text("create table child () inherits (outbox)"))
        store = PostgresStore(engine, outbox)
        with pytest.raises(UnsupportedDatabase, match="inherited"):
            await store.open(lambda _queue: None)
        await store.close()

    postgres.run(body)


def test_a_plan_that_went_stale_costs_one_retry(postgres):
    """F-E06: the table gets a column while prepared statements are in use."""

    async def body(w):
        async def deliver(_delivery):
            return ACK

        async with engine_over(w.store, ("h", "q", deliver, {})) as engine:
            for n in range(3):
                await w.add()
                async with w.engine.begin() as connection:
                    await connection.execute(text(f"alter table outbox add column extra{n} int"))
                await w.add()

            async def empty():
                return not await w.rows_left()

            await until(empty)
            assert [e for e in engine.events if e[0] == "settle_unknown"] == []

    async def with_count(w):
        async def rows_left():
            async with w.engine.connect() as connection:
                return (await connection.execute(text("select count(*) from outbox"))).scalar_one()

        w.rows_left = rows_left
        await body(w)

    run_sql(postgres, with_count)


def test_a_role_with_another_isolation_level_changes_nothing(postgres):
    """F-B11: the application's engine runs serializable; our lines are READ COMMITTED."""

    async def body(w):
        async def deliver(_delivery):
            return ACK

        async with engine_over(w.store, ("h", "q", deliver, {"max_workers": 4})):
            for _ in range(50):
                await w.add()

            async def empty():
                return not await w.rows()

            await until(empty)

    run_sql_with_pool(postgres, body, isolation_level="SERIALIZABLE")


def test_no_transaction_is_open_while_a_handler_runs(postgres):
    """U-20: claim, commit, then the handler's I/O; our connections are idle meanwhile."""

    async def body(w):
        states = []

        async def deliver(_delivery):
            async with w.engine.connect() as connection:
                rows = await connection.execute(
                    text("select state from pg_stat_activity where pid = any(:pids)"),
                    {"pids": [wire.last_pid for wire in w.store._wires.values()]},
                )
                states.extend(rows.scalars())
            return ACK

        async with engine_over(w.store, ("h", "q", deliver, {"fetch_batch_size": 1})):
            await w.add()

            async def empty():
                return not await w.rows()

            await until(empty)
        assert states
        assert "idle in transaction" not in states

    run_sql(postgres, body)


def test_retries_take_the_databases_clock(database):
    """The delay is added in SQL: a worker's wrong clock changes nothing (F-B04)."""

    async def body(w):
        async def deliver(delivery):
            raise ValueError

        settings = {"retry_strategy": ConstantRetry(delay_seconds=3600)}
        row_id = await w.add()
        before = await w.row(row_id)
        async with engine_over(w.store, ("h", "q", deliver, settings)):

            async def rescheduled():
                row = await w.row(row_id)
                return row["attempts_count"] == 1

            await until(rescheduled)
        after = await w.row(row_id)
        waited = (after["next_attempt_at"] - before["created_at"]).total_seconds()
        assert 3600 <= waited < 3700
        assert after["first_attempt_at"] == after["last_attempt_at"]

    run_sql(database, body)


HOSTILE_HEADERS = [
    "[" * 3000 + "]" * 3000,
    '{"a": ' + "[" * 3000 + "]" * 3000 + "}",
    '{"n": 1' + "0" * 5000 + "}",
    '"a string"',
    "[1, 2]",
    "7",
]


@pytest.mark.parametrize("headers", HOSTILE_HEADERS, ids=range(len(HOSTILE_HEADERS)))
def test_hostile_headers_of_one_row_do_not_hold_up_its_batch(database, headers):
    """F-F04: what no decoder reads is delivered without headers, its neighbours as they are."""

    async def body(w):
        await w.add(headers={"a": 1})
        bad = await w.add()
        await w.add(headers={"b": 2})
        async with w.engine.begin() as connection:
            cast = "cast(:headers as jsonb)" if w.kind == "postgres" else ":headers"
            await connection.execute(
                text(f"update outbox set headers = {cast} where id = :id"),
                {"headers": headers, "id": bad},
            )
        rows = (await w.claim()).rows
        assert [row.headers for row in rows] == [{"a": 1}, None, {"b": 2}]
        assert (await w.store.bury([letter(row) for row in rows], TIMEOUT)).lost == ()

    run_sql(database, body)
