"""When a claim happens: wake-ups, intervals, due instants. Exact, on the virtual clock."""

import asyncio
from datetime import timedelta
from itertools import pairwise

from outlast.policy.retry import ConstantRetry
from tests.engine.bench import with_engine


async def _nothing(_delivery):
    return None


def _gaps(instants):
    return [b - a for a, b in pairwise(instants)]


def test_idle_claims_slow_down_to_the_ceiling_with_jitter():
    """S1-11: idle gaps grow, then stay at or below `max_fetch_interval`, and are not constant."""

    async def body(rig):
        rig.handle(_nothing, min_fetch_interval=1.0, max_fetch_interval=10.0)
        await rig.engine.start()
        await asyncio.sleep(200)
        gaps = _gaps([at for at, name, _ in rig.events if name == "fetched"])
        assert gaps[0] < gaps[1] < gaps[2]
        assert all(0.99 <= gap <= 10.001 for gap in gaps)
        late = gaps[5:]
        assert all(gap > 8.9 for gap in late)
        assert len({round(gap, 3) for gap in late}) > 1

    with_engine(body)


def test_after_a_short_claim_the_floor_holds_without_a_wake_up():
    """S1-10: after a short claim the next waits `min_fetch_interval`; a full one goes at once."""

    async def body(rig):
        rig.handle(_nothing, fetch_batch_size=10, min_fetch_interval=3.0, max_fetch_interval=9.0)
        for _ in range(25):
            rig.add()
        await rig.engine.start()
        await asyncio.sleep(4)
        fetched = [(at, tags["count"]) for at, name, tags in rig.events if name == "fetched"]
        assert [count for at, count in fetched if at == 0.0] == [10, 10, 5]
        assert fetched[3][0] >= 3.0

    with_engine(body)


def test_a_lost_wake_up_costs_at_most_the_interval():
    """L3, F-B13: the row is found by the look, without a notification."""

    async def body(rig):
        rig.handle(_nothing, min_fetch_interval=1.0, max_fetch_interval=10.0)
        await rig.engine.start()
        await asyncio.sleep(100)
        rig.store._wake = None
        added = rig.now()
        rig.add()
        await rig.until(lambda: rig.started)
        assert rig.started[0][0] - added <= 10.0
        # the peek runs at the floor, idle or not
        assert rig.started[0][0] - added <= 1.001

    with_engine(body)


def test_a_timer_of_another_process_is_on_time():
    """A timer set at least `min_fetch_interval` ahead starts within 50 ms, without a NOTIFY."""

    async def body(rig):
        rig.handle(_nothing, min_fetch_interval=1.0, max_fetch_interval=10.0)
        await rig.engine.start()
        await asyncio.sleep(50)
        for ahead in (1.0, 3.7, 12.25):
            rig.started.clear()
            due = rig.now() + ahead
            rig.add(activate_in=timedelta(seconds=ahead))
            await rig.until(lambda: rig.started)
            late = rig.started[0][0] - due
            assert -1e-6 <= late < 0.05
            await asyncio.sleep(7)

    with_engine(body)


def test_many_timers_close_together_are_all_on_time():
    """The instant behind a due one is looked for again, not only at the next floor."""

    async def body(rig):
        rig.handle(_nothing, min_fetch_interval=1.0, max_workers=4)
        await rig.engine.start()
        await asyncio.sleep(20)
        start = rig.now() + 2.0
        due = {
            rig.add(activate_in=timedelta(seconds=2.0 + n * 0.1)): start + n * 0.1
            for n in range(50)
        }
        await rig.until(lambda: len(rig.started) == 50)
        lateness = [at - due[delivery.id] for at, delivery in rig.started]
        assert all(-1e-6 <= late < 0.05 for late in lateness)

    with_engine(body)


def test_timers_that_a_peek_finds_already_due_hide_none_behind_them():
    """The peek comes when the first of them is due: those behind it are on time all the same."""

    async def body(rig):
        rig.handle(_nothing, min_fetch_interval=10.0, max_fetch_interval=10.0, max_workers=4)
        await rig.engine.start()
        await asyncio.sleep(21)
        start = rig.now() + 0.5
        due = {
            rig.add(activate_in=timedelta(seconds=0.5 + n * 0.03)): start + n * 0.03
            for n in range(30)
        }
        await asyncio.sleep(0.501)
        rig.engine._claimer.peek_soon()
        await rig.until(lambda: len(rig.started) == 30)
        lateness = [at - due[delivery.id] for at, delivery in rig.started]
        assert all(-1e-6 <= late < 0.05 for late in lateness)

    with_engine(body)


def test_every_retry_of_the_own_process_is_on_time():
    """Retries with different delays start within 50 ms of their instant, never before it."""

    async def body(rig):
        delays = iter([0.3, 1.1, 2.05, 0.01, 7.3])
        due = [0.0]

        class Delays:
            def get_next_attempt_delay(self, **_):
                delay = next(delays, None)
                if delay is not None:
                    due.append(rig.now() + delay)
                return delay

        async def fail(_delivery):
            raise ValueError

        rig.handle(fail, retry_strategy=Delays())
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: rig.store.dlq_rows)
        late = [at - planned for (at, _), planned in zip(rig.started, due, strict=True)]
        assert all(-1e-6 <= seconds < 0.05 for seconds in late)

    with_engine(body)


def test_a_message_that_commits_late_is_claimed_next_also_under_backlog():
    """F-A08, F-B07: an older row that appears after younger ones were claimed is not skipped."""

    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(0.1)

        rig.handle(slow, fetch_batch_size=10)
        for _ in range(200):
            rig.add()
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) > 50)
        late = rig.add()
        row = next(r for r in rig.store.rows if r.id == late)
        row.next_attempt_at -= timedelta(seconds=3600)
        committed = len(rig.told("fetched"))
        await rig.until(lambda: any(d.id == late for _, d in rig.started))
        claimed = len(rig.told("fetched"))
        # at most the claim that was under way, and the one after the commit, plus what waits
        position = [d.id for _, d in rig.started].index(late)
        assert position < 51 + 25
        assert claimed - committed <= 4

    with_engine(body)


def test_a_queue_an_hour_behind_another_does_not_hide_it():
    """One subscriber, two queues: old rows of one do not keep the other from being claimed."""

    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(0.05)

        rig.handle(slow, ["old", "new"], fetch_batch_size=10)
        for _ in range(500):
            rig.add("old")
        for row in rig.store.rows:
            row.next_attempt_at -= timedelta(seconds=3600)
        rig.add("new")
        await rig.engine.start()
        await rig.until(lambda: any(d.queue == "new" for _, d in rig.started))
        assert len(rig.started) <= 40

    with_engine(body)


def test_a_thousand_queues_on_one_subscriber():
    """Each is served; a woken one at once; idle ones cost bounded statements."""

    async def body(rig):
        from tests.engine.faults import FaultyStore

        queues = [f"q{n}" for n in range(1000)]
        rig.store = FaultyStore(rig.store)
        rig.engine = rig.new_engine()
        rig.handle(_nothing, queues, max_workers=4)
        await rig.engine.start()
        await asyncio.sleep(100)
        start = rig.now()
        rig.store.inner.insert(queue="q777", payload=b"")
        await rig.until(lambda: rig.started)
        assert rig.now() - start < 0.01
        for n in range(0, 1000, 7):
            rig.store.inner.insert(queue=f"q{n}", payload=b"")
        await rig.until(lambda: not rig.store.inner.rows)
        sizes = [len(wanted) for _, name, wanted, _ in rig.store.calls if name == "claim"]
        assert max(sizes) <= 100
        # without any notification they are found too
        rig.store.inner._wake = None
        rig.started.clear()
        rig.store.inner.insert(queue="q3", payload=b"")
        rig.store.inner.insert(queue="q998", payload=b"")
        start = rig.now()
        await rig.until(lambda: len(rig.started) == 2)
        assert rig.now() - start <= 1.1

    with_engine(body)


def test_each_subscription_keeps_its_own_knobs():
    """S1-16: two subscriptions of one engine poll at their own intervals."""

    async def body(rig):
        rig.handle(_nothing, "a", min_fetch_interval=1.0, max_fetch_interval=1.0)
        rig.handle(_nothing, "b", name="b", min_fetch_interval=5.0, max_fetch_interval=5.0)
        await rig.engine.start()
        await asyncio.sleep(100)
        counts = {}
        for tags in rig.told("fetched"):
            counts[tags["queue"]] = counts.get(tags["queue"], 0) + 1
        assert 85 <= counts["a"] <= 102
        assert 17 <= counts["b"] <= 21

    with_engine(body)


def test_a_wake_up_storm_costs_bounded_claims():
    """F-B14: notifications while a claim is under way or the hand is full are folded into one."""

    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(1)

        rig.handle(slow, fetch_batch_size=5)
        await rig.engine.start()
        for _ in range(20):
            rig.add()
        await rig.until(lambda: len(rig.started) == 2)
        before = len(rig.told("fetched"))
        for _ in range(10_000):
            rig.store.notify("q")
        await asyncio.sleep(0.5)
        assert len(rig.told("fetched")) - before <= 2

    with_engine(body)


def test_a_retry_with_a_long_delay_does_not_wake_early():
    async def body(rig):
        async def fail(_delivery):
            raise ValueError

        rig.handle(fail, retry_strategy=ConstantRetry(delay_seconds=3600, max_attempts=2))
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: rig.store.dlq_rows, seconds=4000, step=1.0)
        assert 3600 <= rig.started[1][0] < 3600.05

    with_engine(body)
