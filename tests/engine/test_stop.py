"""Stop: finish, release, leave nothing behind."""

import asyncio
import random

import pytest

from tests import virtual
from tests.engine.bench import Rig, with_engine


def test_stop_finishes_what_is_in_hand():
    """S1-02: within the grace everything that was claimed is handled and settled."""

    async def body(rig):
        async def handler(_delivery):
            await asyncio.sleep(1)

        rig.handle(handler)
        for _ in range(5):
            rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.started)
        await rig.engine.stop(30)
        assert rig.store.rows == []
        assert len(rig.started) == 5
        assert "drain_timeout" not in rig.names()

    with_engine(body)


def test_what_is_left_is_released_uncounted_and_claimable_at_once():
    """F-C02, F-C03: after the grace lease and count are given back, started or not."""

    async def body(rig):
        cancelled = []

        async def handler(_delivery):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        rig.handle(handler, max_workers=2)
        for _ in range(6):
            rig.add()
        due = {row.id: row.next_attempt_at for row in rig.store.rows}
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 2)
        start = rig.now()
        await rig.engine.stop(4)
        assert rig.now() - start <= 4 + 2
        assert len(cancelled) == 2
        assert len(rig.store.rows) == 6
        for row in rig.store.rows:
            assert row.acquired_token is None
            assert row.deliveries_count == 0
            assert row.attempts_count == 0
            assert row.next_attempt_at == due[row.id]
        assert rig.names().count("drain_timeout") == 1
        assert rig.names().count("released") == 2
        other = rig.new_engine()
        done = []

        async def quick(delivery):
            done.append(delivery.deliveries_count)

        rig.handle(quick, engine=other)
        await other.start()
        await rig.until(lambda: not rig.store.rows, seconds=1.0)
        assert done == [1] * 6
        await other.stop()

    with_engine(body)


def test_a_handler_that_does_not_end_keeps_its_lease():
    """A thread that runs on: nobody runs the message beside it; the stop is still bounded."""

    async def body(rig):
        async def stubborn(_delivery):
            end = asyncio.get_running_loop().time() + 50
            while asyncio.get_running_loop().time() < end:
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    continue

        rig.handle(stubborn)
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.started)
        start = rig.now()
        await rig.engine.stop(3)
        assert rig.now() - start <= 3 + 2
        assert rig.store.rows[0].acquired_token is not None
        assert rig.told("dispatch_abandoned")[0]["duration_seconds"] > 3
        assert rig.names() == ["dispatched", "drain_timeout", "dispatch_abandoned"]
        await asyncio.sleep(60)

    with_engine(body)


def test_stopping_one_subscription_leaves_the_others():
    async def body(rig):
        async def handler(_delivery):
            return None

        first = rig.handle(handler, "a")
        rig.handle(handler, "b", name="b")
        await rig.engine.start()
        await rig.engine.stop_subscription(first)
        rig.add("a")
        rig.add("b")
        await asyncio.sleep(30)
        assert [d.queue for _, d in rig.started] == ["b"]
        assert rig.engine.is_healthy

    with_engine(body)


def test_a_handler_may_ask_for_its_own_subscription_to_stop():
    async def body(rig):
        from outlast.model.outcome import RELEASE

        async def handler(_delivery):
            rig.engine.request_stop(sub)
            return RELEASE

        sub = rig.handle(handler)
        await rig.engine.start()
        for _ in range(3):
            rig.add()
        await rig.until(lambda: all(r.acquired_token is None for r in rig.store.rows))
        await asyncio.sleep(60)
        assert len(rig.store.rows) == 3
        assert {row.deliveries_count for row in rig.store.rows} == {0}
        assert rig.engine._subscriptions == []

    with_engine(body)


@pytest.mark.parametrize("seconds", [0, 5])
def test_a_claim_under_way_at_the_stop_is_given_back(seconds):
    """Rows that a late answer brings are released, not left leased."""

    async def body(rig):
        from tests.engine.faults import FaultyStore

        rig.store = FaultyStore(rig.store)
        rig.engine = rig.new_engine()

        async def handler(_delivery):
            return None

        # the statement has taken effect, its answer is on its way
        gate = asyncio.Event()
        claim = rig.store.inner.claim

        async def late_answer(*arguments):
            answer = await claim(*arguments)
            await gate.wait()
            return answer

        rig.store.inner.claim = late_answer
        rig.handle(handler)
        rig.store.inner.insert(queue="q", payload=b"")
        await rig.engine.start()
        await asyncio.sleep(0.1)
        assert rig.store.inner.rows[0].acquired_token is not None
        stop = asyncio.create_task(rig.engine.stop(seconds))
        await asyncio.sleep(0.1)
        gate.set()
        await stop
        (row,) = rig.store.inner.rows
        assert row.acquired_token is None
        assert row.deliveries_count == 0
        assert rig.started == []

    with_engine(body)


def test_stop_without_start_and_stop_twice():
    async def body(rig):
        fresh = rig.new_engine()
        await fresh.stop()
        await rig.engine.start()
        await rig.engine.stop()
        await rig.engine.stop()

    with_engine(body)


def test_an_engine_is_started_once():
    async def body(rig):
        await rig.engine.start()
        await rig.engine.stop()
        with pytest.raises(RuntimeError, match="new engine"):
            await rig.engine.start()

    with_engine(body)


def test_a_start_that_fails_leaves_nothing_open():
    async def main():
        rig = Rig()
        closed = []

        async def refuse(_wake):
            raise RuntimeError("cannot open")

        async def close():
            closed.append(True)

        rig.store.open, rig.store.close = refuse, close
        with pytest.raises(RuntimeError, match="cannot open"):
            await rig.engine.start()
        assert closed == [True]
        assert not rig.engine.is_running
        assert len(asyncio.all_tasks()) == 1

    virtual.run(main())


def test_a_hundred_start_stop_races_leave_nothing():
    """F-C06: stop at any instant of a start, with rows under way: no task and no lease is left."""

    async def main():
        import threading

        rig = Rig()
        random_ = random.Random(7)
        threads = threading.active_count()
        for _ in range(100):
            engine = rig.new_engine()

            async def handler(_delivery):
                await asyncio.sleep(random_.random() * 0.01)

            rig.handle(handler, engine=engine, max_workers=3)
            for _ in range(random_.randrange(4)):
                rig.add()
            starting = asyncio.create_task(engine.start())
            for _ in range(random_.randrange(12)):
                await asyncio.sleep(0)
            await asyncio.sleep(random_.choice([0, 0, 0.001, 0.02]))
            if random_.random() < 0.3:
                starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await engine.stop(random_.choice([0, 1]))
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) == 1
        assert threading.active_count() == threads
        assert all(row.acquired_token is None for row in rig.store.rows)

    virtual.run(main())


def test_a_closing_event_loop_ends_the_workers():
    """`asyncio.run` cancels every task: nothing may swallow that and go on."""

    async def main():
        rig = Rig()

        async def handler(_delivery):
            await asyncio.sleep(1000)

        rig.handle(handler, max_workers=2)
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.started)

    virtual.run(main())


def test_a_drain_is_no_hot_loop():
    """F-C07: while slow handlers finish, only their leases are refreshed."""

    async def body(rig):
        from tests.engine.faults import FaultyStore

        memory = rig.store
        rig.store = FaultyStore(memory)
        rig.engine = rig.new_engine()

        async def slow(_delivery):
            await asyncio.sleep(100)

        rig.handle(slow, max_workers=5, fetch_batch_size=5)
        for _ in range(5):
            memory.insert(queue="q", payload=b"")
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 5)
        before = len(rig.store.calls)
        await rig.engine.stop(200)
        calls = [name for _, name, _, _ in rig.store.calls[before:]]
        assert set(calls) == {"extend", "ack"}
        assert calls.count("extend") <= 10
        assert rig.store.reconnects == []
        assert memory.rows == []

    with_engine(body)
