"""Leases: refreshed while in hand, bounded, fenced when lost."""

import asyncio
from uuid import uuid4

from outlast.model.look import Expired
from outlast.policy.retry import ConstantRetry
from tests.engine.bench import Rig, with_engine
from tests.engine.faults import FaultyStore


async def _nothing(_delivery):
    return None


def _take_over(rig, row_id):
    """Another worker takes the row, as after an expiry."""
    row = next(r for r in rig.store.rows if r.id == row_id)
    row.acquired_token = uuid4()
    row.deliveries_count += 1
    return row


def test_a_long_handler_keeps_its_lease():
    """S1-21: a handler that outlives the TTL is not delivered twice while its worker lives."""

    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(200)

        rig.handle(slow, lease_ttl_seconds=30.0)
        other = rig.new_engine()
        rig.handle(slow, lease_ttl_seconds=30.0, engine=other)
        await rig.engine.start()
        await other.start()
        rig.add()
        await rig.until(lambda: not rig.store.rows, step=0.1)
        assert len(rig.started) == 1
        assert rig.names() == ["dispatched", "acked"]
        await other.stop(0)

    with_engine(body)


def test_leases_are_refreshed_every_third_of_the_ttl_at_most_ten_seconds():
    async def body(rig):
        rig.store = FaultyStore(rig.store)
        rig.engine = rig.new_engine()

        async def slow(_delivery):
            await asyncio.sleep(65)

        rig.handle(slow, lease_ttl_seconds=60.0)
        await rig.engine.start()
        rig.store.inner.insert(queue="q", payload=b"")
        await rig.until(lambda: not rig.store.inner.rows, step=0.1)
        at = [t - 1000.0 for t, name, _, _ in rig.store.calls if name == "extend"]
        assert [round(t) for t in at] == [10, 20, 30, 40, 50, 60]

    with_engine(body)


def test_refreshing_ends_at_the_limit_and_the_handler_is_cancelled():
    """Ten times the TTL by default; `LeaseLimitExceeded` is an ordinary failed attempt."""

    async def body(rig):
        cancelled = []

        async def endless(_delivery):
            try:
                await asyncio.sleep(10_000)
            except asyncio.CancelledError:
                cancelled.append(rig.now())
                raise

        rig.handle(
            endless,
            lease_ttl_seconds=6.0,
            retry_strategy=ConstantRetry(delay_seconds=1, max_attempts=1),
        )
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: rig.store.dlq_rows, step=0.1)
        assert 60.0 <= cancelled[0] <= 62.1
        letter = rig.store.dlq_rows[0]
        assert letter["error_type"].endswith("LeaseLimitExceeded")
        assert letter["failure_category"] == "TIMEOUT"
        assert "lease_limit_seconds=60" in letter["error_message"]
        # the worker lives on
        rig.add()
        await rig.until(lambda: len(rig.started) == 2)

    with_engine(body)


def test_a_lost_lease_does_not_cancel_the_handler_and_fences_its_outcome():
    """S0-32, S0-45, F-B01, F-B02: the late verdict changes nothing and is told as lease_lost."""

    async def body(rig):
        for ends in ("ack", "nack"):
            rig.events.clear()
            finished = []

            async def slow(_delivery, ends=ends, finished=finished):
                await asyncio.sleep(40)
                finished.append(True)
                if ends == "nack":
                    raise ValueError

            sub = rig.handle(slow, ends, lease_ttl_seconds=60.0)
            if not rig.engine.is_running:
                await rig.engine.start()
            row_id = rig.add(ends)
            await rig.until(lambda: sub.running)
            row = _take_over(rig, row_id)
            await rig.until(lambda finished=finished: finished, step=0.1)
            await asyncio.sleep(0.1)
            assert rig.names() == ["dispatched", "lease_lost"]
            tags = rig.told("lease_lost")[0]
            assert tags["row_id"] == row_id
            assert tags["phase"] == ("terminal" if ends == "ack" else "retry")
            assert tags["duration_seconds"] == 40
            assert row in rig.store.rows
            assert rig.store.dlq_rows == []
            await rig.engine.stop_subscription(sub)

    with_engine(body)


def test_an_extension_that_crosses_its_own_settle_says_nothing():
    """The dead letter lands on its own line while the extension is under way: no lease_lost."""

    async def body(rig):
        rig.store = FaultyStore(rig.store)
        rig.engine = rig.new_engine()
        from outlast.model.outcome import Terminal

        async def slow(_delivery):
            await asyncio.sleep(10.5)
            return Terminal("rejected")

        rig.handle(slow, lease_ttl_seconds=30.0)
        await rig.engine.start()
        gate = rig.store.gate("extend")
        rig.store.inner.insert(queue="q", payload=b"")
        await rig.until(lambda: rig.store.count("extend") == 1)
        await rig.until(lambda: rig.store.inner.dlq_rows)
        gate.set()
        await asyncio.sleep(1)
        assert rig.told("lease_lost") == []
        assert rig.names() == ["dispatched", "dlq_written", "nacked_terminal"]

    with_engine(body)


def test_a_handler_never_starts_after_its_own_deadline():
    """Rows whose lease ran out while they waited in hand are dropped unstarted."""

    async def body(rig):
        from outlast.model.errors import TryLater

        rig.store = FaultyStore(rig.store)
        rig.engine = rig.new_engine()
        starts = []

        async def slow(delivery):
            starts.append((rig.now() + 1000.0, delivery.token))
            await asyncio.sleep(25)

        sub = rig.handle(slow, lease_ttl_seconds=20.0)
        taken = {}
        take = sub.take

        def noting(delivery, sent_at, **options):
            taken[delivery.token] = sent_at
            return take(delivery, sent_at, **options)

        sub.take = noting
        # neither refresh nor release reaches the database
        for _ in range(200):
            rig.store.fail("extend", TryLater("busy"))
            rig.store.fail("release", TryLater("busy"))
        await rig.engine.start()
        for _ in range(5):
            rig.store.inner.insert(queue="q", payload=b"")
        await rig.until(lambda: len(starts) >= 1)
        await asyncio.sleep(100)
        assert len(starts) > 1
        assert all(at < taken[token] + 20.0 for at, token in starts)

    with_engine(body)


def test_two_subscriptions_whose_ttls_differ_twentyfold():
    """Each queue's leases expire after its own TTL, on one engine (S1-12, S1-16, S1-23)."""

    async def body(rig):
        rig.handle(_nothing, "short", lease_ttl_seconds=30.0, max_fetch_interval=5.0)
        rig.handle(_nothing, "long", name="long", lease_ttl_seconds=600.0, max_fetch_interval=5.0)
        rig.add("short")
        rig.add("long")
        dead = Rig(rig.store)
        # a worker that died with both in hand
        from outlast.model.look import Want

        await rig.store.claim([Want("short", 1), Want("long", 1)], 2, uuid4(), 1.0)
        del dead
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 1, step=0.1)
        assert rig.started[0][1].queue == "short"
        assert 30.0 < rig.started[0][0] <= 30.0 + 5.0 + 1.0
        await rig.until(lambda: len(rig.started) == 2, step=0.1)
        assert 600.0 < rig.started[1][0] <= 600.0 + 5.0 + 1.0

    with_engine(body)


def test_a_dead_workers_message_comes_back_in_time_under_backlog():
    """Lease + `max_fetch_interval` + one walk, while others keep the slots busy."""

    async def body(rig):
        from outlast.model.look import Want

        async def quick(_delivery):
            await asyncio.sleep(0.5)

        lost = rig.add()
        await rig.store.claim([Want("q", 1)], 1, uuid4(), 1.0)
        for _ in range(400):
            rig.add()
        rig.handle(quick, lease_ttl_seconds=30.0, max_fetch_interval=10.0)
        await rig.engine.start()
        await rig.until(lambda: any(d.id == lost for _, d in rig.started), step=0.1)
        at = next(at for at, d in rig.started if d.id == lost)
        assert 30.0 < at <= 30.0 + 10.0 + 1.0
        assert len(rig.started) < 401

    with_engine(body)


def test_many_expired_rows_are_taken_over_as_slots_allow():
    async def body(rig):
        from outlast.model.look import Want

        async def quick(_delivery):
            await asyncio.sleep(0.2)

        for _ in range(1500):
            rig.add()
        await rig.store.claim([Want("q", 1500)], 1500, uuid4(), 1.0)
        sub = rig.handle(quick, lease_ttl_seconds=5.0, max_workers=8)
        await rig.engine.start()
        most = 0
        while rig.store.rows:
            most = max(most, len(sub.hand))
            await asyncio.sleep(0.05)
        assert most <= 8 + 8 + 10
        assert {d.deliveries_count for _, d in rig.started} == {2}
        assert len(rig.started) == 1500

    with_engine(body)


def test_the_own_rows_in_hand_are_not_taken_over_from_oneself():
    """The database was away for longer than the TTL: the row in hand is not started twice."""

    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(100)

        sub = rig.handle(slow, lease_ttl_seconds=30.0, max_workers=2)
        await rig.engine.start()
        row_id = rig.add()
        await rig.until(lambda: sub.running)
        row = rig.store.rows[0]
        from datetime import timedelta

        row.acquired_at -= timedelta(seconds=300)
        await asyncio.sleep(15)
        assert len(rig.started) == 1
        assert row.id == row_id
        assert Expired(row_id, 30.0) not in sub.abandoned

    with_engine(body)


def test_a_worker_that_cannot_reach_the_database_is_fenced_at_its_ttl():
    """F-B05: refreshes fail beyond the TTL; another takes over; the late ack is refused."""

    async def body(rig):
        memory = rig.store
        rig.store = FaultyStore(memory)
        rig.engine = rig.new_engine()

        async def slow(_delivery):
            await asyncio.sleep(60)

        rig.handle(slow, lease_ttl_seconds=20.0)
        await rig.engine.start()
        memory.insert(queue="q", payload=b"")
        await rig.until(lambda: rig.started)
        rig.store.down = {"claims", "settles", "letters"}
        rig.store.refuse_reconnect = True
        faulty, rig.store = rig.store, memory
        other = rig.new_engine()
        taken = []

        async def second(delivery):
            taken.append((rig.now(), delivery.deliveries_count))
            await asyncio.sleep(200)

        rig.handle(second, engine=other, name="second", lease_ttl_seconds=20.0)
        await other.start()
        await rig.until(lambda: taken, step=0.1)
        assert 20 < taken[0][0] <= 20 + 10 + 1.1
        assert taken[0][1] == 2
        await asyncio.sleep(60)
        faulty.refuse_reconnect = False
        await rig.until(lambda: rig.told("lease_lost"), step=0.1)
        assert memory.rows[0].acquired_token is not None
        assert rig.told("acked") == []
        await other.stop(0)

    with_engine(body)
