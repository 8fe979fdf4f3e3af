"""The loop of the desk, against a real engine: fails, is seen, is fixed, is sent again."""

import asyncio

import pytest
from sqlalchemy import text

from outlast.model.outcome import ACK, Terminal
from outlast.model.replay import WorkerSeen
from outlast.ops.replaying import ReplayOptions
from outlast.policy.filter_text import parse
from outlast.policy.retry import NoRetry
from tests.contract.desks import ANN, run_desk
from tests.contract.test_interleavings import engine_over, until

FAST = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2, "retry_strategy": NoRetry()}


class Handler:
    """Fails until it is fixed."""

    def __init__(self):
        self.broken = True
        self.seen = []

    async def __call__(self, delivery):
        self.seen.append(delivery)
        if self.broken:
            raise KeyError("isbn")
        return ACK


def test_a_message_fails_is_found_is_fixed_and_is_delivered(database):
    """S2 and S3: list, inspect, replay one, outcome; the message keeps its id."""

    async def body(w):
        handler = Handler()
        async with engine_over(w.store, ("handle", "orders", handler, FAST)):
            row_id = await w.add(
                "orders", payload=b'{"total": 1.10}', headers={"content-type": "application/json"}
            )

            async def died():
                return await w.letters()

            await until(died)
            page = await w.desk.list(ANN)
            (letter,) = page.letters
            assert (page.total, page.at_least, page.more) == (1, False, False)
            assert letter.failure == "retry_terminal: KeyError: 'isbn'"
            detail = await w.desk.inspect(ANN, letter.id)
            assert detail.payload.text == '{\n  "total": 1.10\n}'
            assert detail.letter.queue == "orders"
            assert detail.next_step == f"to replay: outlast dlq replay {letter.id}"
            assert detail.as_json()["stack_trace"]

            handler.broken = False
            answer = await w.desk.replay(ANN, [letter.id], ReplayOptions(reason="fixed"))
            assert answer.replayed == 1
            assert answer.exit_code == 0
            waited = await w.desk.wait_for_outcome(ANN, [letter.id], 10)
            assert waited.outcomes == {letter.id: "succeeded"}
            assert waited.told_in(answer).results[0].waited == "succeeded"

        assert handler.seen[1].payload == b'{"total": 1.10}'
        assert handler.seen[1].headers["outlast-message-id"] == str(row_id)
        assert handler.seen[1].headers["outlast-replay"] == letter.id
        assert handler.seen[1].headers["outlast-replay-count"] == 1
        assert (handler.seen[1].attempts_count, handler.seen[1].deliveries_count) == (0, 1)
        assert await w.rows() == []
        assert (await w.desk.list(ANN)).total == 0
        found = await w.one(letter.id)
        assert (found["state"], found["resolution"]) == ("resolved", "delivered")
        told = await w.told(letter.id)
        assert [(x.kind, x.actor, x.reason) for x in told] == [
            ("replayed", "ann", "fixed"),
            ("resolved", "t:1", None),
        ]
        assert told[0].detail["row"] == told[1].detail["row"]

    run_desk(database, body)


def test_a_replay_that_fails_again_is_the_same_letter(database):
    """F-G06: one letter, replayed once, whose first failure never changes."""

    async def body(w):
        handler = Handler()
        async with engine_over(w.store, ("handle", "q", handler, FAST)):
            await w.add()

            async def died():
                return await w.letters()

            await until(died)
            (before,) = await w.letters()
            answer = await w.desk.replay(ANN, [before["id"]])
            assert answer.replayed == 1
            waited = await w.desk.wait_for_outcome(ANN, [before["id"]], 10)
            assert waited.outcomes == {before["id"]: "failed_again"}
            assert "isbn" in waited.notes[before["id"]]
            assert waited.told_in(answer).exit_code == 1
        (after,) = await w.letters()
        assert after["id"] == before["id"]
        assert after["state"] == "open"
        assert after["replay_count"] == 1
        assert after["total_deliveries"] == 2
        assert after["last_failure_at"] > before["last_failure_at"]
        for name in ("first_failure_at", "failed_at", "payload", "headers", "original_id"):
            assert after[name] == before[name]

    run_desk(database, body)


def test_a_letter_that_is_deleted_in_mid_replay_loses_nothing(database):
    """Design 3.3: its row is an ordinary one; a failure writes a new letter."""

    async def body(w):
        letter_id = await w.plant(payload=b"kept")
        answer = await w.desk.replay(ANN, [letter_id])
        async with w.engine.begin() as connection:
            await connection.execute(text("delete from outbox_dlq"))
        waited = await w.desk.wait_for_outcome(ANN, [letter_id], 0)
        assert waited.outcomes == {letter_id: "waiting"}
        assert waited.notes == {letter_id: "the letter is gone"}

        async def deliver(_delivery):
            return Terminal("rejected")

        async with engine_over(w.store, ("handle", "q", deliver, FAST)):

            async def died():
                return await w.letters()

            await until(died)
        (new,) = await w.letters()
        assert new["original_id"] == answer.results[0].row_id
        assert bytes(new["payload"]) == b"kept"
        again = await w.desk.replay(ANN, [new["id"]])
        (row,) = await w.rows()
        assert row["headers"]["outlast-replay"] == new["id"]
        assert row["headers"]["outlast-message-id"] == "1"
        assert again.replayed == 1

    run_desk(database, body)


def test_a_letter_is_replayed_once_by_two_at_once(database):
    """Two operators press the button: one message, and the other is told why not."""

    async def body(w):
        letter_id = await w.plant()
        answers = await asyncio.gather(*(w.desk.replay(ANN, [letter_id]) for _ in range(4)))
        assert sum(answer.replayed for answer in answers) == 1
        assert len(await w.rows()) == 1
        others = [a.results[0] for a in answers if not a.replayed]
        assert {r.outcome for r in others} <= {"failed", "skipped"}
        late = (await w.desk.replay(ANN, [letter_id])).results[0]
        assert late.outcome == "failed"
        assert "is being replayed" in late.reason
        assert "outbox cancel" in late.remedy
        assert (await w.one(letter_id))["replay_count"] == 1

    run_desk(database, body)


def test_two_bulk_replays_at_once_send_each_letter_once(database):
    """F-G05: two bulk replays of 500 send 500, and nobody is told of an error."""

    async def body(w):
        await w.plant_many(500)
        both = await asyncio.gather(*(w.desk.replay_all(ANN, everything=True) for _ in range(2)))
        rows = await w.rows()
        assert len(rows) == 500
        assert len({row["headers"]["outlast-replay"] for row in rows}) == 500
        assert sum(answer.replayed for answer in both) == 500
        assert sum(answer.skipped for answer in both) <= 500
        assert [answer.exit_code for answer in both] == [0, 0]
        assert {x["state"] for x in await w.letters()} == {"replaying"}

    run_desk(database, body, chunk=100)


def test_a_bulk_replay_takes_what_was_counted_and_tells_what_it_left(database):
    """F-G08: what comes later, POISON and what is for review stays; none of it is a refusal."""

    async def body(w):
        await w.plant_many(7, queue="a")
        await w.plant_many(2, queue="b")
        await w.plant_many(1, queue="a", failure_category="POISON")
        await w.plant_many(3, queue="a", state="needs_review")
        plan = await w.desk.plan_replay(ANN, parse("queue:a", now=await w.now()))
        assert plan.total == 7
        await w.plant_many(1, queue="a")
        seen = []
        answer = await w.desk.replay_all(
            ANN, cursor=plan.cursor, progress=lambda so_far: seen.append(so_far.replayed)
        )
        assert answer.replayed == 7
        assert answer.by_queue == {"a": 7}
        assert answer.exit_code == 0
        assert seen[-1] == 7
        assert [(x.kind, x.count, x.filter) for x in plan.left_out] == [
            ("needs_review", 3, "queue:a state:needs_review"),
            ("POISON", 1, "queue:a category:POISON state:open"),
        ]
        for kind in plan.left_out:
            assert await w.desk.count(ANN, parse(kind.filter, now=await w.now())) == kind.count

    run_desk(database, body, chunk=3)


def test_a_bulk_replay_in_parts_is_one_run(database):
    """REST: `more` and a cursor; what comes back meanwhile is not taken again."""

    async def body(w):
        await w.plant_many(10)
        first = await w.desk.replay_all(ANN, everything=True, most=4)
        assert (first.replayed, first.more) == (4, True)
        taken = {r.dlq_id for r in first.results}
        async with w.engine.begin() as connection:
            await connection.execute(text("delete from outbox"))
        await w.plant_many(2)
        for letter_id in taken:
            await w.change(letter_id, state="open", replayed_as=None)
        done = first.replayed
        answer = first
        while answer.more:
            answer = await w.desk.replay_all(ANN, cursor=answer.cursor, most=4)
            assert not taken & {r.dlq_id for r in answer.results}
            done += answer.replayed
        assert done == 10
        assert answer.skipped == 0

    run_desk(database, body)


def test_a_replay_sends_the_newest_revision_or_the_original(database):
    """Originals are never updated; `--to` is the queue of this pass only."""
    from sqlalchemy import insert

    async def body(w):
        letter_id = await w.plant(payload=b"first", headers={"a": 1, "outlast-replay": 99})
        async with w.engine.begin() as connection:
            for number in (1, 2):
                await connection.execute(
                    insert(w.tables["revision"]).values(
                        dlq_id=letter_id,
                        revision=number,
                        payload=f"edit {number}".encode(),
                        headers={"a": number + 1},
                    )
                )
        await w.change(letter_id, revision=2)
        preview = await w.desk.replay(ANN, [letter_id], ReplayOptions(dry_run=True))
        assert preview.as_json()["dry_run"]
        assert [r.outcome for r in preview.results] == ["would_replay"]
        assert await w.rows() == []
        await w.desk.replay(ANN, [letter_id], ReplayOptions(to="fixed"))
        (row,) = await w.rows()
        assert (bytes(row["payload"]), row["queue"]) == (b"edit 2", "fixed")
        assert row["headers"]["a"] == 3
        assert row["headers"]["outlast-replay"] == letter_id
        (recalled,) = await w.desk.outbox_cancel(ANN, [row["id"]])
        assert (recalled.outcome, recalled.dlq_id) == ("recalled", letter_id)
        back = await w.one(letter_id)
        assert (back["state"], back["replay_count"], back["queue"]) == ("open", 0, "q")
        await w.desk.replay(ANN, [letter_id], ReplayOptions(original=True))
        (row,) = await w.rows()
        assert (bytes(row["payload"]), row["queue"]) == (b"first", "q")
        assert row["headers"]["a"] == 1
        details = [x.detail for x in await w.told(letter_id) if x.kind == "replayed"]
        assert [d["revision"] for d in details] == [2, 0]

    run_desk(database, body)


def test_the_gates_hold_for_one_and_for_many(database):
    """Design 5.3: limit, poison, unchanged; force needs a reason and is recorded."""
    from sqlalchemy import insert

    from outlast.ops import BadRequest
    from outlast.tables.instant import now

    async def body(w):
        tired = await w.plant(replay_count=3)
        deadly = await w.plant(failure_category="POISON")
        same = await w.plant(failure_category="VALIDATION", consumer_version="7")
        async with w.engine.begin() as connection:
            await connection.execute(
                insert(w.tables["worker"]).values(
                    instance="w:1",
                    version="7",
                    seen_at=now(),
                    started_at=(await w.one(same))["created_at"].replace(year=2020),
                    report={"queues": ["q"], "lease": 60},
                )
            )
        (worker,) = await w.desk.workers(ANN)
        assert isinstance(worker, WorkerSeen)
        answer = await w.desk.replay(ANN, [tired, deadly, same])
        assert [r.gate for r in answer.results] == ["replay_limit", "poison", "unchanged"]
        assert answer.exit_code == 3
        assert (await w.one(tired))["state"] == "escalated"
        assert await w.rows() == []
        bulk = await w.desk.replay_all(ANN, parse("state:any", now=await w.now()))
        assert {kind.gate: kind.count for kind in bulk.refused} == {
            "replay_limit": 1,
            "poison": 1,
            "unchanged": 1,
        }
        for kind in bulk.refused:
            found = await w.desk.list(ANN, parse(kind.filter, now=await w.now()))
            assert found.total == 1
        with pytest.raises(BadRequest, match="reason"):
            ReplayOptions(force=True)
        forced = await w.desk.replay(
            ANN, [tired, deadly, same], ReplayOptions(force=True, reason="I know")
        )
        assert forced.replayed == 3
        last = (await w.told(tired))[-1]
        assert (last.reason, last.detail["forced"]) == ("I know", ["replay_limit"])

    run_desk(database, body)
