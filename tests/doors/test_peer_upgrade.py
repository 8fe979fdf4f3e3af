"""A dead-letter table of faststream-outbox gets its full shape, beside the workers that use it."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, suppress

import asyncpg
import pytest
from sqlalchemy import MetaData, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession

from outlast import NoRetry, OutboxBroker, make_dlq_table, make_outbox_table
from outlast.ops import SCOPES, Actor, Desk, NotRecorded, context
from outlast.ops.replaying import ReplayOptions
from outlast.stores.schema import plan
from tests.doors.test_peer_tables import DLQ, INDEXES, OUTBOX, TIMERS

ANN = Actor("ann", SCOPES)
FAST = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2}

OLD_LETTERS = (
    "INSERT INTO outbox_dlq (original_id, queue, payload, headers, deliveries_count, created_at, "
    "failed_at, failure_reason, last_exception) SELECT n, 'orders', '{\"id\": 1}', "
    "'{\"content-type\": \"application/json\"}', 1, timestamptz '2020-01-01' + n * interval "
    "'1 minute', timestamptz '2020-01-02' + n * interval '1 minute', 'retry_terminal', "
    "'KeyError(''isbn'')' FROM generate_series(1, 40) n"
)
# as its worker does it: the row goes and the letter comes, in one statement with ten columns
PEER_BURIES = (
    "WITH gone AS (DELETE FROM outbox WHERE id = $1 RETURNING id, queue, payload, headers, "
    "deliveries_count, created_at) INSERT INTO outbox_dlq (original_id, queue, payload, headers, "
    "deliveries_count, created_at, failure_reason, last_exception) SELECT id, queue, payload, "
    "headers, deliveries_count, created_at, 'retry_terminal', $2 FROM gone RETURNING id"
)
PEER_PUBLISHES = (
    "INSERT INTO outbox (queue, payload, headers) VALUES ('peer', '{\"id\": 2}', "
    '\'{"content-type": "application/json"}\') RETURNING id'
)


class Peer:
    """A worker of faststream-outbox: statements of its own, prepared before anything changes."""

    def __init__(self, connection):
        self._connection = connection
        self.letters = []
        self.wrote = asyncio.Condition()

    async def run(self):
        publish = await self._connection.prepare(PEER_PUBLISHES)
        bury = await self._connection.prepare(PEER_BURIES)
        while True:
            row_id = await publish.fetchval()
            letter = await bury.fetchval(row_id, "ValueError('boom')")
            async with self.wrote:
                self.letters.append(letter)
                self.wrote.notify_all()

    async def one_more(self, working):
        """Wait for the next letter, or for what ended its work."""
        before = len(self.letters)
        async with asyncio.timeout(30), self.wrote:
            while len(self.letters) == before:
                assert not working.done(), working.exception()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await self.wrote.wait()


class Shop:
    """Our broker on the same tables. Its handler fails until it is mended."""

    def __init__(self, engine):
        metadata = MetaData()
        self.engine = engine
        self.broker = OutboxBroker(
            engine,
            outbox_table=make_outbox_table(metadata),
            dlq_table=make_dlq_table(metadata),
            logger=None,
        )
        self.broken = True

        @self.broker.subscriber("orders", retry_strategy=NoRetry(), **FAST)
        async def handle(body: dict) -> None:
            if self.broken:
                raise KeyError("isbn")

    async def fail_once(self):
        """A letter that our engine writes; its id."""
        newest = "SELECT coalesce(max(id), 0) FROM outbox_dlq WHERE queue = 'orders'"
        before = await one(self.engine, newest)
        async with AsyncSession(self.engine) as session, session.begin():
            await self.broker.publish({"id": 3}, queue="orders", session=session)
        await until(lambda: one(self.engine, f"SELECT ({newest}) > {before}"))
        return await one(self.engine, newest)


async def one(engine, query):
    async with engine.connect() as connection:
        return (await connection.execute(text(query))).scalar_one()


async def until(question):
    async with asyncio.timeout(30):
        while not await question():
            await asyncio.sleep(0.02)


async def plainly(connection, statements):
    for statement in statements:
        await connection.execute(statement)


async def _connect(database):
    return await asyncpg.connect(
        database.dsn, server_settings={"search_path": database.schema}, timeout=10
    )


async def _make_peer_tables(connection, version):
    timer = ", timer_id varchar(255)" if version == "0.19" else ""
    await plainly(connection, [OUTBOX, *INDEXES[version], TIMERS, DLQ.format(timer=timer)])
    await plainly(
        connection,
        ["create index outbox_dlq_queue_failed_idx on outbox_dlq (queue, failed_at)", OLD_LETTERS],
    )


async def look_only(desk, total):
    """What can be done before: everything that looks."""
    page = await desk.list(ANN)
    assert page.total == total
    assert page.letters[0].state is None
    letter = page.letters[0].id
    detail = await desk.inspect(ANN, letter)
    assert "outlast db print" in detail.next_step
    assert sum(group.count for group in (await desk.groups(ANN)).groups) == total
    for acting in (
        desk.replay(ANN, [letter]),
        desk.purge(ANN, [letter]),
        desk.mark(ANN, [letter], owner="bob"),
    ):
        with pytest.raises(NotRecorded) as refused:
            await acting
        assert refused.value.remedy.startswith("outlast db print ")


async def every_verb(desk, shop, letter):
    """What can be done after: fail again, be marked, put away, brought back, sent and resolved."""

    async def state():
        return (await desk.inspect(ANN, letter)).letter.state

    answer = await desk.replay(ANN, [letter], ReplayOptions(reason="to see it fail"))
    assert answer.replayed == 1
    await until(lambda: _is(state, "open"))
    again = (await desk.inspect(ANN, letter)).letter
    assert again.replay_count == 1
    assert again.failed_at.year == 2020
    assert again.last_failure_at > again.failed_at
    await desk.mark(ANN, [letter], owner="bob", note="asked the supplier")
    await desk.purge(ANN, [letter], reason="by mistake")
    assert await state() == "discarded"
    await desk.restore(ANN, [letter])
    assert await state() == "open"
    shop.broken = False
    answer = await desk.replay(ANN, [letter], ReplayOptions(reason="mended"))
    assert answer.replayed == 1
    await until(lambda: _is(state, "resolved"))
    kinds = [entry.kind for entry in await desk.history(ANN, letter)]
    told = ["replayed", "replay_failed", "discarded", "restored", "replayed", "resolved"]
    assert [kind for kind in kinds if kind in told] == told


async def _is(state, wanted):
    return await state() == wanted


@pytest.mark.parametrize("version", ["0.13", "0.19"])
def test_beside_a_running_worker_of_its_own_and_ours(postgres, version, monkeypatch):
    """No letter is refused, old ones keep Failed At, new ones sort, replays go all the way.

    The printed SQL runs statement by statement; between any two both workers write letters. Our
    engine was started before and is not restarted.
    """
    monkeypatch.setattr(plan, "FILL_ROWS", 15)
    monkeypatch.setattr(context, "LOOK_AGAIN_SECONDS", 0.0)

    async def body(engine):
        peer_connection, operator = await _connect(postgres), await _connect(postgres)
        await _make_peer_tables(operator, version)
        desk, peer, shop = Desk(engine), Peer(peer_connection), Shop(engine)
        await look_only(desk, 40)
        working = asyncio.create_task(peer.run())
        try:
            async with shop.broker:
                await peer.one_more(working)
                ours = [await shop.fail_once()]
                statements = await desk.schema_plan(ANN)
                assert sum("UPDATE" in statement for statement in statements) >= 3
                for number, statement in enumerate(statements):
                    await operator.execute(statement)
                    await peer.one_more(working)
                    if number % 5 == 0 or "ALTER TABLE" in statement:
                        ours.append(await shop.fail_once())
                await peer.one_more(working)
                assert not working.done()
                assert await desk.schema_plan(ANN) == ()
                await _letters_are_right(operator, peer, ours)
                newest = (await desk.list(ANN, limit=1)).letters[0]
                assert newest.last_failure_at is not None
                await every_verb(desk, shop, 7)
                working.cancel()
                # also what its worker wrote, before and after; nobody but us serves its queue now
                sent = ReplayOptions(reason="ours now", to="orders")
                for letter in (peer.letters[0], peer.letters[-1], ours[0], ours[-1]):
                    assert (await desk.replay(ANN, [letter], sent)).replayed == 1
                    is_resolved = f"SELECT state = 'resolved' FROM outbox_dlq WHERE id = {letter}"
                    await until(lambda query=is_resolved: one(engine, query))
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await peer_connection.close()
            await operator.close()

    postgres.run(body)


async def _letters_are_right(operator, peer, ours):
    old = await operator.fetch(
        "SELECT * FROM outbox_dlq WHERE failed_at < '2021-01-01' ORDER BY id"
    )
    assert len(old) == 40
    for row in old:
        assert row["failed_at"] == row["first_failure_at"] == row["last_failure_at"]
        assert row["state_changed_at"] == row["failed_at"]
        assert row["state"] == "open"
    lacking = "SELECT count(*) FROM outbox_dlq WHERE first_failure_at IS NULL "
    lacking += "OR last_failure_at IS NULL OR state_changed_at IS NULL"
    assert await operator.fetchval(lacking) == 0
    sorted_ids = await operator.fetch(
        "SELECT id FROM outbox_dlq WHERE queue = 'peer' ORDER BY last_failure_at, id"
    )
    found = [row["id"] for row in sorted_ids]
    # it writes one after the other, so the order of their times is the order of their ids
    assert found == sorted(found)
    assert set(peer.letters) <= set(found)
    written = await operator.fetch("SELECT id FROM outbox_dlq WHERE id = any($1::bigint[])", ours)
    assert len(written) == len(set(ours))


def test_by_psql(postgres):
    """The real program takes what is printed, and a second time there is nothing to print."""
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("psql is not installed")

    async def body(engine):
        operator = await _connect(postgres)
        await _make_peer_tables(operator, "0.19")
        await operator.close()
        desk = Desk(engine)
        script = "\n\n".join(await desk.schema_plan(ANN))
        environment = os.environ | {"PGOPTIONS": f"-csearch_path={postgres.schema}"}
        done = subprocess.run(
            [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", postgres.dsn],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert await desk.schema_plan(ANN) == ()
        assert (await desk.schema_state(ANN)).drift == ()
        same = "SELECT count(*) FROM outbox_dlq WHERE last_failure_at = failed_at"
        assert await one(engine, same) == 40

    postgres.run(body)


LITE = """
CREATE TABLE outbox_dlq (
  id INTEGER NOT NULL PRIMARY KEY, original_id BIGINT NOT NULL, queue VARCHAR(255) NOT NULL,
  payload BLOB NOT NULL, headers JSON, deliveries_count BIGINT NOT NULL,
  created_at DATETIME NOT NULL, failed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
  failure_reason VARCHAR(64) NOT NULL, last_exception VARCHAR, timer_id VARCHAR(255));
CREATE INDEX outbox_dlq_queue_failed_idx ON outbox_dlq (queue, failed_at);
INSERT INTO outbox_dlq (original_id, queue, payload, headers, deliveries_count, created_at,
  failed_at, failure_reason, last_exception)
  WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 40)
  SELECT n, 'orders', CAST('{"id": 1}' AS BLOB), '{"content-type": "application/json"}', 1,
  '2020-01-01 00:00:00', printf('2020-01-02 00:%02d:00', n), 'retry_terminal', 'KeyError'
  FROM s;
"""


@pytest.mark.parametrize("at_once", [False, True], ids=["statements", "script"])
def test_on_sqlite(sqlite, at_once, monkeypatch):
    """A table with the columns of faststream-outbox, by the module that comes with Python."""
    monkeypatch.setattr(plan, "FILL_ROWS", 15)
    monkeypatch.setattr(context, "LOOK_AGAIN_SECONDS", 0.0)
    path = make_url(sqlite.url).database

    def run(script):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            if isinstance(script, str):
                connection.executescript(script)
            else:
                for statement in script:
                    connection.execute(statement).fetchall()

    async def body(engine):
        run(LITE)
        desk = Desk(engine)
        await look_only(desk, 40)
        before = {letter.id: letter.failed_at for letter in (await desk.list(ANN)).letters}
        statements = await desk.schema_plan(ANN)
        run("\n".join(statements) if at_once else statements)
        assert await desk.schema_plan(ANN) == ()
        assert (await desk.schema_state(ANN)).drift == ()
        shop = Shop(engine)
        async with shop.broker:
            letters = (await desk.list(ANN)).letters
            assert {letter.id: letter.latest_failure_at for letter in letters} == before
            # one that is written without the new columns has its place, too
            run(
                "INSERT INTO outbox_dlq (original_id, queue, payload, deliveries_count, "
                "created_at, failure_reason) VALUES (1, 'q', x'7b7d', 1, '2020-01-01', 'rejected');"
            )
            newest = (await desk.list(ANN, limit=1)).letters[0]
            assert newest.queue == "q"
            assert newest.latest_failure_at.year > 2020
            await every_verb(desk, shop, 7)

    sqlite.run(body)


def test_our_engine_was_started_before_the_columns_came_on_sqlite(sqlite):
    """It goes on writing what it knew, and looks again when a replay comes."""
    path = make_url(sqlite.url).database

    async def body(engine):
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(LITE)
        desk, shop = Desk(engine), Shop(engine)
        # the outbox must be there before a broker starts
        async with engine.begin() as connection:
            await connection.run_sync(make_outbox_table(MetaData()).metadata.create_all)
        async with shop.broker:
            before = await shop.fail_once()
            await desk.schema_create(ANN, lambda _title: None)
            after = await shop.fail_once()
            shop.broken = False
            for letter in (7, before, after):
                assert (await desk.replay(ANN, [letter])).replayed == 1
                is_resolved = f"SELECT state = 'resolved' FROM outbox_dlq WHERE id = {letter}"
                await until(lambda query=is_resolved: one(engine, query))

    sqlite.run(body)
