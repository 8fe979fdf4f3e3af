"""A worker that cannot end a replay: it gives the row back for later, and never drops it."""

import logging
from uuid import uuid4

import pytest
from sqlalchemy import MetaData, insert, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateColumn

from outlast.model.look import Expired
from outlast.model.outcome import ACK, Terminal
from outlast.stores.connect import store_for
from outlast.tables import make_dlq_table
from tests.contract.test_interleavings import PEER_COLUMNS, PEER_SQLITE, engine_over, until
from tests.contract.worlds import TIMEOUT, run_sql

SETTINGS = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2}


@pytest.mark.parametrize("skip", [False, True])
def test_what_is_put_off_is_uncounted_and_due_later(world, skip):
    async def body(w):
        ids = [await w.add() for _ in range(3)]
        rows = (await w.claim()).rows
        pairs = [(row.id, row.token) for row in rows[:2]]
        assert await w.store.postpone(pairs, 3600.0, TIMEOUT, skip=skip) == ((), ())
        for row_id in ids[:2]:
            row = await w.row(row_id)
            assert (row["acquired_token"], row["acquired_at"]) == (None, None)
            assert (row["deliveries_count"], row["attempts_count"]) == (0, 0)
            waits = (row["next_attempt_at"] - row["created_at"]).total_seconds()
            assert 3600 <= waits < 3700
        other = await w.row(ids[2])
        assert (other["acquired_token"], other["deliveries_count"]) == (rows[2].token, 1)
        assert (await w.claim()).rows == []

    world(body)


@pytest.mark.parametrize("skip", [False, True])
def test_the_old_holder_puts_nothing_off(world, skip):
    """S0-32: fenced like every settle."""

    async def body(w):
        row_id = await w.add()
        row = await w.claim_one()
        await w.age_lease(row_id, 61)
        await w.store.take_over([Expired(row_id, 60.0)], uuid4(), TIMEOUT)
        before = await w.row(row_id)
        answer = await w.store.postpone([(row.id, row.token)], 30.0, TIMEOUT, skip=skip)
        assert answer.lost == ((row.id, row.token),)
        assert await w.row(row_id) == before

    world(body)


def test_a_locked_row_is_passed_over_and_still_held(postgres):
    async def body(w):
        row_id = await w.add()
        row = await w.claim_one()
        pair = (row.id, row.token)
        async with w.engine.connect() as connection:
            await connection.execute(text("select 1 from outbox for update"))
            assert (await w.store.postpone([pair], 30.0, TIMEOUT, skip=True)).held == (pair,)
            await connection.rollback()
        assert (await w.store.postpone([pair], 30.0, TIMEOUT, skip=True)).held == ()
        assert (await w.row(row_id))["acquired_token"] is None

    run_sql(postgres, body)


async def plant(w):
    """A letter on its way, and its row."""
    async with w.engine.begin() as connection:
        dead = {
            "original_id": 1,
            "queue": "q",
            "payload": b"order",
            "deliveries_count": 1,
            "failure_reason": "rejected",
            "created_at": (await now(connection)),
        }
        made = insert(w.dlq).values(dead).returning(w.dlq.c.id)
        letter_id = (await connection.execute(made)).scalar_one()
        row = {"queue": "q", "payload": b"order", "headers": {"outlast-replay": letter_id}}
        sent = insert(w.outbox).values(row).returning(w.outbox.c.id)
        row_id = (await connection.execute(sent)).scalar_one()
        await connection.execute(update(w.dlq).values(state="replaying", replayed_as=row_id))
    return letter_id, row_id


async def now(connection):
    from outlast.tables.instant import clock

    return (await connection.execute(select(clock()))).scalar_one()


@pytest.mark.parametrize("end", ["ack", "fail"])
def test_a_worker_without_a_dlq_table_leaves_the_row_to_one_that_has_it(database, end, caplog):
    """Design 3.3: never dropped, not run there, told as an ERROR; the letter ends with it."""

    async def body(w):
        letter_id, row_id = await plant(w)
        ran = []

        async def deliver(delivery):
            ran.append(delivery.id)
            return ACK if end == "ack" else Terminal("rejected")

        blind = store_for(w.engine, w.outbox)
        await blind.open(lambda _queue: None)
        settings = SETTINGS | {"max_deliveries": 1}
        async with engine_over(blind, ("blind", "q", deliver, settings)) as engine:
            plain = await w.add()

            async def put_off():
                row = await w.row(row_id)
                others = [r for r in await w.rows() if r["id"] == plain]
                return not others and row["next_attempt_at"] > row["created_at"]

            await until(put_off)
            row = await w.row(row_id)
            assert (row["deliveries_count"], row["acquired_token"]) == (0, None)
            assert ran == [plain]
            assert engine.is_healthy
        await blind.close()
        (letter,) = await w.letters()
        assert letter["state"] == "replaying"
        ran.clear()
        async with w.engine.begin() as connection:
            await connection.execute(update(w.outbox).values(next_attempt_at=w.outbox.c.created_at))
        async with engine_over(w.store, ("able", "q", deliver, SETTINGS)):

            async def ended():
                return not await w.rows()

            await until(ended)
        assert ran == [row_id]
        (letter,) = await w.letters()
        assert letter["id"] == letter_id
        assert letter["state"] == ("resolved" if end == "ack" else "open")

    with caplog.at_level(logging.ERROR, logger="outlast"):
        run_sql(database, body)
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "no dead-letter table" in told


async def make_peer_table(w):
    async with w.engine.begin() as connection:
        if w.kind == "sqlite":
            await connection.execute(text("drop table outbox_dlq"))
            await connection.execute(text(PEER_SQLITE))
        else:
            for column in w.dlq.columns:
                if column.name not in PEER_COLUMNS:
                    await connection.execute(
                        text(f"alter table outbox_dlq drop column {column.name}")
                    )


def alters(w):
    """What a migration would run, column by column."""
    dialect = postgresql.dialect() if w.kind == "postgres" else sqlite.dialect()
    for column in make_dlq_table(MetaData()).columns:
        if column.name in PEER_COLUMNS:
            continue
        shape = str(CreateColumn(column).compile(dialect=dialect))
        if w.kind == "sqlite" and column.name.endswith("_at"):
            shape = f"{column.name} DATETIME"
        yield f"alter table outbox_dlq add column {shape}"


@pytest.mark.parametrize("end", ["ack", "fail"])
def test_columns_come_while_the_worker_runs_and_the_next_replay_ends_in_full(
    database, end, caplog, monkeypatch
):
    """Design 3.1: found out at start, and again when a claimed row carries a replay header."""
    from outlast.engine import guard

    monkeypatch.setattr(guard, "_SOON", 0.05)
    monkeypatch.setattr(guard, "RECHECK_SECONDS", 0.2)
    monkeypatch.setattr(guard, "POSTPONE_SECONDS", 0.2)

    async def body(w):
        await make_peer_table(w)
        await w.store.close()
        await w.store.open(lambda _queue: None)
        assert not w.store.has_replays
        ran = []

        async def deliver(delivery):
            if delivery.payload == b"plain":
                return Terminal("rejected")
            ran.append(delivery.id)
            return ACK if end == "ack" else Terminal("rejected")

        async with engine_over(w.store, ("h", "q", deliver, SETTINGS)):
            # somebody's copy of the header, while nobody could tell whose it is
            early = await w.add(headers={"outlast-replay": 999}, payload=b"early")

            async def told():
                return "outlast db print" in caplog.text

            await until(told)
            assert ran == []
            steps = list(alters(w))
            for statement in steps[:-1]:
                async with w.engine.begin() as connection:
                    await connection.execute(text(statement))
            assert not w.store.has_replays
            async with w.engine.begin() as connection:
                await connection.execute(text(steps[-1]))
            letter_id, row_id = await plant(w)

            async def ended():
                return not await w.rows()

            await until(ended)
            assert sorted(ran) == [early, row_id]
            letter = next(x for x in await w.letters() if x["id"] == letter_id)
            assert letter["state"] == ("resolved" if end == "ack" else "open")
            assert letter["replayed_as"] is None
            assert len(await w.letters()) == 1 + (end == "fail")
            # what the table has gained is written from now on
            await w.add(payload=b"plain")

            async def buried():
                return [x for x in await w.letters() if bytes(x["payload"]) == b"plain"]

            await until(buried)
            (new,) = await buried()
            assert (new["subscriber"], new["message_id"]) == ("h", str(new["original_id"]))

    with caplog.at_level(logging.WARNING, logger="outlast"):
        run_sql(database, body)
    assert "replays run here" in caplog.text


def test_a_store_knows_no_replays_until_every_column_is_there(database):
    """Half a migration is none: each look asks for all of them."""

    async def body(w):
        await make_peer_table(w)
        await w.store.close()
        await w.store.open(lambda _queue: None)
        steps = list(alters(w))
        for statement in steps:
            await w.store.recheck_letters(TIMEOUT)
            assert not w.store.has_replays
            async with w.engine.begin() as connection:
                await connection.execute(text(statement))
        await w.store.recheck_letters(TIMEOUT)
        assert w.store.has_replays

    run_sql(database, body)


def test_a_table_that_is_gone_brings_no_columns(database):
    async def body(w):
        await make_peer_table(w)
        await w.store.close()
        await w.store.open(lambda _queue: None)
        async with w.engine.begin() as connection:
            await connection.execute(text("drop table outbox_dlq"))
        await w.store.recheck_letters(TIMEOUT)
        assert not w.store.has_replays

    run_sql(database, body)
