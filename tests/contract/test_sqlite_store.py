"""What only the SQLite store has to keep: one file, one writer, one thread, many processes."""

import asyncio
import inspect
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiosqlite
import pytest
from sqlalchemy import MetaData, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, StaticPool

from outlast.model.dead_letter import Letter
from outlast.model.delivery import ALL_SETTLED, Attempt, RetryEntry
from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    OutcomeUnknown,
    OutlastError,
    RowLocked,
    RowRefused,
    SchemaError,
    TryLater,
    UnsupportedDatabase,
)
from outlast.model.failure import Failure
from outlast.model.look import Expired, WalkStep, Want
from outlast.stores.sqlite import SqliteStore, opening, upstream
from outlast.stores.sqlite.failures import translate
from outlast.tables import make_dlq_table, make_outbox_table
from outlast.tables.instant import SQLITE_NOW, from_text, to_text

WAIT = 10.0
DUE = "2026-01-01 00:00:00.000000"


def stands(store):
    """Whether its one connection is open."""
    return store._connection is not None and store._connection.is_open


class Lab:
    """One database file, the tables, and a plain connection beside the store."""

    def __init__(self, path: Path, *, schema: str | None = None, name: str = "outbox") -> None:
        self.path = path
        self.schema = schema
        metadata = MetaData(schema=schema)
        self.outbox = make_outbox_table(metadata, name)
        self.dlq = make_dlq_table(metadata, f"{name}_dlq")
        self.metadata = metadata
        self.engine = self.make_engine()

    def make_engine(self, **options: Any) -> AsyncEngine:
        return create_async_engine(f"sqlite+aiosqlite:///{self.path}", **options)

    async def create(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(self.metadata.create_all)

    def store(self) -> SqliteStore:
        return SqliteStore(self.engine, self.outbox, self.dlq)

    @asynccontextmanager
    async def opened(self):
        store = self.store()
        await store.open(lambda _: None)
        try:
            yield store
        finally:
            await store.close()

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(text, values).fetchall()

    def insert(self, queue: str = "q", *, count: int = 1, due: str = DUE, token: str | None = None):
        rows = [
            (queue, b"{}", '{"a": "b"}', due, token, None if token is None else due)
            for _ in range(count)
        ]
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany(
                "INSERT INTO outbox (queue, payload, headers, next_attempt_at, acquired_token, "
                "acquired_at) VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )

    def count(self, table: str = "outbox") -> int:
        return self.sql(f"SELECT count(*) FROM {table}")[0][0]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "app.db")


def run(lab: Lab, body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await lab.create()
            await body()
        finally:
            await lab.engine.dispose()

    asyncio.run(main())


async def claim(store: SqliteStore, limit: int = 10, queue: str = "q", token: UUID | None = None):
    return await store.claim([Want(queue, limit)], limit, token or uuid4(), WAIT)


async def claim_pairs(store: SqliteStore, limit: int = 10, queue: str = "q"):
    return [(row.id, row.token) for row in (await claim(store, limit, queue)).rows]


async def threads_ended() -> None:
    """aiosqlite does not wait for the thread of a connection that could not be opened, and the
    thread reports to an event loop that may be closed by then."""
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:
            await asyncio.to_thread(thread.join, WAIT)


def letter(pair: tuple[int, UUID], **changes: Any) -> Letter:
    return replace(
        Letter(
            id=pair[0],
            token=pair[1],
            reason="rejected",
            failure=Failure(
                exception_type="E",
                last_exception="E()",
                error_type="E",
                error_message="broken",
                stack_trace="here",
                category="UNKNOWN",
                fingerprint="v1:0",
                http_status=503,
            ),
            attempts_count=2,
            first_failure_at=datetime(2026, 1, 1, tzinfo=UTC),
            last_failure_at=datetime(2026, 1, 2, 0, 0, 0, 5, tzinfo=UTC),
            message_id="m",
            event_type="t",
            subscriber="s",
            consumer_instance="i",
            consumer_version="1",
        ),
        **changes,
    )


# -- opening


def test_the_connection_is_set_up_and_the_applications_are_not(lab: Lab) -> None:
    """WAL, NORMAL and a bounded wait for the lock; none of it on the application's connections."""

    async def body() -> None:
        async with lab.opened() as store:

            def settings(hop) -> list[Any]:
                names = ("journal_mode", "synchronous", "busy_timeout")
                return [hop.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

            assert await store._run(settings, WAIT) == ["wal", 1, 300]
            async with lab.engine.connect() as connection:
                found = await connection.exec_driver_sql("PRAGMA synchronous")
                assert found.scalar() == 2
                found = await connection.exec_driver_sql("PRAGMA busy_timeout")
                assert found.scalar() == 5000

    run(lab, body)


def test_an_old_sqlite_is_refused_with_both_versions(lab: Lab, monkeypatch) -> None:
    """The error names what is there, what is needed and where it comes from."""
    monkeypatch.setattr(opening, "SQLITE_MIN", (99, 35, 0))

    async def body() -> None:
        with pytest.raises(UnsupportedDatabase) as caught:
            await lab.store().open(lambda _: None)
        text = str(caught.value)
        assert sqlite3.sqlite_version in text
        assert "99.35" in text
        assert "Python" in text

    run(lab, body)


def test_the_least_version_is_the_first_with_returning() -> None:
    opening.check_version("3.35.0")
    with pytest.raises(UnsupportedDatabase, match=r"3\.34\.1.*3\.35"):
        opening.check_version("3.34.1")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite+aiosqlite://",
        "sqlite+aiosqlite:///:memory:",
        "sqlite+aiosqlite:///file::memory:?cache=shared&uri=true",
        "sqlite+aiosqlite:///file:shared?mode=memory&cache=shared&uri=true",
        "sqlite+aiosqlite:///file:/virtual?vfs=memdb&uri=true",
    ],
)
@pytest.mark.filterwarnings("ignore:Selection of the StaticPool")
def test_a_database_in_memory_is_refused(url: str, lab: Lab) -> None:
    async def body() -> None:
        engine = create_async_engine(url)
        store = SqliteStore(engine, lab.outbox, lab.dlq)
        with pytest.raises(UnsupportedDatabase, match=r"in memory.*sqlite\+aiosqlite:///path"):
            await store.open(lambda _: None)
        assert not stands(store)
        await engine.dispose()

    asyncio.run(body())


def test_another_driver_is_refused(lab: Lab) -> None:
    pytest.importorskip("asyncpg")

    async def body() -> None:
        store = SqliteStore(create_async_engine("postgresql+asyncpg://h/d"), lab.outbox, None)
        with pytest.raises(UnsupportedDatabase, match=r"postgresql\+asyncpg.*aiosqlite"):
            await store.open(lambda _: None)

    asyncio.run(body())


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "absent" / "app.db")

    async def body() -> None:
        with pytest.raises(RuntimeError, match=r"absent/app\.db.*unable to open"):
            await lab.store().open(lambda _: None)
        await threads_ended()

    asyncio.run(body())


def test_a_file_that_is_no_database_is_told(lab: Lab) -> None:
    lab.path.write_bytes(b"no database at all " * 100)

    async def body() -> None:
        with pytest.raises(RuntimeError, match=r"app\.db.*not a database"):
            await lab.store().open(lambda _: None)

    asyncio.run(body())


def test_a_missing_table_or_column_is_named_and_nothing_is_created(lab: Lab) -> None:
    async def body() -> None:
        lab.sql("ALTER TABLE outbox_dlq RENAME COLUMN failure_reason TO something")
        with pytest.raises(SchemaError, match=r"'outbox_dlq'.*failure_reason"):
            await lab.store().open(lambda _: None)
        lab.sql("DROP TABLE outbox_dlq")
        with pytest.raises(SchemaError, match="'outbox_dlq' does not exist"):
            await lab.store().open(lambda _: None)
        lab.sql("ALTER TABLE outbox RENAME COLUMN deliveries_count TO something")
        with pytest.raises(SchemaError, match=r"'outbox'.*deliveries_count"):
            await lab.store().open(lambda _: None)
        lab.sql("DROP TABLE outbox")
        with pytest.raises(SchemaError, match="'outbox' does not exist"):
            await lab.store().open(lambda _: None)
        assert not lab.sql("SELECT 1 FROM sqlite_master WHERE name = 'outbox'")

    run(lab, body)


def test_tables_in_two_files_are_refused(lab: Lab) -> None:
    """A crash commits one of two files in WAL mode, and that would lose the message."""
    other = make_dlq_table(MetaData(schema="archive"), "outbox_dlq")
    with pytest.raises(UnsupportedDatabase, match="one database file"):
        SqliteStore(lab.engine, lab.outbox, other)


@pytest.mark.parametrize("pool", [NullPool, StaticPool, None])
def test_the_connection_is_none_of_the_pools(lab: Lab, pool) -> None:
    """Whatever the pool, also when handlers hold all of it."""

    async def body() -> None:
        engine = lab.make_engine(**({"poolclass": pool} if pool else {"pool_size": 1}))
        lab.insert()
        async with engine.connect():
            store = SqliteStore(engine, lab.outbox, lab.dlq)
            await store.open(lambda _: None)
            assert len((await claim(store)).rows) == 1
            await store.close()
        await engine.dispose()

    run(lab, body)


def test_quoted_names_in_an_attached_file(tmp_path: Path) -> None:
    """The application's connect events are ours too; names go through the preparer."""
    lab = Lab(tmp_path / "main.db", schema='my "queue" file', name='order "out" box')
    attached = tmp_path / "attached.db"

    @event.listens_for(lab.engine.sync_engine, "connect")
    def attach(connection, _record) -> None:
        connection.execute(f"""ATTACH '{attached}' AS "my ""queue"" file" """)

    async def body() -> None:
        async with lab.engine.begin() as connection:
            await connection.execute(
                lab.outbox.insert(), [{"queue": "q", "payload": b"1"} for _ in range(4)]
            )
        async with lab.opened() as store:
            assert not await store.changed()
            pairs = await claim_pairs(store)
            assert await store.extend(pairs, WAIT) == ALL_SETTLED
            assert await store.ack(pairs[:1], WAIT) == ALL_SETTLED
            assert await store.bury([letter(pairs[1])], WAIT) == ALL_SETTLED
            assert await store.release(pairs[2:], WAIT) == ALL_SETTLED
            async with lab.engine.begin() as connection:
                left = (await connection.execute(lab.outbox.select())).all()
                dead = (await connection.execute(lab.dlq.select())).all()
                assert (len(left), len(dead)) == (2, 1)
                await connection.execute(lab.outbox.delete())
            assert await store.changed()
        with closing(sqlite3.connect(attached)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)

    run(lab, body)


# -- one thread


def test_each_call_is_one_hop(lab: Lab, monkeypatch) -> None:
    """Every call of the protocol costs one visit to the database thread."""
    hops = 0
    original = aiosqlite.Connection._execute

    async def counted(self, *args, **kwargs):
        nonlocal hops
        hops += 1
        return await original(self, *args, **kwargs)

    async def body() -> None:
        nonlocal hops
        lab.insert(count=5)
        async with lab.opened() as store:
            monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
            pairs = await claim_pairs(store)
            attempt = Attempt(1, datetime.now(UTC), datetime.now(UTC))
            calls = [
                store.changed(),
                store.claim([Want("none", 1), Want("q", 1)], 2, uuid4(), WAIT),
                store.read_back(["q"], uuid4(), WAIT),
                store.take_over([Expired(pairs[0][0], 60.0)], uuid4(), WAIT),
                store.look(["q", "r"], [WalkStep("q", 60.0, None, 10)], WAIT),
                store.extend(pairs, WAIT),
                store.ack(pairs[:1], WAIT),
                store.retry([RetryEntry(*pairs[1], 1.0, attempt)], WAIT),
                store.release(pairs[2:3], WAIT),
                store.bury([letter(pair) for pair in pairs[3:]], WAIT),
            ]
            for call in calls:
                hops = 0
                await call
                assert hops == 1, call
            monkeypatch.undo()

    run(lab, body)


def test_the_private_names_are_there() -> None:
    """The installed aiosqlite still has what `upstream` reaches for."""
    assert inspect.iscoroutinefunction(aiosqlite.Connection._execute)
    assert isinstance(aiosqlite.Connection._conn, property)

    async def body() -> None:
        driver = await aiosqlite.connect(":memory:")
        assert isinstance(upstream.raw(driver), sqlite3.Connection)
        assert await upstream.on_thread(driver, threading.get_ident) != threading.get_ident()
        await driver.close()
        with pytest.raises(ValueError):
            upstream.raw(driver)
        with pytest.raises(ValueError):
            await upstream.on_thread(driver, int)
        upstream.leave(driver)

    asyncio.run(body())


class Slow:
    """A DELETE of the outbox that tells when it has begun and then never ends by itself."""

    def __init__(self, lab: Lab) -> None:
        self.begun = threading.Event()
        self.lab = lab

        @event.listens_for(lab.engine.sync_engine, "connect")
        def register(connection, _record) -> None:
            connection.create_function("begun", 0, self._begin)

    def _begin(self) -> None:
        self.begun.set()

    def arm(self) -> None:
        self.lab.sql(
            "CREATE VIEW endless AS WITH RECURSIVE n(i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) AS c FROM n"
        )
        self.lab.sql(
            "CREATE TRIGGER slow AFTER DELETE ON outbox "
            "BEGIN SELECT begun(); SELECT c FROM endless; END"
        )

    def disarm(self) -> None:
        self.lab.sql("DROP TRIGGER slow")


@pytest.mark.parametrize("way", ["timeout", "cancel"])
def test_a_call_that_is_given_up_leaves_no_transaction(lab: Lab, way: str) -> None:
    """Interrupted, rolled back, the lock free, the thread alive, and nothing landed."""
    slow = Slow(lab)

    async def body() -> None:
        lab.insert(count=3)
        async with lab.opened() as store:
            pairs = await claim_pairs(store)
            slow.arm()
            if way == "timeout":
                with pytest.raises(OutcomeUnknown) as caught:
                    await store.ack(pairs, 0.2)
                assert caught.value.timed_out
                assert slow.begun.is_set()
            else:
                task = asyncio.create_task(store.ack(pairs, WAIT))
                await asyncio.to_thread(slow.begun.wait, WAIT)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert stands(store)
            found, final = await store.read_back(["q"], pairs[0][1], WAIT)
            assert len(found.rows) == 3
            assert final
            # DDL needs the write lock: it would fail beside an open transaction
            slow.disarm()
            assert await store.ack(pairs, WAIT) == ALL_SETTLED
        assert lab.count() == 0

    run(lab, body)


def test_a_call_given_up_in_the_queue_never_runs(lab: Lab) -> None:
    """It waits behind a slow one, and must not take rows for a caller that is gone."""
    slow = Slow(lab)

    async def body() -> None:
        lab.insert(count=2)
        async with lab.opened() as store:
            pairs = await claim_pairs(store, 1)
            slow.arm()
            first = asyncio.create_task(store.ack(pairs, WAIT))
            await asyncio.to_thread(slow.begun.wait, WAIT)
            with pytest.raises(OutcomeUnknown):
                await store.claim([Want("q", 5)], 5, uuid4(), 0.05)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            slow.disarm()
            assert len((await claim(store)).rows) == 1

    run(lab, body)


def test_closing_ends_a_call_that_never_ends(lab: Lab) -> None:
    """`close` is bounded and raises nothing, also twice and unopened."""
    slow = Slow(lab)

    async def body() -> None:
        lab.insert()
        store = lab.store()
        await store.close()
        await store.open(lambda _: None)
        pairs = await claim_pairs(store)
        slow.arm()
        task = asyncio.create_task(store.ack(pairs, WAIT))
        await asyncio.to_thread(slow.begun.wait, WAIT)
        await asyncio.wait_for(store.close(), WAIT)
        await store.close()
        with pytest.raises(OutlastError):
            await task
        assert not stands(store)
        with pytest.raises(Disconnected):
            await store.ack(pairs, WAIT)
        slow.disarm()
        assert lab.count() == 1

    run(lab, body)


# -- one writer


@asynccontextmanager
async def locked(lab: Lab):
    with closing(sqlite3.connect(lab.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def test_a_busy_database_is_row_locked_and_recovers(lab: Lab) -> None:
    """F-J05: nothing landed, the connection stands, and the next call works."""

    async def body() -> None:
        lab.insert(count=4)
        async with lab.opened() as store:
            pairs = await claim_pairs(store, 3)
            attempt = Attempt(1, datetime.now(UTC), datetime.now(UTC))
            async with locked(lab):
                for call in (
                    claim(store),
                    store.take_over([Expired(pairs[0][0], 60.0)], uuid4(), WAIT),
                    store.extend(pairs, WAIT),
                    store.ack(pairs, WAIT, skip=True),
                    store.retry([RetryEntry(*pairs[0], 1.0, attempt)], WAIT),
                    store.release(pairs, WAIT),
                    store.bury([letter(pairs[0])], WAIT),
                ):
                    with pytest.raises(RowLocked) as caught:
                        await call
                    assert caught.value.state == "SQLITE_BUSY"
                assert stands(store)
                # reading needs no lock, and a claim of nothing asks for none
                await store.look(["q"], [WalkStep("q", 60.0, None, 10)], WAIT)
                await store.read_back(["q"], uuid4(), WAIT)
                assert not (await claim(store, queue="empty")).rows
            assert await store.bury([letter(pairs[0])], WAIT) == ALL_SETTLED
            assert await store.ack(pairs[1:], WAIT) == ALL_SETTLED
            assert len((await claim(store)).rows) == 1

    run(lab, body)


def test_a_store_opens_beside_a_writer(lab: Lab) -> None:
    async def body() -> None:
        async with lab.opened():
            pass
        async with locked(lab), lab.opened() as store:
            await store.look(["q"], [], WAIT)

    run(lab, body)


def test_without_wal_it_warns_and_works(lab: Lab, monkeypatch, caplog) -> None:
    """Somebody holds the file all the time: the mode cannot be switched, claims still work."""
    monkeypatch.setattr(opening, "_WAL_TRIES", 2)

    async def body() -> None:
        lab.insert()
        with closing(sqlite3.connect(lab.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM outbox").fetchall()
            async with lab.opened() as store:
                assert "not in WAL mode" in caplog.text
                reader.execute("ROLLBACK")
                assert len((await claim(store)).rows) == 1
        assert lab.sql("PRAGMA journal_mode") == [("delete",)]

    run(lab, body)


def test_dead_letters_survive_a_power_loss_and_the_rest_is_fast(lab: Lab) -> None:
    """A letter commits with synchronous=FULL in its own transaction; afterwards NORMAL."""
    trace: list[tuple[str, int]] = []

    async def body() -> None:
        lab.insert(count=2)
        async with lab.opened() as store:
            raw = upstream.raw(store._connection._driver)

            def note(statement: str) -> None:
                if statement.startswith(("BEGIN", "COMMIT", "PRAGMA", "ROLLBACK")):
                    trace.append(statement)

            pairs = await claim_pairs(store)
            raw.set_trace_callback(note)
            await store.ack(pairs[:1], WAIT)
            assert trace == ["BEGIN IMMEDIATE", "COMMIT"]
            trace.clear()
            await store.bury([letter(pairs[1])], WAIT)
            assert trace == [
                "PRAGMA main.synchronous=FULL",
                "BEGIN IMMEDIATE",
                "COMMIT",
                "PRAGMA main.synchronous=NORMAL",
            ]
            lab.sql("DROP TABLE outbox_dlq")
            lab.insert()
            pairs = await claim_pairs(store)
            trace.clear()
            with pytest.raises(CannotWrite):
                await store.bury([letter(pairs[0])], WAIT)
            assert trace[-2:] == ["ROLLBACK", "PRAGMA main.synchronous=NORMAL"]

    run(lab, body)


# -- several processes

_WORKER = """
import asyncio, sys
from uuid import uuid4
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine
from outlast.model.errors import RowLocked
from outlast.model.look import Want
from outlast.stores.sqlite import SqliteStore
from outlast.tables import make_outbox_table

async def main():
    engine = create_async_engine("sqlite+aiosqlite:///" + sys.argv[1])
    store = SqliteStore(engine, make_outbox_table(MetaData(), "outbox"), None)
    await store.open(lambda _: None)
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        token = uuid4()
        try:
            rows = (await store.claim([Want("q", 7)], 7, token, 10)).rows
        except RowLocked:
            continue
        if not rows:
            break
        for row in rows:
            print(row.id, row.deliveries_count, flush=False)
        sys.stdout.flush()
        pairs = [(row.id, token) for row in rows if row.id % 2]
        while pairs:
            try:
                assert not (await store.ack(pairs, 10)).lost
                break
            except RowLocked:
                continue
    await store.close()
    await engine.dispose()

asyncio.run(main())
"""


def _start(script: str, path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().strip() == "ready"
    return process


def test_two_processes_share_a_file_and_never_a_lease(lab: Lab) -> None:
    """2,000 rows, two processes: each row is leased once, whoever takes it."""

    async def body() -> None:
        lab.insert(count=2000)

    run(lab, body)
    workers = [_start(_WORKER, lab.path) for _ in range(2)]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    taken = []
    for worker in workers:
        output, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        taken.append([tuple(map(int, line.split())) for line in output.splitlines()])
    leases = [row for rows in taken for row in rows]
    assert len(leases) == 2000
    assert len({row_id for row_id, _ in leases}) == 2000
    assert {deliveries for _, deliveries in leases} == {1}
    assert lab.count() == 1000
    assert lab.sql("PRAGMA integrity_check") == [("ok",)]


_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE outbox SET queue = 'stolen'")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_the_lock_of_a_killed_process_is_gone_with_it(lab: Lab) -> None:
    """The half-done transaction is rolled back and the next claim gets the rows."""

    async def body() -> None:
        lab.insert(count=3)
        async with lab.opened() as store:
            holder = _start(_HOLDER, lab.path)
            with pytest.raises(RowLocked):
                await claim(store)
            os.kill(holder.pid, signal.SIGKILL)
            holder.communicate(timeout=WAIT)
            assert len((await claim(store)).rows) == 3

    run(lab, body)


def test_changed_sees_other_connections_and_not_our_own(lab: Lab) -> None:
    async def body() -> None:
        async with lab.opened() as store:
            assert not await store.changed()
            lab.insert()
            assert await store.changed()
            assert not await store.changed()
            await claim(store)
            assert not await store.changed()

    run(lab, body)


def test_a_closed_connection_comes_back(lab: Lab) -> None:
    """All three lines are one: the first reconnect brings all back, the next is a no-op."""

    async def body() -> None:
        lab.insert()
        async with lab.opened() as store:
            await store._connection._driver.close()
            with pytest.raises(Disconnected):
                await claim(store)
            assert not stands(store)
            await asyncio.gather(*(store.reconnect(line) for line in store.lines))
            connection = store._connection
            assert stands(store)
            await store.reconnect("claims")
            assert store._connection is connection
            # nobody knows what happened meanwhile
            assert await store.changed()
            assert not await store.changed()
            assert len((await claim(store)).rows) == 1

    run(lab, body)


def test_a_reconnect_that_fails_is_disconnected(lab: Lab) -> None:
    async def body() -> None:
        async with lab.opened() as store:
            await store._connection._driver.close()
            with pytest.raises(Disconnected):
                await claim(store)
            for file in lab.path.parent.iterdir():
                file.unlink()
            lab.path.mkdir()
            with pytest.raises(Disconnected, match="unable to open"):
                await store.reconnect("claims")
            assert not stands(store)
            lab.path.rmdir()
        await lab.engine.dispose()
        await threads_ended()

    run(lab, body)


# -- clock and keys


def test_ids_are_never_issued_again(lab: Lab) -> None:
    """Also after the newest row went: a settle that comes late must not hit a stranger."""

    async def body() -> None:
        async with lab.opened() as store:
            seen = []
            for _ in range(3):
                lab.insert(count=2)
                pairs = await claim_pairs(store)
                seen += [row_id for row_id, _ in pairs]
                assert await store.ack(pairs, WAIT) == ALL_SETTLED
            assert seen == sorted(set(seen))
            assert len(seen) == 6

    run(lab, body)


def test_stored_instants_sort_as_time_does(lab: Lab) -> None:
    """Whoever writes: the database's clock, Python, SQLAlchemy; 26 characters, UTC."""
    start = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    instants = [start + timedelta(microseconds=step) for step in (0, 1, 999, 1000, 999999, 1000000)]
    texts = [to_text(instant) for instant in instants]
    assert texts == sorted(texts)
    assert [from_text(text) for text in texts] == instants
    [(now,)] = sqlite3.connect(":memory:").execute(f"SELECT {SQLITE_NOW}").fetchall()
    assert len(now) == len(texts[0]) == 26
    assert now.endswith("000")

    async def body() -> None:
        async with lab.engine.begin() as connection:
            await connection.execute(
                lab.outbox.insert(),
                [{"queue": "q", "payload": b"", "next_attempt_at": at} for at in instants[::-1]],
            )
            await connection.execute(lab.outbox.insert().values(queue="q", payload=b""))
        async with lab.opened() as store:
            pairs = await claim_pairs(store)
            assert [row_id for row_id, _ in pairs] == [6, 5, 4, 3, 2, 1, 7]
            attempt = Attempt(1, instants[1], instants[2])
            await store.retry([RetryEntry(*pairs[0], 0.0, attempt)], WAIT)
            [again] = (await claim(store)).rows
            assert again[8:10] == (instants[1], instants[2])
        columns = "next_attempt_at, created_at, acquired_at, last_attempt_at, first_attempt_at"
        for row in lab.sql(f"SELECT {columns} FROM outbox"):
            assert {len(text) for text in row if text is not None} == {26}

    run(lab, body)


def test_a_delay_beyond_all_years_stays_a_year(lab: Lab) -> None:
    async def body() -> None:
        lab.insert(count=3)
        async with lab.opened() as store:
            pairs = await claim_pairs(store)
            attempt = Attempt(1, datetime.now(UTC), datetime.now(UTC))
            last_day = datetime(9999, 12, 31, 12, tzinfo=UTC) - datetime.now(UTC)
            delays = (1e12, float("inf"), last_day.total_seconds())
            for pair, delay in zip(pairs, delays, strict=True):
                answer = await store.retry([RetryEntry(*pair, delay, attempt)], WAIT)
                assert answer == ALL_SETTLED
            rows = lab.sql("SELECT next_attempt_at FROM outbox")
            assert rows == [("9999-12-31 00:00:00.000000",)] * 3
            assert not (await claim(store)).rows
            # a TTL longer than the calendar is never over
            sight = await store.look([], [WalkStep("q", 1e300, None, 5)], WAIT)
            assert sight.walked[0].expired == ()
            assert not (await store.take_over([Expired(1, 1e300)], uuid4(), WAIT)).rows

    run(lab, body)


def test_rows_that_another_program_wrote_oddly_do_not_stop_a_claim(lab: Lab, caplog) -> None:
    """SQLite checks no types: text payloads, broken headers, bytes that are no text."""

    async def body() -> None:
        odd = [
            ("text", '{"ok": 1}', DUE, DUE),
            (b"\xff", "{broken", DUE, "yesterday"),
            (7, "[1]", "2026-01-01 00:00:00", 5),
            (b"", "null", 12345, None),
        ]
        for payload, headers, due, first in odd:
            lab.sql(
                "INSERT INTO outbox (queue, payload, headers, next_attempt_at, first_attempt_at) "
                "VALUES ('q', ?, ?, ?, ?)",
                payload,
                headers,
                due,
                first,
            )
        lab.sql("UPDATE outbox SET headers = CAST(x'7bff7d' AS TEXT) WHERE id = 2")
        async with lab.opened() as store:
            found = await claim(store)
            rows = {row.id: row for row in found.rows}
            assert [rows[i].payload for i in range(1, 5)] == [b"text", b"\xff", b"7", b""]
            assert [rows[i].headers for i in range(1, 5)] == [{"ok": 1}, None, None, None]
            assert caplog.text.count("no JSON object") == 2
            sight = await store.look([], [WalkStep("q", 60.0, None, 2)], WAIT)
            sight = await store.look([], [WalkStep("q", 60.0, sight.walked[0].after, 9)], WAIT)
            assert sight.walked[0].after is None
            pairs = [(row.id, row.token) for row in found.rows]
            assert await store.bury([letter(pair) for pair in pairs], WAIT) == ALL_SETTLED
            stored = lab.sql("SELECT CAST(headers AS BLOB) FROM outbox_dlq ORDER BY original_id")
            assert [text for (text,) in stored[1:3]] == [b"{\xff}", b"[1]"]

    run(lab, body)


# -- plans


@pytest.mark.parametrize("analysed", ["never", "while empty", "while full"])
def test_hot_statements_read_what_they_need(lab: Lab, analysed: str) -> None:
    """No statement of 20,000 rows scans the table or sorts; each uses its index or its key."""
    statements: list[str] = []

    async def body() -> None:
        if analysed == "while empty":
            lab.sql("ANALYZE")
        async with lab.opened() as store:
            lab.insert(count=10_000)
            lab.insert("other", count=5_000, due="2099-01-01 00:00:00.000000")
            lab.insert("q", count=5_000, token=uuid4().hex)
            if analysed == "while full":
                lab.sql("ANALYZE")
            raw = upstream.raw(store._connection._driver)
            raw.set_trace_callback(statements.append)
            pairs = await claim_pairs(store, 100)
            attempt = Attempt(1, datetime.now(UTC), datetime.now(UTC))
            sight = await store.look(["q"], [WalkStep("q", 60.0, None, 100)], WAIT)
            await store.look([], [WalkStep("q", 60.0, sight.walked[0].after, 100)], WAIT)
            await store.read_back(["q"], pairs[0][1], WAIT)
            await store.take_over([Expired(i, 60.0) for i in range(15_001, 15_101)], uuid4(), WAIT)
            await store.extend(pairs, WAIT)
            await store.ack(pairs[:25], WAIT)
            await store.retry([RetryEntry(*pairs[25], 1.0, attempt)], WAIT)
            await store.release(pairs[50:75], WAIT)
            await store.bury([letter(pair) for pair in pairs[75:77]], WAIT)
            raw.set_trace_callback(None)

    run(lab, body)
    searched: dict[str, set[str]] = {}
    for statement in statements:
        if "outbox" not in statement:
            continue
        plan = [row[3] for row in lab.sql(f"EXPLAIN QUERY PLAN {statement}")]
        assert plan, statement
        for step in plan:
            assert "TEMP B-TREE" not in step, (statement, plan)
            if "outbox" in step:
                assert step.startswith("SEARCH outbox "), (statement, plan)
                searched.setdefault(statement.split()[0], set()).add(step)
    assert any("outbox_pending_idx" in step for step in searched["SELECT"])
    assert any("outbox_leased_idx" in step for step in searched["SELECT"])
    assert any("(queue=? AND next_attempt_at<?)" in step for step in searched["UPDATE"])
    assert searched["DELETE"] == {"SEARCH outbox USING INTEGER PRIMARY KEY (rowid=?)"}
    assert searched["INSERT"] == {"SEARCH outbox USING INTEGER PRIMARY KEY (rowid=?)"}


def test_a_walk_goes_through_its_chunks(lab: Lab) -> None:
    """Keyset by (next_attempt_at, id): every lease once, also when many share their instant."""

    async def body() -> None:
        old = uuid4().hex
        lab.insert(count=7, token=old)
        lab.insert(count=3, due="2026-02-01 00:00:00.000000", token=old)
        lab.insert("other", count=4, token=old)
        async with lab.opened() as store:
            seen: list[int] = []
            after = None
            for _ in range(5):
                sight = await store.look([], [WalkStep("q", 60.0, after, 2)], WAIT)
                [step] = sight.walked
                seen += step.expired
                after = step.after
                assert step.next_expiry_seconds is None
            assert after is None
            assert seen == list(range(1, 11))

    run(lab, body)


def test_the_limit_holds_over_all_queues(lab: Lab) -> None:
    """Each queue its quota, all together the limit, due order in the answer."""

    async def body() -> None:
        for queue in "abc":
            lab.insert(queue, count=4)
        async with lab.opened() as store:
            wanted = [Want("none", 9), Want("a", 3), Want("b", 9), Want("c", 9)]
            found = await store.claim(wanted, 5, uuid4(), WAIT)
            assert [(row.id, row.queue) for row in found.rows] == [
                (1, "a"),
                (2, "a"),
                (3, "a"),
                (5, "b"),
                (6, "b"),
            ]
            assert not (await store.claim(wanted, 0, uuid4(), WAIT)).rows

    run(lab, body)


def test_a_release_never_counts_below_zero(lab: Lab) -> None:
    async def body() -> None:
        lab.insert()
        async with lab.opened() as store:
            pairs = await claim_pairs(store)
            lab.sql("UPDATE outbox SET deliveries_count = 0")
            assert await store.release(pairs, WAIT) == ALL_SETTLED
            assert lab.sql("SELECT deliveries_count FROM outbox") == [(0,)]

    run(lab, body)


def test_a_lease_from_the_future_has_expired(lab: Lab) -> None:
    """The clock was set back: nobody waits for years until the lease is over."""

    async def body() -> None:
        token = uuid4().hex
        lab.insert(token=token)
        lab.sql("UPDATE outbox SET acquired_at = '2090-01-01 00:00:00.000000'")
        async with lab.opened() as store:
            sight = await store.look([], [WalkStep("q", 60.0, None, 5)], WAIT)
            assert sight.walked[0].expired == (1,)
            assert sight.walked[0].next_expiry_seconds is None
            [row] = (await store.take_over([Expired(1, 60.0)], uuid4(), WAIT)).rows
            assert row.acquired_at < datetime(2090, 1, 1, tzinfo=UTC)
            # leased anew, so not expired for anybody else
            assert not (await store.take_over([Expired(1, 60.0)], uuid4(), WAIT)).rows

    run(lab, body)


# -- dead letters


def test_a_letter_has_all_columns(lab: Lab) -> None:
    async def body() -> None:
        lab.insert()
        async with lab.opened() as store:
            [row] = (await claim(store)).rows
            await store.bury([letter((row.id, row.token))], WAIT)
            async with lab.engine.connect() as connection:
                [dead] = (await connection.execute(lab.dlq.select())).mappings()
            now = dead["failed_at"]
            assert abs((now - row.acquired_at).total_seconds()) < 60
            assert dict(dead) == {
                "id": 1,
                "original_id": row.id,
                "queue": "q",
                "payload": b"{}",
                "headers": {"a": "b"},
                "deliveries_count": 1,
                "created_at": row.created_at,
                "failed_at": now,
                "failure_reason": "rejected",
                "last_exception": "E()",
                "timer_id": None,
                "message_id": "m",
                "event_type": "t",
                "subscriber": "s",
                "consumer_instance": "i",
                "consumer_version": "1",
                "fingerprint": "v1:0",
                "owner": None,
                "failure_category": "UNKNOWN",
                "policy_version": None,
                "triage": None,
                "error_type": "E",
                "error_message": "broken",
                "stack_trace": "here",
                "http_status": 503,
                "attempts_count": 2,
                "total_deliveries": 1,
                "revision": 0,
                "replay_count": 0,
                "replays_at_reopen": 0,
                "first_failure_at": datetime(2026, 1, 1, tzinfo=UTC),
                "last_failure_at": datetime(2026, 1, 2, 0, 0, 0, 5, tzinfo=UTC),
                "state_changed_at": now,
                "purge_after": None,
                "state": "open",
                "replayed_as": None,
                "resolution": None,
                "origin": None,
            }

    run(lab, body)


def _peer_dlq(lab: Lab) -> None:
    lab.sql("DROP TABLE outbox_dlq")
    lab.sql(
        "CREATE TABLE outbox_dlq (id INTEGER PRIMARY KEY, original_id BIGINT NOT NULL, "
        "queue VARCHAR NOT NULL, payload BLOB NOT NULL, headers JSON, deliveries_count BIGINT "
        "NOT NULL, created_at DATETIME NOT NULL, failed_at DATETIME NOT NULL, "
        "failure_reason VARCHAR NOT NULL, last_exception VARCHAR)"
    )


def test_a_dead_letter_table_without_our_columns_is_written_as_it_is(lab: Lab) -> None:
    """Found at open."""

    async def body() -> None:
        _peer_dlq(lab)
        lab.insert()
        async with lab.opened() as store:
            pairs = await claim_pairs(store)
            assert await store.bury([letter(pairs[0])], WAIT) == ALL_SETTLED
        assert lab.sql("SELECT original_id, failure_reason FROM outbox_dlq") == [(1, "rejected")]

    run(lab, body)


def test_a_dropped_column_is_named_and_the_rows_stay_leased(lab: Lab) -> None:
    """S0-33: nothing lands, the lease stays, and expiry brings the row back."""

    async def body() -> None:
        lab.insert(count=2)
        async with lab.opened() as store:
            pairs = await claim_pairs(store)
            lab.sql("ALTER TABLE outbox_dlq DROP COLUMN last_exception")
            with pytest.raises(CannotWrite, match=r"outbox_dlq.*last_exception"):
                await store.bury([letter(pair) for pair in pairs], WAIT)
            lab.sql("DROP TABLE outbox_dlq")
            with pytest.raises(CannotWrite, match=r"no such table: outbox_dlq"):
                await store.bury([letter(pair) for pair in pairs], WAIT)
            tokens = lab.sql("SELECT acquired_token FROM outbox")
            assert tokens == [(pairs[0][1].hex,)] * 2
            # acks never name the table
            assert await store.ack(pairs[:1], WAIT) == ALL_SETTLED
            assert stands(store)
            await lab.create()
            assert await store.bury([letter(pairs[1])], WAIT) == ALL_SETTLED

    run(lab, body)


def test_a_letter_that_does_not_fit_refuses_the_group_and_nothing_lands(lab: Lab) -> None:
    async def body() -> None:
        lab.insert(count=2)
        async with lab.opened() as store:
            good, bad = await claim_pairs(store)
            for reason in (None, "\ud800"):
                with pytest.raises(RowRefused) as caught:
                    await store.bury([letter(good), letter(bad, reason=reason)], WAIT)
                assert "\ud800" not in str(caught.value)
            assert (lab.count(), lab.count("outbox_dlq")) == (2, 0)
            assert await store.bury([letter(good)], WAIT) == ALL_SETTLED

    run(lab, body)


def test_one_id_twice_in_a_group_is_settled_by_the_token_that_holds_it(lab: Lab) -> None:
    async def body() -> None:
        lab.insert(count=2)
        async with lab.opened() as store:
            (one, token), (two, _) = await claim_pairs(store)
            stale = uuid4()
            answer = await store.bury([letter((one, stale)), letter((one, token))], WAIT)
            assert answer.lost == ((one, stale),)
            assert (lab.count(), lab.count("outbox_dlq")) == (1, 1)
            pairs = [(two, stale), (two, token), (one, token)]
            assert (await store.extend(pairs, WAIT)).lost == ((two, stale), (one, token))
            assert (await store.ack(pairs, WAIT)).lost == ((two, stale), (one, token))
            assert lab.count() == 0

    run(lab, body)


def test_without_a_dead_letter_table_nothing_is_buried(lab: Lab) -> None:
    async def body() -> None:
        lab.insert()
        store = SqliteStore(lab.engine, lab.outbox, None)
        await store.open(lambda _: None)
        assert not store.has_dead_letters
        pairs = await claim_pairs(store)
        with pytest.raises(CannotWrite, match="no dead-letter table"):
            await store.bury([letter(pairs[0])], WAIT)
        await store.close()
        assert lab.count() == 1

    run(lab, body)


# -- failures


def _error(name: str, text: str = "text") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = getattr(sqlite3, name)
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_error("SQLITE_BUSY"), RowLocked),
        (_error("SQLITE_BUSY_SNAPSHOT"), RowLocked),
        (_error("SQLITE_LOCKED_SHAREDCACHE"), RowLocked),
        (_error("SQLITE_CONSTRAINT_NOTNULL"), RowRefused),
        (_error("SQLITE_MISMATCH"), RowRefused),
        (_error("SQLITE_TOOBIG"), RowRefused),
        (_error("SQLITE_ERROR", "no such table: main.outbox"), CannotWrite),
        (_error("SQLITE_ERROR", "no such column: a"), CannotWrite),
        (_error("SQLITE_ERROR", "table outbox_dlq has no column named a"), CannotWrite),
        (_error("SQLITE_ERROR", "something else"), OutcomeUnknown),
        (_error("SQLITE_FULL"), CannotWrite),
        (_error("SQLITE_IOERR_FSYNC"), CannotWrite),
        (_error("SQLITE_READONLY"), CannotWrite),
        (_error("SQLITE_READONLY_DBMOVED"), Disconnected),
        (_error("SQLITE_CORRUPT"), CannotWrite),
        (_error("SQLITE_NOTADB"), CannotWrite),
        (_error("SQLITE_INTERRUPT"), TryLater),
        (_error("SQLITE_INTERNAL"), OutcomeUnknown),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), Disconnected),
        (ValueError("Connection closed"), Disconnected),
        (ValueError("no active connection"), Disconnected),
        (ValueError("another"), OutcomeUnknown),
        (OverflowError("Python int too large"), RowRefused),
        (RuntimeError("what"), OutcomeUnknown),
    ],
)
def test_each_failure_says_what_is_known(error: Exception, expected: type[Exception]) -> None:
    """4.1: the class decides what the engine does; the text names the table."""
    failure = translate(error, "'outbox'")
    assert type(failure) is expected
    assert "'outbox'" in str(failure)
    assert failure.state == getattr(error, "sqlite_errorname", None)


def test_a_full_disk_cannot_write_and_recovers(lab: Lab) -> None:
    """F-D04: nothing landed; when there is room again the same call works."""

    async def body() -> None:
        lab.insert()
        async with lab.opened() as store:
            pages = lab.sql("PRAGMA page_count")[0][0]

            def bound(count: int) -> Callable[[Any], None]:
                return lambda hop: hop.execute(f"PRAGMA max_page_count={count}").fetchall()

            pairs = await claim_pairs(store)
            await store._run(bound(pages), WAIT)
            huge = letter(pairs[0], failure=Failure(stack_trace="x" * 100_000))
            with pytest.raises(CannotWrite) as caught:
                await store.bury([huge], WAIT)
            assert caught.value.state == "SQLITE_FULL"
            assert (lab.count(), lab.count("outbox_dlq")) == (1, 0)
            await store._run(bound(1_000_000), WAIT)
            assert await store.bury([huge], WAIT) == ALL_SETTLED

    run(lab, body)


def test_headers_of_any_size_come_back(lab: Lab) -> None:
    async def body() -> None:
        headers = {"ключ": "значение " * 1000, "n": [1, {"a": None}]}
        async with lab.engine.begin() as connection:
            await connection.execute(
                lab.outbox.insert().values(queue="q", payload=b"\x00", headers=headers)
            )
        async with lab.opened() as store:
            [row] = (await claim(store)).rows
            assert (row.headers, row.payload) == (headers, b"\x00")
            assert json.loads(json.dumps(row.headers)) == headers

    run(lab, body)
