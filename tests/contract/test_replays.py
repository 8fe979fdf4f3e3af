"""How a replay ends, on every store: the letter moves with the row, or not at all."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from sqlalchemy import insert, select, text, update

from outlast.model.delivery import Attempt
from outlast.model.failure import Failure
from outlast.model.look import Expired
from outlast.model.replay_pass import Delivered, Failed, Retried
from tests.contract.worlds import TIMEOUT, letter

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


async def replaying(w, *, state="replaying", link=True):
    """A letter on its way, and the row that carries it, claimed."""
    await w.add()
    dead = await w.claim_one()
    await w.store.bury([letter(dead)], TIMEOUT)
    old = (await w.letters())[-1]
    row_id = await w.add(headers={"outlast-replay": old["id"]})
    values = {
        "state": state,
        "replayed_as": row_id if link else row_id + 1000,
        "replay_count": 1,
        "first_failure_at": FIRST,
    }
    if w.kind == "memory":
        old.update(values)
    else:
        async with w.engine.begin() as connection:
            await connection.execute(update(w.dlq).where(w.dlq.c.id == old["id"]).values(values))
    return await w.claim_one(), old["id"]


async def one(w, letter_id):
    return next(x for x in await w.letters() if x["id"] == letter_id)


async def end(w, how, row, letter_id, *, skip=False):
    if how == "resolve":
        return await w.store.resolve(
            [Delivered(row.id, row.token, letter_id, "host:1")], TIMEOUT, skip=skip
        )
    if how == "refresh":
        attempt = Attempt(1, row.acquired_at, row.acquired_at)
        failure = Failure(last_exception="KeyError('new')", error_type="KeyError")
        ended = Retried(row.id, row.token, letter_id, 30.0, attempt, failure)
        return await w.store.refresh([ended], TIMEOUT, skip=skip)
    ended = Failed(letter_id, letter(row, last_exception="KeyError('new')"))
    return await w.store.reopen([ended], TIMEOUT, skip=skip)


@pytest.mark.parametrize("skip", [False, True])
def test_an_acknowledged_replay_resolves_its_letter(world, skip):
    async def body(w):
        row, letter_id = await replaying(w)
        assert await end(w, "resolve", row, letter_id, skip=skip) == ((), ())
        assert await w.rows() == []
        found = await one(w, letter_id)
        assert found["state"] == "resolved"
        assert found["resolution"] == "delivered"
        assert found["replayed_as"] is None
        assert found["purge_after"] is not None
        assert found["total_deliveries"] == 2
        assert found["last_exception"] == "ValueError('x')"

    world(body)


@pytest.mark.parametrize("skip", [False, True])
def test_a_replay_that_is_tried_again_shows_its_failure_at_once(world, skip):
    async def body(w):
        row, letter_id = await replaying(w)
        assert await end(w, "refresh", row, letter_id, skip=skip) == ((), ())
        (waiting,) = await w.rows()
        assert waiting["acquired_token"] is None
        assert waiting["attempts_count"] == 1
        found = await one(w, letter_id)
        assert found["state"] == "replaying"
        assert found["replayed_as"] == row.id
        assert found["last_exception"] == "KeyError('new')"
        assert found["first_failure_at"] == FIRST
        assert (await w.claim()).rows == []

    world(body)


@pytest.mark.parametrize("skip", [False, True])
def test_a_replay_that_fails_for_good_opens_the_same_letter(world, skip):
    """F-G06: one letter, whose first failure and original bytes never change."""

    async def body(w):
        row, letter_id = await replaying(w)
        before = await one(w, letter_id)
        assert await end(w, "reopen", row, letter_id, skip=skip) == ((), ())
        assert await w.rows() == []
        (found,) = await w.letters()
        assert found["id"] == letter_id
        assert found["state"] == "open"
        assert found["replayed_as"] is None
        assert found["last_exception"] == "KeyError('new')"
        for name in ("original_id", "payload", "headers", "created_at", "failed_at"):
            assert found[name] == before[name]
        assert found["first_failure_at"] == FIRST
        assert found["last_failure_at"] > FIRST
        assert found["replay_count"] == 1
        assert found["total_deliveries"] == 2

    world(body)


@pytest.mark.parametrize("how", ["resolve", "refresh", "reopen"])
@pytest.mark.parametrize("skip", [False, True])
def test_the_old_holder_of_a_replay_moves_nothing(world, how, skip):
    """S0-32: fenced like every settle; the letter stays as it is."""

    async def body(w):
        row, letter_id = await replaying(w)
        await w.age_lease(row.id, 61)
        await w.store.take_over([Expired(row.id, 60.0)], uuid4(), TIMEOUT)
        before, rows = await one(w, letter_id), await w.rows()
        answer = await end(w, how, row, letter_id, skip=skip)
        assert answer.lost == ((row.id, row.token),)
        assert await one(w, letter_id) == before
        assert await w.rows() == rows

    world(body)


@pytest.mark.parametrize("how", ["resolve", "reopen"])
@pytest.mark.parametrize("broken", ["state", "link", "gone"])
def test_a_row_whose_letter_does_not_belong_to_it_is_an_ordinary_one(world, how, broken):
    """Recalled, a header copied to another message, deleted by a DBA: nothing can be lost."""

    async def body(w):
        row, letter_id = await replaying(
            w, state="open" if broken == "state" else "replaying", link=broken != "link"
        )
        if broken == "gone":
            if w.kind == "memory":
                w.store.dlq_rows.clear()
            else:
                async with w.engine.begin() as connection:
                    await connection.execute(text("delete from outbox_dlq"))
        before = [x for x in await w.letters() if x["id"] == letter_id]
        assert await end(w, how, row, letter_id) == ((), ())
        assert await w.rows() == []
        after = await w.letters()
        assert [x for x in after if x["id"] == letter_id] == before
        new = [x for x in after if x["id"] != letter_id]
        assert len(new) == (how == "reopen")

    world(body)


def test_history_is_written_where_there_is_a_table(database):
    """One row for each pass that ended."""
    from sqlalchemy import MetaData

    from outlast.tables.operations import make_operations_tables
    from tests.contract.worlds import run_sql

    async def body(w):
        history = make_operations_tables(MetaData()).history
        async with w.engine.begin() as connection:
            await connection.run_sync(history.create)
        await w.store.close()
        await w.store.open(lambda _queue: None)
        row, letter_id = await replaying(w)
        await end(w, "refresh", row, letter_id)
        async with w.engine.begin() as connection:
            await connection.execute(update(w.outbox).values(next_attempt_at=FIRST))
        await end(w, "reopen", await w.claim_one(), letter_id)
        async with w.engine.begin() as connection:
            row_id = (
                await connection.execute(
                    insert(w.outbox)
                    .values(queue="q", payload=b"", headers={"outlast-replay": letter_id})
                    .returning(w.outbox.c.id)
                )
            ).scalar_one()
            await connection.execute(update(w.dlq).values(state="replaying", replayed_as=row_id))
        await end(w, "resolve", await w.claim_one(), letter_id)
        async with w.engine.connect() as connection:
            told = (await connection.execute(select(history).order_by(history.c.id))).all()
        assert [(x.dlq_id, x.kind, x.actor) for x in told] == [
            (letter_id, "replay_failed", "host:1"),
            (letter_id, "resolved", "host:1"),
        ]
        assert told[1].detail == {"row": row_id}

    run_sql(database, body)
