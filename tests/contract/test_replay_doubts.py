"""Doubts of a reader about replays, each tried: on every store, or on the real databases."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from faststream import AckPolicy
from faststream.exceptions import StopConsume
from sqlalchemy import MetaData, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast import ConstantRetry, OutboxBroker
from outlast.model.delivery import Attempt
from outlast.model.failure import Failure
from outlast.model.outcome import ACK, Terminal
from outlast.model.replay_pass import Delivered, Failed, Retried
from outlast.model.worker import WorkerReport
from outlast.ops.replaying import ReplayOptions
from outlast.stores.connect import store_for
from outlast.stores.desk.history import Act
from outlast.stores.desk.orphans import settle_orphan
from outlast.stores.desk.shape import find_tables
from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table
from tests.contract.desks import ANN, DeskWorld, run_desk
from tests.contract.test_interleavings import engine_over, until
from tests.contract.test_replay_interleavings import FAST, send, states
from tests.contract.test_replays import one, replaying
from tests.contract.worlds import TIMEOUT, SqlWorld, letter, run_sql


@pytest.mark.parametrize("skip", [False, True])
def test_a_replay_whose_worker_died_each_time_has_an_hour_of_failure(world, skip):
    """Ended unrun, so no attempt says when: the database's clock does, as for a new letter."""

    async def body(w):
        row, letter_id = await replaying(w)
        unrun = letter(row, reason="max_deliveries")
        unrun = replace(unrun, first_failure_at=None, last_failure_at=None)
        await w.store.reopen([Failed(letter_id, unrun)], TIMEOUT, skip=skip)
        found = await one(w, letter_id)
        assert found["state"] == "open"
        assert found["last_failure_at"] is not None
        assert abs(datetime.now(UTC) - found["last_failure_at"]) < timedelta(minutes=1)

    world(body)


ENDS = {"resolve": "resolved", "refresh": "replaying", "reopen": "open"}


def pass_of(how, row, letter_id, error="KeyError"):
    if how == "resolve":
        return Delivered(row.id, row.token, letter_id, "t:1")
    if how == "reopen":
        return Failed(letter_id, letter(row, error_type=error))
    now, failure = datetime.now(UTC), Failure(error_type=error)
    return Retried(row.id, row.token, letter_id, 30.0, Attempt(1, now, now), failure)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("how", ["resolve", "refresh", "reopen"])
@pytest.mark.parametrize("first", [True, False])
def test_one_row_under_two_tokens_in_one_group(world, how, skip, first):
    """S0-32: the living lease settles, whichever comes first; the dead one is lost."""

    async def body(w):
        row, letter_id = await replaying(w)
        stranger = row._replace(token=uuid4())
        pair = [row, stranger] if first else [stranger, row]
        errors = {row.token: "KeyError", stranger.token: "Stale"}
        group = [pass_of(how, each, letter_id, errors[each.token]) for each in pair]
        answer = await getattr(w.store, how)(group, TIMEOUT, skip=skip)
        assert answer == (((stranger.id, stranger.token),), ())
        (found,) = await w.letters()
        assert (found["id"], found["state"]) == (letter_id, ENDS[how])
        assert found["error_type"] == ("ValueError" if how == "resolve" else "KeyError")
        assert len(await w.rows()) == (how == "refresh")

    world(body)


@pytest.mark.parametrize("how", ["resolve", "refresh", "reopen"])
def test_a_note_that_is_written_while_the_replay_settles_is_kept(postgres, how):
    """Waited for, then read again: the letter that it is by now moves, with all that it holds."""

    async def body(w):
        row, letter_id = await replaying(w)
        async with w.engine.connect() as person:
            await person.execute(text("update outbox_dlq set owner = 'ann', total_deliveries = 40"))
            group = [pass_of(how, row, letter_id)]
            settling = asyncio.create_task(getattr(w.store, how)(group, TIMEOUT))

            async def waits():
                async with w.engine.connect() as other:
                    waiting = await other.execute(
                        text("select count(*) from pg_stat_activity where wait_event_type = 'Lock'")
                    )
                    return waiting.scalar_one() or settling.done()

            await until(waits)
            await person.commit()
            assert await settling == ((), ())
        found = await one(w, letter_id)
        assert (found["state"], found["owner"]) == (ENDS[how], "ann")
        assert found["total_deliveries"] == (40 if how == "refresh" else 41)
        assert len(await w.letters()) == 1

    run_sql(postgres, body)


STRANGERS = {
    "outbox_dlq_history": "create table outbox_dlq_history (id integer, what text)",
    "outbox_worker": "create table outbox_worker (name text primary key)",
}


@pytest.mark.parametrize("again", [False, True], ids=["at start", "looked at again"])
@pytest.mark.parametrize("how", ["resolve", "reopen"])
def test_tables_of_somebody_else_under_the_names_of_the_desks(database, how, again):
    """An audit table may be called like our history: it counts as absent, for workers as well."""

    async def body(w):
        async with w.engine.begin() as connection:
            for statement in STRANGERS.values():
                await connection.execute(text(statement))
        await w.store.close()
        await w.store.open(lambda _queue: None)
        if again:
            await w.store.recheck_letters(TIMEOUT)
        assert w.store.worker_table is None
        row, letter_id = await replaying(w)
        answer = await getattr(w.store, how)([pass_of(how, row, letter_id)], TIMEOUT)
        assert answer == ((), ())
        assert (await one(w, letter_id))["state"] == ENDS[how]

    run_sql(database, body)


ODD = 'We"ird %s :x'


def test_tables_with_odd_names(database):
    """Names are quoted in every statement, and nothing in them is a placeholder."""

    async def body(engine: AsyncEngine):
        metadata = MetaData()
        outbox, dlq = make_outbox_table(metadata, ODD), make_dlq_table(metadata, f"{ODD} dlq")
        tables = make_operations_tables(metadata, ODD, f"{ODD} dlq")
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        store = store_for(engine, outbox, dlq)
        await store.open(lambda _queue: None)
        try:
            await store.report(WorkerReport("a:1", None, 0.0, {}), TIMEOUT)
            assert await store.forget_workers(TIMEOUT) == 0
            kind = "postgres" if database.is_postgres else "sqlite"
            w = SqlWorld(engine, store, outbox, dlq, kind)
            for how in ("resolve", "refresh", "reopen"):
                row, letter_id = await replaying(w)
                group = [pass_of(how, row, letter_id)]
                assert await getattr(store, how)(group, TIMEOUT) == ((), ())
            await store.recheck_letters(TIMEOUT)
            assert store.has_replays
            async with engine.connect() as connection:
                told = await connection.execute(select(tables.history.c.kind))
                assert list(told.scalars()) == ["resolved", "replay_failed"]
        finally:
            await store.close()

    database.run(body)


def test_dead_letters_in_another_schema_than_the_outbox(postgres):
    """The desk tables are in the schema of the outbox; letters move wherever they are."""

    async def body(engine: AsyncEngine):
        other = f"{postgres.schema}_dlq"
        async with engine.begin() as connection:
            await connection.execute(text(f"create schema {other}"))
        try:
            await in_two_schemas(engine, postgres.schema, other)
        finally:
            async with engine.begin() as connection:
                await connection.execute(text(f"drop schema {other} cascade"))

    postgres.run(body)


async def in_two_schemas(engine, schema, other):
    metadata, apart = MetaData(schema=schema), MetaData(schema=other)
    outbox, dlq = make_outbox_table(metadata), make_dlq_table(apart)
    history = make_operations_tables(metadata).history
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.run_sync(apart.create_all)
    store = store_for(engine, outbox, dlq)
    await store.open(lambda _queue: None)
    try:
        w = DeskWorld(engine, store, {"outbox": outbox, "dlq": dlq}, "postgres", None)
        letters, _ = await send(w, 2)
        answers = [ACK, Terminal("rejected")]

        async def deliver(_delivery):
            return answers.pop(0)

        async with engine_over(store, ("h", "q", deliver, FAST)):

            async def ended():
                return sorted(await states(w, letters)) == ["open", "resolved"]

            await until(ended)
        async with engine.connect() as connection:
            kinds = await connection.execute(select(history.c.kind).order_by(history.c.id))
            assert sorted(kinds.scalars()) == ["replay_failed", "replayed", "replayed", "resolved"]
    finally:
        await store.close()


async def broker_run(w, handler, *, until_done, **options):
    broker = OutboxBroker(
        w.engine, outbox_table=w.outbox, dlq_table=w.dlq, consumer_instance="t:1", logger=None
    )
    once = ConstantRetry(delay_seconds=1, max_attempts=1)
    settings = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2, "retry_strategy": once}
    broker.subscriber("q", **settings, **options)(handler)
    async with broker:
        await until(until_done)


@pytest.mark.filterwarnings("ignore:AckPolicy")
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize(
    "policy", [AckPolicy.REJECT_ON_ERROR, AckPolicy.NACK_ON_ERROR, AckPolicy.ACK]
)
def test_the_letter_ends_as_the_policy_ends_its_row(database, policy, fails):
    """Under every policy: what takes the row out of the queue moves the letter, once."""

    async def body(w):
        (letter_id,), _ = await send(w)
        ran = []

        async def handle(body: Any) -> None:
            ran.append(body)
            if fails:
                raise KeyError("isbn")

        async def gone():
            return not await w.rows()

        await broker_run(w, handle, until_done=gone, ack_policy=policy)
        found = await w.one(letter_id)
        is_kept = fails and policy is not AckPolicy.ACK
        assert found["state"] == ("open" if is_kept else "resolved")
        assert (len(ran), len(await w.letters())) == (1, 1)
        assert [x.kind for x in await w.told(letter_id)] == [
            "replayed",
            "replay_failed" if is_kept else "resolved",
        ]

    run_desk(database, body)


def test_a_handler_that_stops_its_subscriber_leaves_the_replay_to_others(database):
    """Released, uncounted, still on its way; whoever comes next ends the letter."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)

        handled = []

        async def stops(body: Any) -> None:
            handled.append(body)
            raise StopConsume

        async def released():
            row = await w.row(row_id)
            return handled and (row["acquired_token"], row["deliveries_count"]) == (None, 0)

        await broker_run(w, stops, until_done=released)
        assert await states(w, [letter_id]) == ["replaying"]
        assert await w.desk.reconcile(ANN) == ()

        async def fine(body: Any) -> None:
            pass

        async def resolved():
            return await states(w, [letter_id]) == ["resolved"]

        await broker_run(w, fine, until_done=resolved)
        assert (await w.one(letter_id))["total_deliveries"] == 1

    run_desk(database, body)


def test_a_replay_that_was_delivered_too_often_is_open_again_unrun(database):
    """`max_deliveries` counts the pass alone; the list shows the letter by the hour of its end."""

    async def body(w):
        old = datetime.now(UTC) - timedelta(days=3)
        letter_id = await w.plant(last_failure_at=old, deliveries_count=50)
        (sent,) = (await w.desk.replay(ANN, [letter_id])).results
        async with w.engine.begin() as connection:
            await connection.execute(
                update(w.outbox).where(w.outbox.c.id == sent.row_id).values(deliveries_count=3)
            )
        ran = []

        async def deliver(delivery):
            ran.append(delivery.id)
            return ACK

        async with engine_over(w.store, ("h", "q", deliver, FAST | {"max_deliveries": 3})):

            async def opened():
                return await states(w, [letter_id]) == ["open"]

            await until(opened)
        found = await w.one(letter_id)
        assert ran == []
        assert (found["failure_reason"], found["deliveries_count"]) == ("max_deliveries", 4)
        assert found["last_failure_at"] > old + timedelta(days=2)
        (shown,) = (await w.desk.list(ANN)).letters
        assert shown.id == letter_id

    run_desk(database, body)


def test_a_letter_with_a_timer_goes_beside_a_live_timer_of_that_name(database):
    """The replay carries no timer, so nothing in the queue refuses or swallows it."""

    async def body(w):
        letter_id = await w.plant(timer_id="t-1")
        async with w.engine.begin() as connection:
            await connection.execute(
                insert(w.outbox).values(
                    queue="q",
                    payload=b"live",
                    timer_id="t-1",
                    next_attempt_at=datetime.now(UTC) + timedelta(hours=1),
                )
            )
        (sent,) = (await w.desk.replay(ANN, [letter_id])).results
        assert (await w.row(sent.row_id))["timer_id"] is None

        async def deliver(_delivery):
            return Terminal("rejected")

        async with engine_over(w.store, ("h", "q", deliver, FAST)):

            async def opened():
                return await states(w, [letter_id]) == ["open"]

            await until(opened)
        assert (await w.one(letter_id))["timer_id"] == "t-1"
        assert [r["timer_id"] for r in await w.rows()] == ["t-1"]

    run_desk(database, body)


@pytest.mark.parametrize("end", ["ack", "fail"])
def test_a_pass_to_another_queue_ends_the_letter_of_its_own(database, end):
    async def body(w):
        letter_id = await w.plant()
        assert (await w.desk.replay(ANN, [letter_id], ReplayOptions(to="other"))).replayed == 1

        async def deliver(_delivery):
            return ACK if end == "ack" else Terminal("rejected")

        async with engine_over(w.store, ("h", "other", deliver, FAST)):

            async def ended():
                return not await w.rows()

            await until(ended)
        found = await w.one(letter_id)
        assert (found["state"], found["queue"]) == ("resolved" if end == "ack" else "open", "q")

    run_desk(database, body)


ABSURD = 2**40
"""More than a count of a letter holds; the row's own column does."""


@pytest.mark.parametrize("how", ["recalled", "recalled anew", "folded", "buried", "opened"])
def test_an_absurd_count_keeps_no_letter_from_moving(database, how):
    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        async with w.engine.begin() as connection:
            await connection.execute(update(w.outbox).values(deliveries_count=ABSURD))
            if how == "recalled anew":
                await connection.execute(text("delete from outbox_dlq"))
            if how == "folded":
                await connection.execute(text("delete from outbox"))
        if how.startswith("recalled"):
            (taken,) = await w.desk.outbox_cancel(ANN, [row_id])
            assert taken.outcome == "recalled"
            letter_id = taken.dlq_id
        elif how == "folded":
            link = {"outlast-replay": letter_id}
            await w.plant(original_id=row_id, headers=link, deliveries_count=ABSURD)
            assert [x.end for x in await w.desk.reconcile(ANN)] == ["folded"]
        elif how == "buried":
            await w.store.bury([letter(await w.claim_one())], TIMEOUT)
            letter_id = max(x["id"] for x in await w.letters())
        else:
            await w.store.reopen([Failed(letter_id, letter(await w.claim_one()))], TIMEOUT)
        found = await w.one(letter_id)
        assert (found["state"], found["total_deliveries"]) == ("open", 2**31 - 1)

    run_desk(database, body)


def test_a_row_taken_back_into_a_table_that_was_altered_has_its_times(sqlite):
    """SQLite refuses ADD COLUMN with a clock as default: whoever inserts must say the time."""

    async def body(w):
        (_,), (row_id,) = await send(w)
        async with w.engine.begin() as connection:
            await connection.execute(text("delete from outbox_dlq"))
            for name in ("first_failure_at", "last_failure_at", "state_changed_at"):
                for index in ("latest", "queue_latest", "group", "replaying"):
                    await connection.execute(text(f"drop index if exists outbox_dlq_{index}_idx"))
                await connection.execute(text(f"alter table outbox_dlq drop column {name}"))
                await connection.execute(text(f"alter table outbox_dlq add column {name} DATETIME"))
        (taken,) = await w.desk.outbox_cancel(ANN, [row_id])
        found = await w.one(taken.dlq_id)
        for name in ("failed_at", "last_failure_at", "state_changed_at"):
            assert found[name] is not None, name

    run_desk(sqlite, body)


def test_a_peers_letter_that_was_sent_again_before_anybody_looked(database):
    """The first letter is superseded by it, and the newest pass alone moves a letter."""

    async def body(w):
        (first,), (row_id,) = await send(w)
        async with w.engine.begin() as connection:
            await connection.execute(text("delete from outbox"))
        second = await w.plant(original_id=row_id, headers={"outlast-replay": first})
        (sent,) = (await w.desk.replay(ANN, [second])).results
        row = await w.row(sent.row_id)
        assert row["headers"]["outlast-replay"] == second
        (ended,) = await w.desk.reconcile(ANN)
        assert (ended.dlq_id, ended.end, ended.other) == (first, "superseded", second)

        async def deliver(_delivery):
            return Terminal("rejected")

        async with engine_over(w.store, ("h", "q", deliver, FAST)):

            async def opened():
                return await states(w, [first, second]) == ["resolved", "open"]

            await until(opened)
        assert len(await w.letters()) == 2

    run_desk(database, body)


@pytest.mark.parametrize("how", ["resolve", "reopen", "reopen, sent again"])
def test_a_settle_that_commits_between_look_and_lock_of_a_reconciliation(database, how):
    """Seen without a row, then moved by its worker: it is an orphan no more, and stays as it is."""

    async def body(w):
        (letter_id,), _ = await send(w)
        row = await w.claim_one()
        async with w.engine.connect() as connection:
            tables = await find_tables(connection, w.outbox, w.dlq)
        settle, _, again = how.partition(", ")
        await getattr(w.store, settle)([pass_of(settle, row, letter_id)], TIMEOUT)
        if again:
            assert (await w.desk.replay(ANN, [letter_id])).replayed == 1
        before = await w.one(letter_id)
        async with w.engine.begin() as connection:
            assert await settle_orphan(connection, tables, letter_id, Act("ann")) is None
        assert await w.one(letter_id) == before

    run_desk(database, body)


@pytest.mark.parametrize("commits", [True, False])
def test_a_reconciliation_passes_over_a_letter_that_is_being_settled(postgres, commits):
    """The settle is under way on another connection: whatever becomes of it, it decides."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        async with w.engine.connect() as worker:
            await worker.execute(text("delete from outbox where id = :id"), {"id": row_id})
            await worker.execute(
                text("update outbox_dlq set state = 'resolved', resolution = 'delivered'")
            )
            assert await w.desk.reconcile(ANN, [letter_id]) == ()
            await (worker.commit() if commits else worker.rollback())
        assert await w.desk.reconcile(ANN, [letter_id]) == ()
        assert await states(w, [letter_id]) == ["resolved" if commits else "replaying"]

    run_desk(postgres, body)


def test_a_table_that_is_gone_for_a_moment_costs_no_column(database):
    """A migration may rebuild the table while a replay is looked at: letters stay whole."""

    async def body(w):
        async with w.engine.begin() as connection:
            await connection.execute(text("alter table outbox_dlq rename to away"))
        await w.store.recheck_letters(TIMEOUT)
        async with w.engine.begin() as connection:
            await connection.execute(text("alter table away rename to outbox_dlq"))
        await w.add()
        await w.store.bury([letter(await w.claim_one())], TIMEOUT)
        (found,) = await w.letters()
        assert (found["subscriber"], found["error_type"]) == ("handle", "ValueError")

    run_sql(database, body)


def test_a_pass_that_was_given_back_unrun_counts_for_nothing(database):
    """Claimed and released, or put off: nobody has tried it, so a recall takes the count back."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        row = await w.claim_one()
        await w.store.postpone([(row.id, row.token)], 30.0, TIMEOUT)
        (taken,) = await w.desk.outbox_cancel(ANN, [row_id])
        assert taken.outcome == "recalled"
        assert (await w.one(letter_id))["replay_count"] == 0
        # and one that was tried counts
        (sent,) = (await w.desk.replay(ANN, [letter_id])).results
        row = await w.claim_one()
        await w.store.refresh([pass_of("refresh", row, letter_id)], TIMEOUT)
        await w.desk.outbox_cancel(ANN, [sent.row_id])
        assert (await w.one(letter_id))["replay_count"] == 1

    run_desk(database, body)


def test_a_claim_that_comes_between_look_and_delete_of_a_recall(postgres):
    """The row is locked before it is looked at: the claim passes over it, or the recall sees it."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)

        async def claims():
            return (await w.claim(limit=1)).rows

        for _ in range(20):
            taken, rows = await asyncio.gather(w.desk.outbox_cancel(ANN, [row_id]), claims())
            if taken[0].outcome == "recalled":
                assert rows == []
                assert await states(w, [letter_id]) == ["open"]
                assert await w.rows() == []
                (sent,) = (await w.desk.replay(ANN, [letter_id])).results
                row_id = sent.row_id
                await w.change(letter_id, replay_count=0)
            else:
                assert [row.id for row in rows] == [row_id]
                assert await states(w, [letter_id]) == ["replaying"]
                await w.store.release([(rows[0].id, rows[0].token)], TIMEOUT)

    run_desk(postgres, body)
