"""What is in hand: no hoarding, no poison that takes its neighbours along."""

import asyncio
from uuid import uuid4

from outlast.model.look import Want
from outlast.model.outcome import MAX_DELIVERIES
from tests.engine.bench import with_engine


def test_a_slow_worker_does_not_hoard():
    """Rows not started within min(ttl/3, 5 s) go back uncounted, and another worker takes them."""

    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(300)

        async def fast(_delivery):
            await asyncio.sleep(0.01)

        sub = rig.handle(slow, fetch_batch_size=10, lease_ttl_seconds=600.0)
        await rig.engine.start()
        for _ in range(30):
            rig.add()
        await rig.until(lambda: sub.running)
        assert len(sub.hand) <= 10
        other = rig.new_engine()
        rig.handle(fast, engine=other)
        await rig.until(lambda: rig.now() >= 5.0, step=0.01)
        await asyncio.sleep(0.1)
        assert len(sub.hand) == 1
        waiting = [row for row in rig.store.rows if row.acquired_token is None]
        assert len(waiting) == 29
        assert {row.deliveries_count for row in waiting} == {0}
        await other.start()
        await rig.until(lambda: len(rig.store.rows) == 1)
        # it claims for free slots only, until its handlers are fast again
        rig.add()
        await asyncio.sleep(1)
        assert len(sub.hand) == 1
        await other.stop(0)

    with_engine(body)


def test_prefetch_returns_when_handlers_are_fast_again():
    async def body(rig):
        seconds = [12.0]

        async def handler(_delivery):
            await asyncio.sleep(seconds[0])

        sub = rig.handle(handler, fetch_batch_size=10)
        await rig.engine.start()
        for _ in range(60):
            rig.add()
        await asyncio.sleep(13)
        assert sub.prefetching is False
        seconds[0] = 0.01
        await rig.until(lambda: not rig.store.rows, step=0.01)
        assert sub.prefetching is True

    with_engine(body)


def test_unstarted_rows_are_bounded_by_the_batch_and_one_claim():
    async def body(rig):
        async def handler(_delivery):
            await asyncio.sleep(0.01)

        sub = rig.handle(handler, fetch_batch_size=10)
        await rig.engine.start()
        for _ in range(300):
            rig.add()
        most = 0
        while rig.store.rows:
            most = max(most, sub.unstarted)
            await asyncio.sleep(0.001)
        assert 10 < most <= 20

    with_engine(body)


def test_max_deliveries_ends_a_row_before_its_handler_starts():
    """S0-10, S0-47, S1-13: three deliveries died; the fourth is a dead letter, no handler runs."""

    async def body(rig):
        async def handler(_delivery):
            return None

        rig.handle(handler, max_deliveries=3, lease_ttl_seconds=5.0)
        row_id = rig.add()
        rig.store.rows[0].deliveries_count = 3
        await rig.engine.start()
        await rig.until(lambda: rig.store.dlq_rows)
        (letter,) = rig.store.dlq_rows
        assert letter["original_id"] == row_id
        assert letter["failure_reason"] == MAX_DELIVERIES
        assert letter["deliveries_count"] == 4
        assert letter["last_exception"] is None
        assert letter["failure_category"] == "POISON"
        assert rig.started == []
        assert rig.names() == ["dlq_written", "nacked_terminal"]
        assert "exception_type" not in rig.told("dlq_written")[0]
        assert "duration_seconds" not in rig.told("nacked_terminal")[0]

    with_engine(body)


def test_max_deliveries_none_never_ends_a_row():
    """S1-13: unbounded by default."""

    async def body(rig):
        async def handler(_delivery):
            return None

        rig.handle(handler)
        rig.add()
        rig.store.rows[0].deliveries_count = 10_000
        await rig.engine.start()
        await rig.until(lambda: not rig.store.rows)
        assert len(rig.started) == 1

    with_engine(body)


async def _crash(rig, engine, sub):
    """The process dies: nothing is settled, nothing released, nothing waits."""
    for task in [*engine._tasks, *sub.workers]:
        task.cancel()
    await asyncio.gather(*engine._tasks, *sub.workers, return_exceptions=True)
    for entry in sub.hand:
        entry.lost = True
    sub.hand.clear()
    engine._watchdog.stop()


def test_poison_takes_no_healthy_neighbour_along():
    """S2-01, S2-04, F-C05: 4 slots, `max_deliveries=2`: the poison dies, its neighbours live."""

    async def body(rig):
        poison = rig.add(payload=b"poison")
        healthy = {rig.add(payload=b"ok") for _ in range(3)}
        done, crashes = set(), 0
        while rig.store.rows and crashes < 10:
            engine = rig.new_engine()
            died = asyncio.Event()

            async def handler(delivery, died=died):
                if delivery.id == poison:
                    await asyncio.sleep(0.5)
                    died.set()
                    await asyncio.sleep(1000)
                await asyncio.sleep(1.0)
                done.add(delivery.id)

            sub = rig.handle(
                handler, engine=engine, max_workers=4, max_deliveries=2, lease_ttl_seconds=10.0
            )
            await engine.start()
            stop = asyncio.create_task(died.wait())
            while not stop.done() and rig.store.rows:
                await asyncio.sleep(0.05)
            crashes += stop.done()
            stop.cancel()
            if rig.store.rows:
                await _crash(rig, engine, sub)
            else:
                await engine.stop(1)
        assert done == healthy
        assert [row["original_id"] for row in rig.store.dlq_rows] == [poison]
        assert rig.store.dlq_rows[0]["failure_reason"] == MAX_DELIVERIES
        assert crashes == 2

    with_engine(body)


def test_with_max_deliveries_one_reclaimed_row_is_in_hand_at_a_time():
    async def body(rig):
        async def handler(_delivery):
            await asyncio.sleep(1)

        for _ in range(6):
            rig.add()
        await rig.store.claim([Want("q", 6)], 6, uuid4(), 1.0)
        sub = rig.handle(handler, max_workers=4, max_deliveries=5, lease_ttl_seconds=5.0)
        await rig.engine.start()
        most = 0
        while rig.store.rows:
            most = max(most, len(sub.reclaims.rows))
            await asyncio.sleep(0.05)
        assert most == 1
        assert len(rig.started) == 6

    with_engine(body)


def test_max_deliveries_of_one_disables_prefetch():
    async def body(rig):
        async def handler(_delivery):
            await asyncio.sleep(1)

        sub = rig.handle(handler, max_workers=2, max_deliveries=1, fetch_batch_size=10)
        await rig.engine.start()
        for _ in range(10):
            rig.add()
        most = 0
        while rig.store.rows:
            most = max(most, len(sub.hand))
            await asyncio.sleep(0.05)
        assert most <= 2
        assert rig.store.dlq_rows == []

    with_engine(body)


def test_fifty_engines_one_row():
    """F-B12: exactly one handler starts."""

    async def body(rig):
        async def handler(_delivery):
            await asyncio.sleep(1)

        engines = [rig.new_engine() for _ in range(50)]
        for engine in engines:
            rig.handle(handler, engine=engine)
            await engine.start()
        rig.add()
        await rig.until(lambda: not rig.store.rows)
        assert len(rig.started) == 1
        for engine in engines:
            await engine.stop(0)

    with_engine(body)


def test_a_slot_kept_free_for_expired_rows_is_given_back_when_others_took_them():
    """The prefetched rows go on when the take-over finds nothing left."""

    async def body(rig):
        async def handler(_delivery):
            await asyncio.sleep(0.1)

        sub = rig.handle(handler, max_workers=1, lease_ttl_seconds=30.0)
        await rig.engine.start()
        from outlast.model.look import Expired

        for _ in range(5):
            rig.add()
        sub.abandoned.extend(Expired(n, 30.0) for n in range(1000, 1005))
        await rig.until(lambda: not rig.store.rows, seconds=5)
        assert len(rig.started) == 5

    with_engine(body)
