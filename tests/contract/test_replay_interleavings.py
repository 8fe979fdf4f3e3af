"""What others can do to a letter while it is on its way (design 3.3), on the real databases."""

import asyncio
import json

import pytest
from sqlalchemy import event, insert, text, update

from outlast.model.outcome import ACK, Terminal
from outlast.policy.retry import ConstantRetry
from tests.contract.desks import ANN, run_desk
from tests.contract.test_interleavings import engine_over, until

FAST = {
    "min_fetch_interval": 0.05,
    "max_fetch_interval": 0.2,
    "lease_ttl_seconds": 30.0,
    "retry_strategy": ConstantRetry(delay_seconds=600),
}

ENDS = {"ack": "resolved", "retry": "replaying", "fail": "open"}


def ends_with(end, ran):
    async def deliver(delivery):
        ran.append(delivery.id)
        if end == "retry":
            raise KeyError("isbn")
        return ACK if end == "ack" else Terminal("rejected")

    return deliver


async def send(w, count=1):
    """Letters, and the rows they are sent as."""
    letters = [await w.plant(payload=str(n).encode()) for n in range(count)]
    answer = await w.desk.replay(ANN, letters)
    assert answer.replayed == count
    return letters, [result.row_id for result in answer.results]


async def states(w, letters):
    return [(await w.one(letter_id) or {"state": None})["state"] for letter_id in letters]


@pytest.mark.parametrize("end", ENDS)
def test_a_letter_that_a_dba_has_locked_holds_up_itself_alone(postgres, end):
    """Its neighbours end; it ends when the lock is gone; no handler runs twice."""

    async def body(w):
        letters, rows = await send(w, 8)
        ran = []
        async with w.engine.connect() as dba:
            await dba.execute(
                text("select 1 from outbox_dlq where id = :id for update"), {"id": letters[3]}
            )
            async with engine_over(w.store, ("h", "q", ends_with(end, ran), FAST)) as engine:

                async def others_ended():
                    found = await w.letters()
                    shown = [x for x in found if end != "retry" or x["error_type"]]
                    return sum(x["state"] == ENDS[end] for x in shown) == 7

                await until(others_ended)
                assert (await w.one(letters[3]))["state"] == "replaying"
                assert (await w.row(rows[3]))["acquired_token"] is not None
                await dba.rollback()

                async def all_ended():
                    found = await w.one(letters[3])
                    if end == "retry":
                        return found["error_type"] == "KeyError"
                    return found["state"] == ENDS[end]

                await until(all_ended)
                assert engine.is_healthy
                assert not [e for e in engine.events if e[0] == "lease_lost"]
        assert sorted(ran) == rows
        assert len(await w.letters()) == 8
        assert len(await w.rows()) == (8 if end == "retry" else 0)

    run_desk(postgres, body)


@pytest.mark.parametrize("commits", [True, False], ids=["deleted", "rolled back"])
def test_a_letter_that_a_dba_is_deleting_while_its_replay_fails(postgres, commits):
    """Whether the DBA commits or not: one open letter with the bytes, and no row."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        ran = []
        async with w.engine.connect() as dba:
            await dba.execute(text("delete from outbox_dlq"))
            async with engine_over(w.store, ("h", "q", ends_with("fail", ran), FAST)):

                async def handled():
                    return ran

                await until(handled)
                assert len(await w.rows()) == 1
                await (dba.commit() if commits else dba.rollback())

                async def ended():
                    return not await w.rows()

                await until(ended)
        (letter,) = await w.letters()
        assert (letter["state"], bytes(letter["payload"])) == ("open", b"0")
        assert (letter["id"] == letter_id) is not commits
        assert letter["original_id"] == (row_id if commits else 1)
        assert ran == [row_id]

    run_desk(postgres, body)


@pytest.mark.parametrize("end", ["ack", "fail"])
def test_a_header_that_a_handler_copied_to_a_child_moves_no_letter(database, end):
    """The child ends first, while its parent still runs: it is an ordinary message."""

    async def body(w):
        (letter_id,), (parent,) = await send(w)
        child_ended, ran = asyncio.Event(), []

        async def handler(delivery):
            ran.append(delivery.id)
            if delivery.id != parent:
                return ACK if end == "ack" else Terminal("rejected")
            async with w.engine.begin() as connection:
                # by raw SQL: `publish` refuses the header
                await connection.execute(
                    insert(w.outbox).values(
                        queue="q", payload=b"child", headers=dict(delivery.headers)
                    )
                )
            await child_ended.wait()
            return ACK

        async with engine_over(w.store, ("h", "q", handler, FAST | {"max_workers": 2})):

            async def only_the_parent():
                return len(ran) == 2 and [r["id"] for r in await w.rows()] == [parent]

            await until(only_the_parent)
            assert (await w.one(letter_id))["state"] == "replaying"
            assert (await w.one(letter_id))["replayed_as"] == parent
            child_ended.set()

            async def resolved():
                return (await w.one(letter_id))["state"] == "resolved"

            await until(resolved)
        others = [x for x in await w.letters() if x["id"] != letter_id]
        assert [bytes(x["payload"]) for x in others] == ([b"child"] if end == "fail" else [])
        assert await w.desk.reconcile(ANN) == ()

    run_desk(database, body)


async def peer(w, row_id, how):
    """A worker of faststream-outbox: it knows ten columns and no replay."""
    copied = "id, queue, payload, headers, deliveries_count, created_at"
    async with w.engine.begin() as connection:
        row = (
            await connection.execute(
                text(f"delete from outbox where id = :id returning {copied}"), {"id": row_id}
            )
        ).one()
        if how == "fail":
            values = dict(row._mapping) | {"failure_reason": "retry_terminal"}
            headers = values["headers"]
            values["headers"] = headers if isinstance(headers, str) else json.dumps(headers)
            cast = "cast(:headers as jsonb)" if w.kind == "postgres" else ":headers"
            await connection.execute(
                text(
                    "insert into outbox_dlq (original_id, queue, payload, headers, "
                    "deliveries_count, created_at, failure_reason, last_exception) values "
                    f"(:id, :queue, :payload, {cast}, :deliveries_count + 1, :created_at, "
                    ":failure_reason, 'OSError(''peer'')')"
                ),
                values,
            )


def test_a_peers_worker_that_fails_a_replayed_row_leaves_one_open_letter(database):
    """Reconciliation folds the peer's letter in; our own worker beside it ends its rows in full."""

    async def body(w):
        (theirs, ours), (their_row, our_row) = await send(w, 2)
        await peer(w, their_row, "fail")
        ran = []
        async with engine_over(w.store, ("h", "q", ends_with("ack", ran), FAST)):

            async def ended():
                return not await w.rows()

            await until(ended)
        assert ran == [our_row]
        assert await states(w, [theirs, ours]) == ["replaying", "resolved"]
        assert len(await w.letters()) == 3
        (folded,) = await w.desk.reconcile(ANN)
        assert (folded.dlq_id, folded.end) == (theirs, "folded")
        assert await states(w, [theirs, ours]) == ["open", "resolved"]
        assert len(await w.letters()) == 2
        letter = await w.one(theirs)
        assert letter["last_exception"] == "OSError('peer')"
        assert (letter["replayed_as"], letter["replay_count"]) == (None, 1)
        assert (letter["original_id"], bytes(letter["payload"])) == (1, b"0")
        assert (await w.desk.list(ANN)).total == 1
        assert await w.desk.reconcile(ANN) == ()
        # and it can be sent again
        assert (await w.desk.replay(ANN, [theirs])).replayed == 1

    run_desk(database, body)


def test_a_peers_worker_that_delivers_a_replayed_row_leaves_it_to_a_person(database):
    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        await peer(w, row_id, "ack")
        (ended,) = await w.desk.reconcile(ANN)
        assert ended.end == "unconfirmed"
        letter = await w.one(letter_id)
        assert (letter["state"], letter["purge_after"]) == ("resolved", None)

    run_desk(database, body)


def test_a_recall_against_a_running_handler(database):
    """In hand: refused, also by the lease that the worker itself reports; the outcome counts."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        running, go = asyncio.Event(), asyncio.Event()

        async def handler(_delivery):
            running.set()
            await go.wait()
            return ACK

        async with engine_over(w.store, ("h", "q", handler, FAST)):
            async with asyncio.timeout(20):
                await running.wait()

            async def reported():
                return await w.desk.workers(ANN)

            await until(reported)
            (held,) = await w.desk.outbox_cancel(ANN, [row_id])
            assert (held.outcome, held.dlq_id) == ("in_hand", letter_id)
            # not yet over by the lease of its worker
            await w.age_lease(row_id, 20)
            (held,) = await w.desk.outbox_cancel(ANN, [row_id])
            assert held.outcome == "in_hand"
            assert await states(w, [letter_id]) == ["replaying"]
            go.set()

            async def resolved():
                return await states(w, [letter_id]) == ["resolved"]

            await until(resolved)
        assert await w.rows() == []

    run_desk(database, body)


@pytest.mark.parametrize("end", ENDS)
def test_a_handler_whose_lease_is_over_moves_no_letter_that_was_recalled(database, end):
    """A worker that stood still: recalled, sent again, and its late outcome touches neither."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        running, go, ran = asyncio.Event(), asyncio.Event(), []
        late = ends_with(end, [])

        async def handler(delivery):
            ran.append(delivery.id)
            running.set()
            await go.wait()
            return await late(delivery)

        async with engine_over(w.store, ("h", "q", handler, FAST)) as engine:
            async with asyncio.timeout(20):
                await running.wait()
            w.store.extend = _no_extension
            await w.age_lease(row_id, 31)
            (taken,) = await w.desk.outbox_cancel(ANN, [row_id])
            assert taken.outcome in {"recalled", "in_hand"}
            if taken.outcome == "in_hand":
                # the worker has not reported its lease yet
                desk = w.make_desk(lease_seconds=30)
                (taken,) = await desk.outbox_cancel(ANN, [row_id])
                assert taken.outcome == "recalled"
            before = await w.one(letter_id)
            assert before["state"] == "open"
            go.set()

            async def told():
                return [e for e in engine.events if e[0] == "lease_lost"]

            await until(told)
        assert await w.one(letter_id) == before
        assert (await w.rows(), ran) == ([], [row_id])

    run_desk(database, body)


async def _no_extension(pairs, timeout, *, skip=False):
    from outlast.model.delivery import ALL_SETTLED

    del pairs, timeout, skip
    return ALL_SETTLED


MANY = 100_000
ORPHAN = 77_777


async def fill(w):
    """Healthy letters on their way and, far from either end, one whose row is gone. Thousand by
    thousand they left at one instant, as a bulk replay sends them.
    """
    if w.kind == "postgres":
        numbers = f"generate_series(1, {MANY}) g(n)"
        payload, link = "'x'::bytea", "jsonb_build_object('outlast-replay', n)"
        at = "now() - interval '1 day' + n / 1000 * interval '1 second'"
    else:
        numbers = (
            f"(with recursive g(n) as (select 1 union all select n + 1 from g where n < {MANY}) "
            "select n from g)"
        )
        payload, link = "x'78'", "json_object('outlast-replay', n)"
        at = "strftime('%Y-%m-%d %H:%M:%f000', 'now', '-1 day', (n / 1000) || ' seconds')"
    async with w.engine.begin() as connection:
        await connection.execute(
            text(
                "insert into outbox_dlq (original_id, queue, payload, deliveries_count, "
                "created_at, failure_reason, state, state_changed_at, replayed_as, replay_count) "
                f"select n, 'q', {payload}, 1, {at}, 'rejected', 'replaying', {at}, n, 1 "
                f"from {numbers}"
            )
        )
        await connection.execute(
            text(
                "insert into outbox (queue, payload, headers) "
                f"select 'q', {payload}, {link} from {numbers}"
            )
        )
        await connection.execute(text(f"delete from outbox where id = {ORPHAN}"))
    assert (await w.one(ORPHAN))["replayed_as"] == ORPHAN


def test_one_orphan_beside_a_hundred_thousand_healthy_letters(database):
    """Found within one round of bounded passes, whatever is beside it; no healthy letter moves."""

    async def body(w):
        await fill(w)
        sent = []
        event.listen(
            w.engine.sync_engine,
            "before_cursor_execute",
            lambda *args: sent.append((args[2], args[3])),
        )
        counts, found = [], ()
        while not found:
            sent.clear()
            found = await w.desk.reconcile(ANN)
            # beside those that bound how long a lock is waited for
            counts.append(sum("set_config" not in sql for sql, _ in sent))
            assert len(counts) <= MANY // 500 + 1
        assert [(x.dlq_id, x.end) for x in found] == [(ORPHAN, "unconfirmed")]
        assert len(counts) == (ORPHAN - 1) // 500 + 1
        # the first pass looks at the tables, the last ends the orphan
        assert max(counts[1:-1]) <= 2
        async with w.engine.connect() as connection:
            left = await connection.execute(
                text("select count(*) from outbox_dlq where state = 'replaying'")
            )
            assert left.scalar_one() == MANY - 1

    run_desk(database, body)


@pytest.mark.parametrize("analysed", [False, True], ids=["unknown", "analysed"])
def test_a_pass_reads_what_it_looks_at(postgres, analysed):
    """500 letters and their rows, wherever it goes on: O(pass) buffers beside 100,000 of each."""
    from outlast.stores.desk import orphans

    async def body(w):
        await fill(w)
        if analysed:
            async with w.engine.begin() as connection:
                await connection.execute(text("analyze outbox, outbox_dlq"))
        for _ in range(3):
            await w.desk.reconcile(ANN)
        sent = []
        event.listen(
            w.engine.sync_engine,
            "before_cursor_execute",
            lambda *args: sent.append((args[2], args[3])),
        )
        await w.desk.reconcile(ANN)
        ((statement, values),) = [(s, v) for s, v in sent if "state_changed_at" in s]
        async with w.engine.connect() as connection:
            answer = await connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values
            )
            plan = answer.scalar_one()
        plan = json.loads(plan) if isinstance(plan, str) else plan
        root = plan[0]["Plan"]
        assert root["Actual Rows"] == orphans.PASS_MAX
        assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] < 8 * orphans.PASS_MAX

    run_desk(postgres, body)


@pytest.mark.parametrize("end", ENDS)
def test_a_letter_that_somebody_else_has_moved_on_is_left_as_it_is(database, end):
    """By hand, by a script, by another tool: only a letter on its way with this row is moved."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        await w.change(letter_id, state="needs_review")
        before, ran = await w.one(letter_id), []
        async with engine_over(w.store, ("h", "q", ends_with(end, ran), FAST)):

            async def ended():
                rows = await w.rows()
                return ran and all(r["acquired_token"] is None for r in rows)

            await until(ended)
        assert await w.one(letter_id) == before
        others = [x for x in await w.letters() if x["id"] != letter_id]
        assert [x["original_id"] for x in others] == ([row_id] if end == "fail" else [])

    run_desk(database, body)


def test_a_row_that_was_moved_to_another_queue_by_hand_still_ends_its_letter(database):
    """The link is row and letter; nothing else of either is asked."""

    async def body(w):
        (letter_id,), (row_id,) = await send(w)
        async with w.engine.begin() as connection:
            await connection.execute(
                update(w.outbox).where(w.outbox.c.id == row_id).values(queue="elsewhere")
            )
        ran = []
        async with engine_over(w.store, ("h", "elsewhere", ends_with("ack", ran), FAST)):

            async def resolved():
                return await states(w, [letter_id]) == ["resolved"]

            await until(resolved)

    run_desk(database, body)
