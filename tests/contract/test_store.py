"""What every store promises the engine. First of all: the old holder has no say any more."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from outlast.model.delivery import Attempt, RetryEntry
from outlast.model.look import Expired, WalkStep, Want
from tests.contract.worlds import TIMEOUT, letter

TTL = 60.0


def _attempt(count=1):
    now = datetime.now(UTC)
    return Attempt(count, now, now)


async def _settle(store, outcome, delivery, *, skip=False):
    pair = (delivery.id, delivery.token)
    if outcome == "retry":
        entry = RetryEntry(*pair, 5.0, _attempt())
        return await store.retry([entry], TIMEOUT, skip=skip)
    if outcome == "bury":
        return await store.bury([letter(delivery)], TIMEOUT, skip=skip)
    return await getattr(store, outcome)([pair], TIMEOUT, skip=skip)


OUTCOMES = ["ack", "retry", "extend", "release", "bury"]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_old_holder_cannot_settle(world, outcome, skip):
    """S0-32, S0-36, F-B01, F-B02: a lease that was taken over fences every write of its holder."""

    async def body(w):
        row_id = await w.add()
        old = await w.claim_one()
        await w.age_lease(row_id, TTL + 1)
        taken = await w.store.take_over([Expired(row_id, TTL)], uuid4(), TIMEOUT)
        new = taken.rows[0]
        before = await w.row(row_id)
        answer = await _settle(w.store, outcome, old, skip=skip)
        assert answer.lost == ((old.id, old.token),)
        assert answer.held == ()
        assert await w.row(row_id) == before
        assert await w.letters() == []
        # while the new holder settles as if nothing had happened
        assert (await _settle(w.store, outcome, new, skip=skip)).lost == ()

    world(body)


@pytest.mark.parametrize("skip", [False, True])
def test_one_row_twice_in_a_group_under_two_tokens(world, skip):
    """F-G03: only the newer token counts, and there is one dead letter, not two."""

    async def body(w):
        row_id = await w.add()
        old = await w.claim_one()
        await w.age_lease(row_id, TTL + 1)
        new = (await w.store.take_over([Expired(row_id, TTL)], uuid4(), TIMEOUT)).rows[0]
        answer = await w.store.bury([letter(old), letter(new)], TIMEOUT, skip=skip)
        assert answer.lost == ((row_id, old.token),)
        assert len(await w.letters()) == 1
        assert await w.rows() == []

    world(body)


def test_claim_leases_what_is_due_in_order(world):
    """S1-09: at most `limit` rows, the earliest due first, under one token, counted."""

    async def body(w):
        ids = [await w.add(payload=b"%d" % n) for n in range(5)]
        await w.add(due_in=3600)
        await w.add("other")
        token = uuid4()
        claim = await w.claim(limit=3, token=token)
        assert [row.id for row in claim.rows] == ids[:3]
        assert {row.token for row in claim.rows} == {token}
        assert [row.deliveries_count for row in claim.rows] == [1, 1, 1]
        assert [row.payload for row in claim.rows] == [b"0", b"1", b"2"]
        again = await w.claim(limit=10)
        assert [row.id for row in again.rows] == ids[3:]
        assert (await w.claim()).rows == []
        stored = await w.row(ids[0])
        assert stored["acquired_token"] == token
        assert stored["acquired_at"] is not None

    world(body)


def test_claim_obeys_the_quota_of_each_queue(world):
    """S1-16: a busy queue cannot take the whole batch of its neighbours."""

    async def body(w):
        for _ in range(5):
            await w.add("busy")
        await w.add("quiet")
        wanted = [Want("busy", 3), Want("quiet", 3)]
        claim = await w.store.claim(wanted, 10, uuid4(), TIMEOUT)
        assert sorted(row.queue for row in claim.rows) == ["busy", "busy", "busy", "quiet"]

    world(body)


def test_bytes_and_headers_arrive_as_they_were(world):
    """S0-20, S0-21: NUL and invalid UTF-8 in the body, types in the headers, NULL headers."""

    async def body(w):
        payload = b"\x00\xff\xfe body"
        headers = {"correlation_id": "c-1", "n": 1, "nested": {"a": [1, None, True]}, "é": "ü"}
        await w.add(payload=payload, headers=headers)
        await w.add(headers=None)
        first, second = (await w.claim()).rows
        assert first.payload == payload
        assert first.headers == headers
        assert second.headers is None
        await w.store.bury([letter(first)], TIMEOUT)
        stored = (await w.letters())[0]
        assert bytes(stored["payload"]) == payload
        assert stored["headers"] == headers

    world(body)


def test_ack_deletes(world):
    """S0-16: the row goes, nothing else happens."""

    async def body(w):
        await w.add()
        row = await w.claim_one()
        assert (await w.store.ack([(row.id, row.token)], TIMEOUT)).lost == ()
        assert await w.rows() == []
        assert await w.letters() == []
        # a second ack finds nothing to delete
        assert (await w.store.ack([(row.id, row.token)], TIMEOUT)).lost == ((row.id, row.token),)

    world(body)


def test_retry_reschedules_on_the_databases_clock(world):
    async def body(w):
        row_id = await w.add()
        row = await w.claim_one()
        attempt = _attempt(4)
        before = await w.row(row_id)
        await w.store.retry([RetryEntry(row.id, row.token, 30.0, attempt)], TIMEOUT)
        after = await w.row(row_id)
        assert after["acquired_token"] is None
        assert after["acquired_at"] is None
        assert after["attempts_count"] == 4
        assert after["deliveries_count"] == 1
        assert after["first_attempt_at"] == attempt.first_at
        assert after["last_attempt_at"] == attempt.last_at
        delay = (after["next_attempt_at"] - before["acquired_at"]).total_seconds()
        assert 30.0 <= delay < 60.0
        assert (await w.claim()).rows == []

    world(body)


def test_a_retry_in_a_hundred_years_fits(world):
    """F-B17: the longest delay a strategy may give is stored."""

    async def body(w):
        row_id = await w.add()
        row = await w.claim_one()
        century = 100 * 365.25 * 86_400.0
        await w.store.retry([RetryEntry(row.id, row.token, century, _attempt())], TIMEOUT)
        assert (await w.row(row_id))["next_attempt_at"].year > 2100

    world(body)


def test_release_gives_lease_and_count_back(world):
    async def body(w):
        row_id = await w.add()
        before = await w.row(row_id)
        row = await w.claim_one()
        await w.store.release([(row.id, row.token)], TIMEOUT)
        assert await w.row(row_id) == before
        assert (await w.claim_one()).deliveries_count == 1

    world(body)


def test_extend_begins_the_lease_anew(world):
    async def body(w):
        row_id = await w.add()
        row = await w.claim_one()
        await w.age_lease(row_id, TTL + 1)
        assert (await w.store.extend([(row.id, row.token)], TIMEOUT)).lost == ()
        taken = await w.store.take_over([Expired(row_id, TTL)], uuid4(), TIMEOUT)
        assert taken.rows == []

    world(body)


def test_bury_moves_the_row_with_everything_that_is_known(world):
    """S0-02, S0-17, S0-18, S0-19, S0-22, S0-23, S0-24, S0-25, S0-26, S0-56."""

    async def body(w):
        row_id = await w.add(queue="q" * 255, headers={"correlation_id": "c"})
        created = (await w.row(row_id))["created_at"]
        row = await w.claim_one("q" * 255)
        sent = letter(row)
        assert (await w.store.bury([sent], TIMEOUT)).lost == ()
        assert await w.rows() == []
        (stored,) = await w.letters()
        expected = {
            "original_id": row_id,
            "queue": "q" * 255,
            "deliveries_count": 1,
            "created_at": created,
            "failure_reason": "rejected",
            "last_exception": "ValueError('x')",
            "timer_id": None,
            "event_type": "order.paid",
            "subscriber": "handle",
            "consumer_instance": "host:1",
            "consumer_version": "1.2.3",
            "fingerprint": "v1:" + "0" * 32,
            "failure_category": "VALIDATION",
            "error_type": "ValueError",
            "error_message": "x",
            "stack_trace": "Traceback …",
            "http_status": 422,
            "attempts_count": 1,
            "total_deliveries": 1,
            "replay_count": 0,
            "state": "open",
            "replayed_as": None,
        }
        assert {key: stored[key] for key in expected} == expected
        assert abs((stored["failed_at"] - datetime.now(UTC)).total_seconds()) < 60
        for name in ("first_failure_at", "last_failure_at", "state_changed_at"):
            assert stored[name] is not None

    world(body)


def test_a_lost_pair_disturbs_no_other_of_its_group(world):
    async def body(w):
        ids = [await w.add() for _ in range(3)]
        rows = (await w.claim()).rows
        await w.remove(ids[1])
        answer = await w.store.bury([letter(row) for row in rows], TIMEOUT)
        assert answer.lost == ((ids[1], rows[1].token),)
        assert [stored["original_id"] for stored in await w.letters()] == [ids[0], ids[2]]
        assert await w.rows() == []

    world(body)


def test_take_over_checks_each_row_with_its_own_ttl(world):
    """S1-12: an expired lease is claimed by another, a valid one is not."""

    async def body(w):
        ids = [await w.add() for _ in range(3)]
        await w.claim()
        await w.age_lease(ids[0], 31)
        await w.age_lease(ids[1], 31)
        wanted = [Expired(ids[0], 30.0), Expired(ids[1], 600.0), Expired(ids[2], 30.0)]
        token = uuid4()
        taken = await w.store.take_over(wanted, token, TIMEOUT)
        assert [row.id for row in taken.rows] == [ids[0]]
        assert taken.rows[0].deliveries_count == 2
        assert taken.rows[0].token == token

    world(body)


def test_a_lease_from_the_future_counts_as_expired(world):
    """The database's clock went back: rows must not stay leased for that long."""

    async def body(w):
        row_id = await w.add()
        await w.claim()
        await w.age_lease(row_id, -3600)
        taken = await w.store.take_over([Expired(row_id, TTL)], uuid4(), TIMEOUT)
        assert [row.id for row in taken.rows] == [row_id]

    world(body)


def test_peek_tells_when_each_queue_is_due(world):
    async def body(w):
        await w.add("now")
        await w.add("later", due_in=100)
        await w.add("later", due_in=50)
        await w.add("leased")
        await w.claim("leased")
        sight = await w.store.look(["now", "later", "leased", "empty"], [], TIMEOUT)
        assert set(sight.due) == {"now", "later"}
        assert sight.due["now"][0] <= 0
        soon, late = sight.due["later"]
        assert 0 < soon <= 50 < late <= 100
        many = await w.store.look(["later", *(f"q{n}" for n in range(50))], [], TIMEOUT)
        assert len(many.due["later"]) == 1

    world(body)


def test_walk_finds_expired_leases_in_chunks(world):
    """The walk passes live leases by, goes on where it stopped, and knows the next expiry."""

    async def body(w):
        ids = [await w.add() for _ in range(5)]
        await w.claim()
        await w.age_lease(ids[1], TTL + 1)
        await w.age_lease(ids[4], TTL + 1)
        found, after, rounds = [], None, 0
        while True:
            sight = await w.store.look([], [WalkStep("q", TTL, after, 2)], TIMEOUT)
            (walked,) = sight.walked
            found += walked.expired
            after = walked.after
            rounds += 1
            if walked.next_expiry_seconds is not None:
                assert 0 < walked.next_expiry_seconds <= TTL
            if after is None:
                break
        assert found == [ids[1], ids[4]]
        assert rounds >= 3
        empty = await w.store.look([], [WalkStep("nothing", TTL, None, 10)], TIMEOUT)
        assert empty.walked[0] == ("nothing", (), None, None)

    world(body)


def test_walk_uses_the_ttl_of_each_queue(world):
    async def body(w):
        short, long = await w.add("short"), await w.add("long")
        await w.claim("short", "long")
        await w.age_lease(short, 31)
        await w.age_lease(long, 31)
        steps = [WalkStep("short", 30.0, None, 10), WalkStep("long", 600.0, None, 10)]
        sight = await w.store.look([], steps, TIMEOUT)
        assert {walked.queue: walked.expired for walked in sight.walked} == {
            "short": (short,),
            "long": (),
        }

    world(body)


def test_read_back_finds_what_a_lost_answer_leased(world):
    async def body(w):
        await w.add()
        token = uuid4()
        claimed = (await w.claim(token=token)).rows
        claim, final = await w.store.read_back(["q"], token, TIMEOUT)
        assert final
        assert claim.rows == claimed
        assert (await w.store.read_back(["q"], uuid4(), TIMEOUT))[0].rows == []

    world(body)


def test_an_operators_delete_is_a_lost_lease(world):
    """F-D09: settling a row that is gone affects nothing and resurrects nothing."""

    async def body(w):
        row_id = await w.add()
        row = await w.claim_one()
        await w.remove(row_id)
        for outcome in OUTCOMES:
            assert (await _settle(w.store, outcome, row)).lost == ((row.id, row.token),)
        assert await w.rows() == []
        assert await w.letters() == []

    world(body)


def test_huge_counters_are_carried(world):
    """F-B17: ids and counters near the limits of their columns."""

    async def body(w):
        if w.kind == "memory":
            return
        from sqlalchemy import insert, update

        big = 2**63 - 10
        async with w.engine.begin() as connection:
            await connection.execute(
                insert(w.outbox).values(id=big, queue="q", payload=b"", deliveries_count=2**62)
            )
            await connection.execute(update(w.outbox).values(attempts_count=2**31 - 2))
        row = await w.claim_one()
        assert row.id == big
        assert row.deliveries_count == 2**62 + 1
        await w.store.retry([RetryEntry(row.id, row.token, 1.0, _attempt(2**31 - 1))], TIMEOUT)
        stored = await w.row(big)
        assert stored["attempts_count"] == 2**31 - 1
        async with w.engine.begin() as connection:
            await connection.execute(
                insert(w.outbox).values(queue="full", payload=b"", deliveries_count=2**63 - 1)
            )
        row = await w.claim_one("full")
        assert row.deliveries_count == 2**63 - 1
        await w.age_lease(row.id, 61)
        taken = await w.store.take_over([Expired(row.id, 60.0)], uuid4(), TIMEOUT)
        assert [found.id for found in taken.rows] == [row.id]
        assert (await w.store.bury([letter(taken.rows[0])], TIMEOUT)).lost == ()

    world(body)


def test_instants_are_aware_and_utc(world):
    async def body(w):
        await w.add()
        claim = await w.claim()
        row = claim.rows[0]
        for instant in (claim.now, row.created_at, row.next_attempt_at, row.acquired_at):
            assert instant.utcoffset() == timedelta(0)

    world(body)
