"""Purge, restore, mark, what is kept and what is not, and letters that nobody ended."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import insert, select, text, update

from outlast.ops import BadRequest
from outlast.policy.filter_text import parse
from tests.contract.desks import ANN, run_desk

SECRET = b'{"payload": "very-own-bytes"}'


def test_a_purged_letter_is_hidden_and_can_be_restored(database):
    """Purge is soft: state, time to live, a line in the history; restore is a state flip."""

    async def body(w):
        letter_id = await w.plant()
        answer = await w.desk.purge(ANN, [letter_id], reason="spam")
        assert (answer.as_json()["purged"], answer.exit_code) == (1, 0)
        found = await w.one(letter_id)
        assert found["state"] == "discarded"
        kept = found["purge_after"] - await w.now()
        assert timedelta(days=6, hours=23) < kept <= timedelta(days=7)
        assert (await w.desk.list(ANN)).total == 0
        again = await w.desk.purge(ANN, [letter_id])
        assert (again.done, again.failed, again.exit_code) == (0, 1, 1)
        assert "dlq restore" in again.results[0].remedy
        back = await w.desk.restore(ANN, [letter_id])
        assert back.as_json()["restored"] == 1
        found = await w.one(letter_id)
        assert (found["state"], found["purge_after"]) == ("open", None)
        assert [(x.kind, x.reason) for x in await w.told(letter_id)] == [
            ("discarded", "spam"),
            ("restored", None),
        ]

    run_desk(database, body)


def test_a_hard_purge_leaves_no_byte_of_the_message(database):
    """Letter and revisions are gone; the history holds none of it."""

    async def body(w):
        letter_id = await w.plant(payload=SECRET, error_message="very-own-bytes")
        other = await w.plant(payload=b"other")
        async with w.engine.begin() as connection:
            for dlq_id in (letter_id, other):
                await connection.execute(
                    insert(w.tables["revision"]).values(dlq_id=dlq_id, revision=1, payload=SECRET)
                )
        await w.desk.inspect(ANN, letter_id, reveal=True)
        answer = await w.desk.purge(ANN, [letter_id], hard=True, reason="erasure")
        assert answer.done == 1
        assert await w.one(letter_id) is None
        async with w.engine.connect() as connection:
            left = (await connection.execute(select(w.tables["revision"]))).all()
        assert [x.dlq_id for x in left] == [other]
        assert "very-own-bytes" not in repr(await w.told())
        told = (await w.desk.history(ANN, letter_id))[-1]
        assert (told.kind, told.detail["queue"]) == ("purged", "q")

    run_desk(database, body)


def test_a_purge_by_filter_takes_what_was_counted(database):
    """The count of the question is what is purged; without a filter it wants to hear all."""

    async def body(w):
        await w.plant_many(5, queue="a")
        await w.plant_many(2, queue="b")
        on_its_way = await w.plant(queue="a", state="replaying")
        with pytest.raises(BadRequest, match="every letter"):
            await w.desk.purge_all(ANN)
        plan = await w.desk.plan_purge(ANN, parse("queue:a", now=await w.now()))
        await w.plant_many(1, queue="a")
        preview = await w.desk.purge_all(ANN, cursor=plan.cursor, dry_run=True)
        assert (preview.done, preview.dry_run) == (5, True)
        answer = await w.desk.purge_all(ANN, cursor=plan.cursor)
        assert (plan.total, answer.done, answer.skipped) == (5, 5, 0)
        states = sorted((x["queue"], x["state"]) for x in await w.letters())
        assert states == [
            *[("a", "discarded")] * 5,
            ("a", "open"),
            ("a", "replaying"),
            *[("b", "open")] * 2,
        ]
        refused = await w.desk.purge(ANN, [on_its_way])
        assert refused.failed == 1
        with pytest.raises(BadRequest, match="another filter"):
            await w.desk.purge_all(ANN, parse("queue:b", now=await w.now()), cursor=plan.cursor)

    run_desk(database, body, chunk=2)


def test_a_purge_may_need_a_reason(database):
    """Authority and a reason: `require_reason`."""

    async def body(w):
        letter_id = await w.plant()
        with pytest.raises(BadRequest, match="reason"):
            await w.desk.purge(ANN, [letter_id])
        assert (await w.desk.purge(ANN, [letter_id], reason="old")).done == 1

    run_desk(database, body, require_reason=True)


def test_marks(database):
    """Owner, triage, note, review and reopen, each with its line; reopen lifts the limit."""

    async def body(w):
        letter_id = await w.plant(state="escalated", replay_count=3)
        done = await w.desk.mark(
            ANN, [letter_id], reopen=True, owner="bo", triage="consumer bug", note="see 5"
        )
        assert (done.done, done.failed) == (1, 0)
        found = await w.one(letter_id)
        assert (found["state"], found["replays_at_reopen"]) == ("open", 3)
        assert (found["owner"], found["triage"]) == ("bo", "consumer bug")
        kinds = [x.kind for x in await w.told(letter_id)]
        assert kinds == ["reopened", "assigned", "triaged", "noted"]
        assert (await w.desk.replay(ANN, [letter_id])).replayed == 1
        # on its way: notes go on, states do not
        assert (await w.desk.mark(ANN, [letter_id], note="waiting", owner="")).done == 1
        assert (await w.one(letter_id))["owner"] is None
        assert (await w.desk.mark(ANN, [letter_id], review=True)).failed == 1
        assert (await w.one(letter_id))["state"] == "replaying"
        for wrong in ({}, {"note": " "}, {"owner": "x" * 300}, {"reopen": True, "review": True}):
            with pytest.raises(BadRequest):
                await w.desk.mark(ANN, [letter_id], **wrong)

    run_desk(database, body)


def test_what_was_kept_long_enough_is_swept(database):
    """Resolved and discarded letters go when their time is over; open ones never."""

    async def body(w):
        over = await w.now() - timedelta(seconds=5)
        gone = [await w.plant(state=s, purge_after=over) for s in ("resolved", "discarded")]
        kept = [
            await w.plant(state="resolved", resolution="unconfirmed"),
            await w.plant(state="discarded", purge_after=over + timedelta(days=1)),
            await w.plant(),
        ]
        assert await w.desk.sweep(ANN) == 2
        assert sorted(x["id"] for x in await w.letters()) == kept
        assert [x.kind for x in await w.told(gone[0])] == ["expired"]
        assert await w.desk.sweep(ANN) == 0

    run_desk(database, body)


def test_verbs_without_desk_tables_act_and_say_that_nothing_is_recorded(database):
    """Design 3.2: one line says so; history reads as not recorded."""

    async def body(w):
        letter_id = await w.plant()
        notes = await w.desk.notes()
        assert any("no history table" in note for note in notes)
        assert (await w.desk.replay(ANN, [letter_id])).replayed == 1
        (row,) = await w.rows()
        assert (await w.desk.outbox_cancel(ANN, [row["id"]]))[0].outcome == "recalled"
        assert await w.desk.history(ANN, letter_id) is None
        assert (await w.desk.purge(ANN, [letter_id], hard=True)).done == 1
        assert await w.desk.workers(ANN) is None
        waited = await w.desk.wait_for_outcome(ANN, [letter_id], 0)
        assert waited.unserved is None

    run_desk(database, body, beside=False)


async def lose_the_row(w, letter_id):
    (result,) = (await w.desk.replay(ANN, [letter_id])).results
    async with w.engine.begin() as connection:
        await connection.execute(text("delete from outbox"))
    return result.row_id


def test_a_replay_nobody_ended_is_unconfirmed_until_a_person_ends_it(database):
    """Reconciliation: no row, no other letter: resolved, unconfirmed, kept."""

    async def body(w):
        letter_id = await w.plant()
        alive = await w.plant()
        await lose_the_row(w, letter_id)
        await w.desk.replay(ANN, [alive])
        assert (await w.desk.inspect(ANN, letter_id)).outcome_unknown
        assert not (await w.desk.inspect(ANN, alive)).outcome_unknown
        assert "1 replay of unknown outcome" in (await w.desk.list(ANN)).notes
        (ended,) = await w.desk.reconcile(ANN)
        assert (ended.dlq_id, ended.end) == (letter_id, "unconfirmed")
        found = await w.one(letter_id)
        assert (found["state"], found["resolution"]) == ("resolved", "unconfirmed")
        assert (found["purge_after"], found["replayed_as"]) == (None, None)
        waited = await w.desk.wait_for_outcome(ANN, [letter_id], 0)
        assert waited.outcomes[letter_id] == "waiting"
        assert "not known" in waited.notes[letter_id]
        assert await w.desk.reconcile(ANN) == ()
        assert (await w.one(alive))["state"] == "replaying"
        assert (await w.desk.mark(ANN, [letter_id], reopen=True)).done == 1

    run_desk(database, body)


@pytest.mark.parametrize("other_state", ["open", "needs_review"])
def test_a_letter_a_peer_wrote_is_folded_in_or_takes_over(database, other_state):
    """Reconciliation: the same failure must not stand there twice."""

    async def body(w):
        letter_id = await w.plant(payload=b"first", error_type="Old")
        row_id = await lose_the_row(w, letter_id)
        other = await w.plant(
            original_id=row_id,
            headers={"outlast-replay": letter_id},
            payload=b"first",
            state=other_state,
            error_type="New",
            deliveries_count=4,
        )
        stranger = await w.plant(original_id=row_id, headers={"outlast-replay": letter_id + 99})
        (ended,) = await w.desk.reconcile(ANN, [letter_id])
        found = await w.one(letter_id)
        if other_state == "open":
            assert (ended.end, ended.other) == ("folded", other)
            assert (found["state"], found["error_type"]) == ("open", "New")
            assert found["total_deliveries"] == 4
            assert await w.one(other) is None
        else:
            assert (ended.end, ended.other) == ("superseded", other)
            assert (found["state"], found["resolution"]) == ("resolved", f"superseded by {other}")
            assert await w.one(other) is not None
        assert await w.one(stranger) is not None

    run_desk(database, body)


def test_a_lost_replay_can_be_sent_again_at_once(database):
    """`replay` ends what its ids name first: an orphan is no letter on its way."""

    async def body(w):
        letter_id = await w.plant()
        await lose_the_row(w, letter_id)
        answer = await w.desk.replay(ANN, [letter_id])
        assert "unconfirmed" in answer.results[0].reason
        await w.desk.mark(ANN, [letter_id], reopen=True)
        assert (await w.desk.replay(ANN, [letter_id])).replayed == 1

    run_desk(database, body)


def test_reconciliation_goes_on_where_it_stopped(database, monkeypatch):
    """At most so many letters a pass, whether they are orphans or not."""
    from outlast.stores.desk import orphans

    monkeypatch.setattr(orphans, "PASS_MAX", 3)

    async def body(w):
        await w.plant_many(5)
        await w.desk.replay_all(ANN, everything=True)
        async with w.engine.begin() as connection:
            await connection.execute(
                text("delete from outbox where id in (select max(id) from outbox)")
            )
        assert await w.desk.reconcile(ANN) == ()
        assert len(await w.desk.reconcile(ANN)) == 1

    run_desk(database, body)


def test_a_row_is_taken_back_unless_a_worker_holds_it(database):
    """Recall: unleased, or its lease is over; a claimed pass keeps its count."""
    from uuid import uuid4

    from outlast.model.outcome import ACK
    from tests.contract.test_interleavings import engine_over

    async def body(w):
        letter_id = await w.plant()
        (sent,) = (await w.desk.replay(ANN, [letter_id])).results
        claimed = await w.claim_one()
        assert claimed.id == sent.row_id
        (held,) = await w.desk.outbox_cancel(ANN, [sent.row_id])
        assert (held.outcome, held.dlq_id) == ("in_hand", letter_id)
        await w.age_lease(sent.row_id, 61)
        (unknown,) = await w.desk.outbox_cancel(ANN, [sent.row_id])
        assert unknown.outcome == "in_hand"
        desk = w.make_desk(lease_seconds=60)
        (taken,) = await desk.outbox_cancel(ANN, [sent.row_id], reason="stop")
        assert taken.outcome == "recalled"
        found = await w.one(letter_id)
        assert (found["state"], found["replay_count"], found["replayed_as"]) == ("open", 1, None)
        (gone,) = await desk.outbox_cancel(ANN, [sent.row_id])
        assert gone.outcome == "not_found"
        # the worker that comes back settles nothing
        answer = await w.store.ack([(claimed.id, uuid4())], 5.0)
        assert answer.lost

        plain = await w.add()
        (cancelled,) = await desk.outbox_cancel(ANN, [plain])
        assert cancelled.outcome == "cancelled"
        assert await w.rows() == []

        (sent,) = (await w.desk.replay(ANN, [letter_id])).results
        await w.desk.outbox_cancel(ANN, [sent.row_id])
        (sent,) = (await w.desk.replay(ANN, [letter_id])).results
        async with w.engine.begin() as connection:
            await connection.execute(text("delete from outbox_dlq"))
        (saved,) = await w.desk.outbox_cancel(ANN, [sent.row_id])
        assert saved.outcome == "recalled"
        (letter,) = await w.letters()
        assert (letter["id"], letter["message_id"]) == (saved.dlq_id, "1")
        assert (await w.desk.replay(ANN, [saved.dlq_id])).replayed == 1

        late = await w.add(due_in=3600, queue="late")
        assert await w.desk.outbox_run_now(ANN, [late, 10**9]) == {late: True, 10**9: False}

        async def deliver(_delivery):
            return ACK

        async with engine_over(w.store, ("h", "late", deliver, {"max_fetch_interval": 1.0})):
            async with asyncio.timeout(10):
                while any(row["id"] == late for row in await w.rows()):
                    await asyncio.sleep(0.02)

    run_desk(database, body)


def test_a_letter_that_cannot_be_sent_fails_alone(database):
    """One letter's data does not hold up the others of its chunk."""

    async def body(w):
        await w.plant_many(3)
        bad = await w.plant(queue="no" * 10)
        async with w.engine.begin() as connection:
            if w.kind == "postgres":
                rule = "alter table outbox add constraint c check (queue <> 'nononononononononono')"
                await connection.execute(text(rule))
            else:
                await connection.execute(
                    text(
                        "create trigger t before insert on outbox when new.queue = "
                        "'nononononononononono' begin select raise(abort, 'no'); end"
                    )
                )
        answer = await w.desk.replay_all(ANN, everything=True)
        assert (answer.replayed, answer.failed, answer.exit_code) == (3, 1, 1)
        assert [r.dlq_id for r in answer.results if r.outcome == "failed"] == [bad]
        assert (await w.one(bad))["state"] == "open"
        alone = await w.desk.replay(ANN, [bad])
        assert alone.failed == 1

    run_desk(database, body)


def test_a_letter_locked_by_somebody_else_is_skipped(postgres):
    """A bulk replay passes over it; a named one waits a while and says so."""
    from outlast.stores.desk import transactions

    async def body(w):
        letter_id = await w.plant()
        await w.plant_many(2)
        async with w.engine.connect() as other:
            await other.execute(update(w.dlq).where(w.dlq.c.id == letter_id).values(owner="x"))
            bulk = await w.desk.replay_all(ANN, everything=True)
            assert (bulk.replayed, bulk.skipped, bulk.exit_code) == (2, 1, 0)
            one = await w.desk.replay(ANN, [letter_id])
            assert one.results[0].outcome == "skipped"
            await other.rollback()
        assert (await w.desk.replay(ANN, [letter_id])).replayed == 1

    kept, transactions.LOCK_WAIT = transactions.LOCK_WAIT, "100ms"
    try:
        run_desk(postgres, body)
    finally:
        transactions.LOCK_WAIT = kept


def test_a_repeated_request_gets_its_first_answer(database):
    """F-G05: the same id and body run once; another body is refused."""
    from outlast.ops import SCOPES, Actor
    from outlast.ops.requests import RequestDiffers, RequestUnderWay

    async def body(w):
        letter_id = await w.plant()
        actor = Actor("api", SCOPES, "r-1")
        ran = []

        async def run():
            ran.append(1)
            return (await w.desk.replay(actor, [letter_id])).as_json()

        first = await w.desk.once(actor, "replayed", {"ids": [letter_id]}, run)
        again = await w.desk.once(actor, "replayed", {"ids": [letter_id]}, run)
        assert dict(first) == dict(again)
        assert first["replayed"] == 1
        assert len(ran) == 1
        with pytest.raises(RequestDiffers):
            await w.desk.once(actor, "replayed", {"ids": [9]}, run)
        other = Actor("other", SCOPES, "r-1")
        with pytest.raises(ZeroDivisionError):
            await w.desk.once(other, "replayed", {}, fails)
        assert (await w.desk.once(other, "replayed", {}, run))["failed"] == 1
        slow = Actor("slow", SCOPES, "r-2")
        going_on = asyncio.Event()

        async def waits():
            going_on.set()
            await asyncio.sleep(30)

        task = asyncio.create_task(w.desk.once(slow, "replayed", {}, waits))
        await going_on.wait()
        with pytest.raises(RequestUnderWay):
            await w.desk.once(slow, "replayed", {}, run)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await w.desk.once(slow, "replayed", {}, run)

    async def fails():
        return 1 // 0

    run_desk(database, body)


def test_a_wait_names_the_queues_nobody_serves(database):
    """`replay --wait`: a live worker of the queue, or its name."""
    from outlast.ops.replaying import ReplayOptions

    async def body(w):
        served, lost = await w.plant(queue="served"), await w.plant(queue="served")
        async with w.engine.begin() as connection:
            for name, queues in (("w1", ["served"]), ("dead", ["elsewhere"])):
                await connection.execute(
                    insert(w.tables["worker"]).values(instance=name, report={"queues": queues})
                )
            await connection.execute(
                update(w.tables["worker"])
                .where(w.tables["worker"].c.instance == "dead")
                .values(seen_at=await w.now() - timedelta(minutes=5))
            )
        await w.desk.replay(ANN, [served])
        await w.desk.replay(ANN, [lost], ReplayOptions(to="elsewhere"))
        waited = await w.desk.wait_for_outcome(ANN, [served, lost], 0)
        assert waited.unserved == ("elsewhere",)
        assert not waited.is_over

    run_desk(database, body)


def test_the_desk_works_on_another_driver(postgres_psycopg):
    """Any async driver of PostgreSQL will do for the desk."""
    from sqlalchemy import MetaData

    from outlast.ops import Desk
    from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table

    async def main(engine):
        metadata = MetaData()
        dlq = make_dlq_table(metadata)
        outbox = make_outbox_table(metadata)
        make_operations_tables(metadata)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
            await connection.execute(
                insert(dlq).values(
                    original_id=1,
                    queue="q",
                    payload=b"{}",
                    deliveries_count=1,
                    created_at=text("now()"),
                    failure_reason="rejected",
                )
            )
        desk = Desk(engine, outbox, dlq)
        page = await desk.list(ANN, parse("since:1h -body.x:1", now=await _now(engine)))
        assert page.total == 1
        assert (await desk.stats(ANN)).depth == 1
        assert (await desk.groups(ANN)).groups[0].count == 1
        assert (await desk.replay_all(ANN, everything=True)).replayed == 1
        assert (await desk.outbox_list(ANN)).rows[0].state == "replaying"

    async def _now(engine):
        async with engine.connect() as connection:
            return (await connection.execute(text("select now()"))).scalar_one()

    postgres_psycopg.run(main)


def test_a_cancelled_bulk_action_stops_between_two_letters_or_two_chunks(database):
    """Ctrl-C: what was told as done is done, and nothing is half done."""

    async def body(w):
        await w.plant_many(6)
        told = []

        def stop(so_far):
            told.append(so_far.replayed)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await w.desk.replay_all(ANN, everything=True, progress=stop)
        assert told == [2]
        assert len(await w.rows()) == 2
        states = [x["state"] for x in await w.letters()]
        assert states.count("replaying") == 2
        rest = await w.desk.replay_all(ANN, everything=True)
        assert rest.replayed == 4

    run_desk(database, body, chunk=2)


@pytest.mark.parametrize("how", ["autocommit", "begin"])
def test_transactions_hold_whatever_the_engine_is_set_to(database, how):
    """An engine in autocommit mode, or one that sends its own BEGIN: nothing lands by half."""
    from sqlalchemy import event

    async def body(w):
        await w.plant_many(3)
        options = {"isolation_level": "AUTOCOMMIT"} if how == "autocommit" else {}
        engine = database.engine(**options)
        if how == "begin" and w.kind == "sqlite":

            @event.listens_for(engine.sync_engine, "connect")
            def _quiet(connection, _record):
                connection.isolation_level = None

            @event.listens_for(engine.sync_engine, "begin")
            def _begin(connection):
                connection.exec_driver_sql("BEGIN")

        try:
            desks = [w.make_desk(engine), w.make_desk(engine)]
            for desk in desks:
                await desk.list(ANN)
            async with w.engine.begin() as connection:
                # the last write of a chunk fails, after rows and letters
                await connection.execute(text("alter table outbox_dlq_history rename to away"))
            from outlast.model.errors import CannotWrite

            with pytest.raises(CannotWrite):
                await desks[0].replay_all(ANN, everything=True)
            assert await w.rows() == []
            assert {x["state"] for x in await w.letters()} == {"open"}
            async with w.engine.begin() as connection:
                await connection.execute(text("alter table away rename to outbox_dlq_history"))
            both = await asyncio.gather(*(d.replay_all(ANN, everything=True) for d in desks))
            assert sum(answer.replayed for answer in both) == 3
        finally:
            await engine.dispose()

    run_desk(database, body)


def test_a_settle_under_way_is_no_orphan(postgres):
    """The worker's statement deletes the row and moves the letter at once: either or."""

    async def body(w):
        letter_id = await w.plant()
        await w.desk.replay(ANN, [letter_id])
        async with w.engine.connect() as worker:
            await worker.execute(text("delete from outbox"))
            assert await w.desk.reconcile(ANN) == ()
            await worker.execute(
                update(w.dlq).where(w.dlq.c.id == letter_id).values(state="open", replayed_as=None)
            )
            assert await w.desk.reconcile(ANN) == ()
            await worker.commit()
        assert await w.desk.reconcile(ANN) == ()
        assert (await w.one(letter_id))["state"] == "open"

    run_desk(postgres, body)


def test_a_letter_that_came_back_during_a_run_is_not_taken_by_it(database):
    """The boundary is a time, too: what moved since was not counted as it is now."""

    async def body(w):
        await w.plant_many(2)
        plan = await w.desk.plan_replay(ANN, parse("queue:q", now=await w.now()))
        first, last = [x["id"] for x in await w.letters()]
        async with asyncio.timeout(5):
            while await w.now() <= plan_time(plan):
                await asyncio.sleep(0)
        await w.desk.purge(ANN, [last])
        await w.desk.restore(ANN, [last])
        answer = await w.desk.replay_all(ANN, cursor=plan.cursor)
        assert [(r.dlq_id, r.outcome) for r in answer.results] == [(first, "replayed")]
        assert (answer.replayed, answer.skipped) == (1, 1)

    def plan_time(plan):
        from outlast.ops.cursors import run_of

        return run_of(plan.cursor).boundary.at

    run_desk(database, body)


def test_an_orphan_is_looked_at_once_more_under_its_lock(database):
    """Found by a pass, and sent anew before its turn came: it is on its way."""
    from outlast.stores.desk.history import Act
    from outlast.stores.desk.orphans import settle_orphan

    async def body(w):
        letter_id = await w.plant()
        await w.desk.replay(ANN, [letter_id])
        async with w.desk._writing() as at:
            assert await settle_orphan(*at, letter_id, Act("ann")) is None
        assert (await w.one(letter_id))["state"] == "replaying"

    run_desk(database, body)
