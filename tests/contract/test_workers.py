"""Workers are known: the row of a real worker, on both databases, and what it costs."""

import logging
import re
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import MetaData, func, insert, select, text

from outlast import NoRetry, OutboxBroker
from outlast.model.outcome import ACK, Terminal
from outlast.model.replay import ReplayFacts
from outlast.model.worker import WorkerReport
from outlast.policy.gates import live_workers
from outlast.stores.sqlite import upstream
from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table
from tests.contract.desks import ANN, run_desk
from tests.contract.test_interleavings import engine_over, until
from tests.contract.worlds import TIMEOUT

DESK = re.compile(r"outbox_worker|outbox_dlq_history|outbox_dlq_revision")


async def workers(w):
    async with w.engine.connect() as connection:
        return (await connection.execute(select(w.tables["worker"]))).all()


def test_the_desk_sees_which_worker_serves_what(database):
    """S4-97: instance, version, queues, lease; stopped, it counts for nobody and stays known."""

    async def body(w):
        broker = OutboxBroker(
            w.engine,
            outbox_table=w.outbox,
            dlq_table=w.dlq,
            consumer_version="2.0",
            consumer_instance="pod-7",
            logger=None,
        )

        @broker.subscriber(
            ["q", "other"], lease_ttl_seconds=45, max_workers=3, retry_strategy=NoRetry()
        )
        async def handle(body: dict) -> None:
            raise ValueError(body)

        async with broker:

            async def written():
                return await workers(w)

            await until(written)
            (seen,) = await w.desk.workers(ANN)
            assert re.fullmatch(r"pod-7:[0-9a-f]{8}", seen.instance)
            assert (seen.version, seen.queues) == ("2.0", {"q", "other"})
            assert not seen.stopped
            now = await w.now()
            assert abs(now - seen.seen_at) < timedelta(seconds=30)
            assert seen.started_at <= seen.seen_at
            assert live_workers(ReplayFacts(now, "q", (seen,))) == (seen,)
            await w.add(payload=b"{}")

            async def buried():
                return await w.letters()

            await until(buried)
            (letter,) = await w.letters()
            assert letter["consumer_version"] == seen.version
            assert seen.instance.startswith(f"{letter['consumer_instance']}:")
        (row,) = await workers(w)
        assert row.started_at == seen.started_at
        assert row.report["stopped"] is True
        assert row.report["subscribers"][0] | {"p50": 0, "p99": 0} == {
            "name": letter["subscriber"],
            "queues": ["other", "q"],
            "lease": 45.0,
            "max_workers": 3,
            "retry_horizon": 0.0,
            "p50": 0,
            "p99": 0,
        }
        (stopped,) = await w.desk.workers(ANN)
        assert (stopped.stopped, stopped.queues) == (True, frozenset())
        assert live_workers(ReplayFacts(await w.now(), "q", (stopped,))) == ()

    run_desk(database, body)


def test_a_restart_opens_the_gate_at_once(database):
    """Seed 002 on defaults: fix, restart, replay; the worker that has stopped holds nobody up."""

    async def body(w):
        async def serve(failing):
            broker = OutboxBroker(
                w.engine,
                outbox_table=w.outbox,
                dlq_table=w.dlq,
                consumer_version="1.0",
                logger=None,
            )

            @broker.subscriber("q", retry_strategy=NoRetry())
            async def handle(body: dict) -> None:
                if failing:
                    raise ValueError(body)

            return broker

        async with await serve(failing=True):
            await w.add(payload=b"{}")

            async def buried():
                return await w.letters() and await workers(w)

            await until(buried)
            (letter,) = await w.letters()
            await w.change(letter["id"], failure_category="VALIDATION")
            refused = await w.desk.replay(ANN, [letter["id"]])
            assert [r.gate for r in refused.results] == ["unchanged"]
        async with await serve(failing=False):

            async def two():
                return len(await workers(w)) == 2

            await until(two)
            assert (await w.desk.replay(ANN, [letter["id"]])).replayed == 1

            async def resolved():
                return (await w.one(letter["id"]))["state"] == "resolved"

            await until(resolved)

    run_desk(database, body)


async def statements_of(w, outcomes):
    """Handle one message after the other; which statements were sent, and how often."""
    sent = Counter()
    if w.kind == "postgres":
        for line, wire in w.store._wires.items():

            async def spy(sql, arguments, timeout, line=line, fetch=wire.fetch):
                sent[(line, sql)] += 1
                return await fetch(sql, arguments, timeout)

            wire.fetch = spy
    else:
        raw = upstream.raw(w.store._connection._driver)
        raw.set_trace_callback(lambda sql: sent.update([("file", sql)]))
    left = list(outcomes)

    async def deliver(_delivery):
        return left.pop(0)

    settings = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.1}
    async with engine_over(w.store, ("h", "q", deliver, settings)):
        for _ in outcomes:
            await w.add()

            async def done():
                return not await w.rows()

            await until(done)
        if w.store.worker_table:

            async def seen():
                return await workers(w)

            await until(seen)
    return sent


def shape(sql):
    """A statement without its values."""
    sql = re.sub(r"'(?:[^']|'')*'|\b[0-9.]+\b", "?", sql)
    return re.sub(r"\s+", " ", sql)


@pytest.mark.parametrize("outcome", [ACK, Terminal("rejected")], ids=["ack", "letter"])
def test_statements_per_message_are_the_same_with_and_without_desk_tables(
    database, outcome, request
):
    """Without desk tables a worker pays nothing; with them, one row in ten seconds."""
    count, found = 12, {}

    async def body(w):
        found[bool(w.store.worker_table)] = await statements_of(w, [outcome] * count)

    run_desk(database, body, beside=False)
    run_desk(request.getfixturevalue("another"), body)
    absent, present = found[False], found[True]
    assert not [sql for _, sql in absent if DESK.search(sql)]
    told = {key: n for key, n in present.items() if DESK.search(key[1])}
    # at once, when it stops, and once to forget old rows
    assert 1 <= sum(told.values()) <= 3
    assert {line for line, _ in told} <= {"letters", "file"}
    for sent in (absent, present):
        writes = [
            (line, n)
            for (line, sql), n in sent.items()
            if re.match(r"(with d as \()?delete from ", sql, re.IGNORECASE) and not DESK.search(sql)
        ]
        assert sum(n for _, n in writes) == count
        if database.is_postgres:
            (line,) = {line for line, _ in writes}
            assert line == ("settles" if outcome is ACK else "letters")
            others = [
                n for (line, sql), n in sent.items() if line != "claims" and not DESK.search(sql)
            ]
            assert sum(others) == count
    hot = {shape(sql) for _, sql in present if not DESK.search(sql)}
    assert hot == {shape(sql) for _, sql in absent}


@pytest.fixture
def another(database, tmp_path, request):
    """A second database of the same kind."""
    from tests.conftest import Database, _server

    if not database.is_postgres:
        yield Database(f"sqlite+aiosqlite:///{tmp_path / 'another.db'}")
        return
    name = f"{database.schema}b"
    _server(f"CREATE SCHEMA {name}")
    settings = {"server_settings": {"search_path": name, "application_name": name}}
    yield Database(database.url, name, settings)
    _server(f"DROP SCHEMA {name} CASCADE")


def test_old_rows_go_in_bites_and_live_ones_stay(database):
    async def body(w):
        table, now = w.tables["worker"], await w.now()
        old = [{"instance": f"o{n}", "seen_at": now - timedelta(days=31)} for n in range(150)]
        kept = [{"instance": f"k{n}", "seen_at": now - timedelta(days=29)} for n in range(3)]
        rows = [row | {"started_at": row["seen_at"], "report": {}} for row in (*old, *kept)]
        async with w.engine.begin() as connection:
            await connection.execute(insert(table), rows)
        assert await w.store.forget_workers(TIMEOUT) == 100
        assert await w.store.forget_workers(TIMEOUT) == 50
        assert await w.store.forget_workers(TIMEOUT) == 0
        assert {row.instance for row in await workers(w)} == {"k0", "k1", "k2"}

    run_desk(database, body)


def test_the_row_is_one_whatever_is_in_it(database):
    """Hostile names and versions are values; the start is kept, the rest is the newest."""

    async def body(w):
        name = "pod'; drop table outbox; -- \u202e\x1b[31m"
        for seconds, told in ((5.0, {"queues": ['"\\']}), (25.0, {"queues": ["é'"]})):
            await w.store.report(WorkerReport(name, "v'1", seconds, told), TIMEOUT)
        (row,) = await workers(w)
        assert (row.instance, row.version, row.report) == (name, "v'1", {"queues": ["é'"]})
        started = (row.seen_at - row.started_at).total_seconds()
        assert 5 <= started < 20
        (seen,) = await w.desk.workers(ANN)
        assert seen.queues == {"é'"}

    run_desk(database, body)


@pytest.mark.parametrize("harm", ["dropped", "locked", "column"])
def test_trouble_with_the_table_hurts_no_delivery(database, harm, caplog):
    """Dropped, drifted or locked while the worker runs: told once, and messages go on."""
    if harm == "locked" and not database.is_postgres:
        pytest.skip("SQLite locks no tables: a lock holds up every write, ours or not")

    async def body(w):
        reports = 0

        async def report(worker, timeout, plain=w.store.report):
            nonlocal reports
            reports += 1
            await plain(worker, timeout)

        w.store.report = report
        harms = {
            "dropped": "drop table outbox_worker",
            "column": "alter table outbox_worker drop column version",
            "locked": "lock table outbox_worker in access exclusive mode",
        }
        async with w.engine.connect() as connection:
            await connection.execute(text(harms[harm]))
            if harm != "locked":
                await connection.commit()

            async def deliver(delivery):
                return Terminal("rejected") if delivery.id % 2 else ACK

            settings = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.1}
            async with engine_over(w.store, ("h", "q", deliver, settings)) as engine:
                for _ in range(20):
                    await w.add()
                for n in range(1, 4):
                    engine._reporter.changed()
                    engine._letters.ring()

                    async def tried(n=n):
                        return reports >= n

                    await until(tried)

                async def done():
                    return not await w.rows() and len(await w.letters()) == 10

                await until(done)
                assert [e for e in engine.events if e[0] == "lease_lost"] == []
            await connection.rollback()

    with caplog.at_level(logging.WARNING, logger="outlast"):
        run_desk(database, body)
    told = [
        r.getMessage() for r in caplog.records if "worker runs cannot be written" in r.getMessage()
    ]
    assert len(told) == 1
    assert "outbox_worker" in told[0]


def test_the_table_is_found_in_the_schema_of_the_outbox(postgres):
    """By name, at the start, without a keyword; also beside a broker without dead letters."""

    async def body(engine):
        from outlast.stores.postgres.store import PostgresStore

        metadata = MetaData(schema=f"{postgres.schema}")
        outbox = make_outbox_table(metadata, 'Weird "box')
        tables = make_operations_tables(metadata, 'Weird "box')
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        store = PostgresStore(engine, outbox)
        await store.open(lambda _queue: None)
        assert "_worker" in store.worker_table
        await store.report(WorkerReport("a:1", None, 0.0, {"queues": []}), TIMEOUT)
        await store.close()
        async with engine.connect() as connection:
            count = select(func.count()).select_from(tables.worker)
            assert (await connection.execute(count)).scalar_one() == 1

    postgres.run(body)


def test_without_the_table_no_worker_is_looked_for_again(sqlite):
    async def body(engine):
        from outlast.stores.sqlite.store import SqliteStore

        metadata = MetaData()
        outbox, dlq = make_outbox_table(metadata), make_dlq_table(metadata)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        store = SqliteStore(engine, outbox, dlq)
        await store.open(lambda _queue: None)
        assert store.worker_table is None
        await store.close()

    sqlite.run(body)
