"""What the statements do without a join: each row gets the entry of its own lease, and an answer
names exactly the pairs that were lost."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from outlast.model.delivery import Attempt, RetryEntry
from outlast.model.look import Expired, WalkStep, Want
from outlast.stores.postgres import claims, settles
from tests.plans.explain import SECONDS, measured_line
from tests.plans.tables import execute, fill

BEGAN = datetime(2020, 1, 1, tzinfo=UTC)


def entry(row_id, token, number):
    """An entry that can be told from every other."""
    attempt = Attempt(
        number, BEGAN + timedelta(days=number), BEGAN + timedelta(days=number, hours=1)
    )
    return RetryEntry(row_id, token, 1_000.0 * number, attempt)


async def stored(line):
    rows = await line.connection.fetch(
        "SELECT *, extract(epoch FROM next_attempt_at - now())::float8 AS due FROM outbox"
    )
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("skip", [False, True])
def test_each_row_is_retried_by_the_entry_of_its_own_lease(lonely, skip):
    """F-G03: tokens mixed in one group, ids in any order, one id under its old token and its new
    one, some leases lost."""

    async def body(engine):
        filled = await fill(engine, "ready", rows=10, ours=300)
        ours = filled.take(300)
        stranger, newest = uuid4(), UUID(int=0xF)
        # ids of the first two tokens, interleaved and backwards
        mixed = [pair for two in zip(ours[:100], ours[199:99:-1], strict=True) for pair in two]
        taken = ours[250:260]
        lost = [(row_id, stranger) for row_id, _ in ours[260:270]]
        entries = [entry(*pair, number) for number, pair in enumerate([*mixed, *lost], start=1)]
        # old verdicts first for half of the rows, last for the others
        old = [entry(*pair, 500 + number) for number, pair in enumerate(taken)]
        new = [entry(row_id, newest, 600 + number) for number, (row_id, _) in enumerate(taken)]
        entries = [*old[:5], *new, *entries, *old[5:]]
        async with measured_line(engine) as line:
            wire = line.answering()
            ids = ", ".join(str(row_id) for row_id, _ in taken)
            await execute(
                engine, f"UPDATE outbox SET acquired_token = '{newest}' WHERE id IN ({ids})"
            )
            sql = filled.statements
            answer = await settles.retries(
                wire, sql.retry, sql.retry_skipping, entries, SECONDS, skip=skip
            )
            assert sorted(answer.lost) == sorted([*lost, *taken])
            assert answer.held == ()
            rows = await stored(line)
            landed = [e for e in entries if (e.id, e.token) not in {*lost, *taken}]
            assert len(landed) == 210
            for e in landed:
                row = rows[e.id]
                assert row["acquired_token"] is None
                assert row["attempts_count"] == e.attempt.count
                assert row["first_attempt_at"] == e.attempt.first_at
                assert row["last_attempt_at"] == e.attempt.last_at
                assert row["due"] == pytest.approx(e.delay_seconds, abs=100)
            for row_id, token in ours[260:300]:
                assert rows[row_id]["acquired_token"] == token

    lonely.run(body)


@pytest.mark.parametrize("skip", [False, True])
def test_a_release_answers_what_it_lost(lonely, skip):
    """F-G03: by id and token, also where one id is there twice."""

    async def body(engine):
        filled = await fill(engine, "ready", rows=10, ours=20)
        ours = filled.take(20)
        stranger = uuid4()
        lost = [(row_id, stranger) for row_id, _ in (ours[3], ours[7], ours[19])]
        group = [lost[0], *ours[:19], *lost[1:]]
        async with measured_line(engine) as line:
            sql = filled.statements
            answer = await settles.pairs(
                line.answering(), sql.release, sql.release_skipping, group, SECONDS, skip=skip
            )
            assert sorted(answer.lost) == sorted(lost)
            rows = await stored(line)
        for row_id, _ in ours[:19]:
            assert rows[row_id]["acquired_token"] is None
        assert rows[ours[19][0]]["acquired_token"] == ours[19][1]

    lonely.run(body)


def test_instants_that_no_client_can_read_wedge_nothing(lonely):
    """F-B17: rows that another program wrote are claimed, walked and peeked beside good ones."""

    async def body(engine):
        filled = await fill(engine, "ready", rows=1)
        sql = filled.statements
        await execute(
            engine,
            "DELETE FROM outbox",
            "INSERT INTO outbox (queue, payload, created_at, next_attempt_at) VALUES "
            "('q', 'a', '-infinity', now()), ('q', 'b', 'infinity', '-infinity'), "
            "('q', 'c', '0044-03-15 BC', '0044-03-15 BC'), ('parked', 'd', now(), 'infinity')",
        )
        async with measured_line(engine) as line:
            wire = line.answering()
            sight = await claims.look(wire, sql, ["q", "parked"], (), SECONDS)
            assert max(sight.due["q"]) <= 0 < min(sight.due["parked"])
            claim = await claims.claim(wire, sql, [Want("q", 5)], 5, uuid4(), SECONDS)
            assert sorted(row.payload for row in claim.rows) == [b"a", b"b", b"c"]
            assert all(row.created_at.tzinfo and row.next_attempt_at.tzinfo for row in claim.rows)
            await execute(engine, "UPDATE outbox SET acquired_at = '-infinity' WHERE queue = 'q'")
            step = WalkStep("q", 60.0, None, 2)
            (first,) = (await claims.look(wire, sql, (), [step], SECONDS)).walked
            step = step._replace(after=first.after)
            (rest,) = (await claims.look(wire, sql, (), [step], SECONDS)).walked
            expired = [Expired(row_id, 60.0) for row_id in (*first.expired, *rest.expired)]
            taken = await claims.take_over(wire, sql, expired, uuid4(), SECONDS)
            assert sorted(row.payload for row in taken.rows) == [b"a", b"b", b"c"]

    lonely.run(body)


CHANGES = {
    "kept": ("acquired_at = now() + interval '1 second'", True),
    "taken over": ("acquired_token = gen_random_uuid(), acquired_at = now()", False),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["ack", "extend", "release", "retry", "take over"])
def test_a_row_that_changes_while_the_statement_runs(lonely, name, change):
    """Changed and committed between the statement's snapshot and its lock: a lease kept is
    settled, one taken over is not; an expired one that was refreshed is not taken over."""
    assignment, kept = CHANGES[change]

    async def body(engine):
        filled = await fill(engine, "ready", rows=10, ours=5, expired=5)
        sql = filled.statements
        pair = filled.take(1)[0]
        (row_id,) = filled.take_expired(1)
        changed = row_id if name == "take over" else pair[0]

        def paused(statement):
            # the snapshot is taken, then the statement waits, then it locks
            start = "with l as materialized (select "
            assert statement.startswith(start)
            waits = "with z as materialized (select pg_sleep(0.5)), l as materialized (select "
            waiting = waits + statement.removeprefix(start)
            found = " from outbox o where "
            assert found in waiting
            return waiting.replace(found, " from (select count(*) from z) z, outbox o where ", 1)

        async def send(wire):
            if name == "take over":
                sql.take_over = paused(sql.take_over).replace(
                    "for update skip", "for update of o skip"
                )
                claim = await claims.take_over(wire, sql, [Expired(row_id, 60.0)], uuid4(), SECONDS)
                return bool(claim.rows)
            skipping = paused(getattr(sql, f"{name}_skipping"))
            if name == "retry":
                answer = await settles.retries(
                    wire, "", skipping, [entry(*pair, 7)], SECONDS, skip=True
                )
            else:
                answer = await settles.pairs(wire, "", skipping, [pair], SECONDS, skip=True)
            return answer == settles.ALL_SETTLED

        async with measured_line(engine) as line:
            sending = asyncio.ensure_future(send(line.answering()))
            await running(engine, line.connection.get_server_pid())
            await execute(engine, f"UPDATE outbox SET {assignment} WHERE id = {changed}")
            assert not sending.done()
            assert await sending is (kept and name != "take over")

    lonely.run(body)


async def running(engine, pid):
    """Wait until the statement waits in its pause."""
    async with engine.connect() as connection:
        while True:
            answer = await connection.exec_driver_sql(
                f"SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}"
            )
            found = answer.scalar()
            await connection.rollback()
            if found == "PgSleep":
                return
