"""Doubts of a review of the engine, each as the situation in which it would show."""

import asyncio
from collections import defaultdict
from datetime import timedelta
from uuid import uuid4

import pytest

from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    OutcomeUnknown,
    RowLocked,
    RowRefused,
    TryLater,
)
from outlast.model.events import CLOSING
from outlast.model.look import Expired, Want
from outlast.model.outcome import Retry, Terminal
from outlast.policy import jitter
from outlast.policy.retry import ConstantRetry, NoRetry
from tests.engine.bench import with_engine
from tests.engine.faults import FaultyStore


class LateStore(FaultyStore):
    """Calls take effect at once; their answers may be held, or take their time."""

    def __init__(self, inner):
        super().__init__(inner)
        self.answers = defaultdict(list)
        self.seconds = {}

    def hold_answer(self, method):
        gate = asyncio.Event()
        self.answers[method].append(gate)
        return gate

    async def _call(self, name, *arguments, skip=False):
        answer = await super()._call(name, *arguments, skip=skip)
        if self.answers[name]:
            await self.answers[name].pop(0).wait()
        elif name in self.seconds:
            await asyncio.sleep(self.seconds[name])
        return answer


def late(rig):
    rig.store = LateStore(rig.store)
    rig.engine = rig.new_engine()
    return rig.store


def insert(rig, queue="q", **values):
    return rig.store.inner.insert(queue=queue, payload=values.pop("payload", b"{}"), **values)


def closings(rig):
    return [name for name in rig.names() if name in CLOSING]


# -- stop


def test_rows_of_a_claim_that_is_answered_during_a_stop_are_given_back():
    """The claim landed, its answer is under way, the hand is empty: nothing may stay leased."""

    async def body(rig):
        store = late(rig)

        async def handler(_delivery):
            return None

        rig.handle(handler)
        await rig.engine.start()
        await asyncio.sleep(1)
        answer = store.hold_answer("claim")
        insert(rig)
        await asyncio.sleep(0.1)
        assert store.inner.rows[0].acquired_token is not None
        stop = asyncio.create_task(rig.engine.stop(5))
        await asyncio.sleep(0.2)
        answer.set()
        await stop
        (row,) = store.inner.rows
        assert row.acquired_token is None
        assert row.deliveries_count == 0

    with_engine(body)


def test_verdicts_that_cannot_be_written_before_the_stop_are_closed_once():
    """Each `dispatched` is closed, also when the database is away to the end."""

    async def body(rig):
        store = late(rig)

        async def handler(_delivery):
            await asyncio.sleep(1)
            store.down.update({"settles", "letters"})

        rig.handle(handler, max_workers=3)
        for _ in range(3):
            insert(rig)
        store.refuse_reconnect = True
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 3)
        await asyncio.sleep(3)
        await rig.engine.stop(1)
        assert len(closings(rig)) == 3

    with_engine(body)


def test_a_settle_in_flight_at_the_end_of_a_stop_is_told_unknown():
    async def body(rig):
        store = late(rig)

        async def handler(_delivery):
            return None

        store.hold_answer("ack")
        rig.handle(handler)
        insert(rig)
        await rig.engine.start()
        await rig.until(lambda: store.count("ack"))
        await rig.engine.stop(0)
        assert closings(rig) == ["settle_unknown"]

    with_engine(body)


@pytest.mark.parametrize("worst", [False, True])
def test_a_stop_is_bounded_whatever_hangs(worst):
    """L4: grace + 2 s with handlers that do not end, settles held, the store slow to close."""

    async def body(rig):
        store = late(rig)

        async def stubborn(_delivery):
            end = asyncio.get_running_loop().time() + 50
            while asyncio.get_running_loop().time() < end:
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    continue

        async def obedient(_delivery):
            await asyncio.sleep(1000)

        rig.handle(stubborn, max_workers=2)
        rig.handle(obedient, "b", name="b")
        insert(rig)
        insert(rig, "b")
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 2)
        if worst:
            # the release's answer never comes, and a line does not close
            store.hold_answer("release")
            inner_close = store.inner.close

            async def close():
                await asyncio.sleep(1000)
                await inner_close()

            store.inner.close = close
        start = rig.now()
        await rig.engine.stop(3)
        assert rig.now() - start <= 3 + 2
        await asyncio.sleep(60)

    with_engine(body)


def test_a_stop_that_is_cancelled_fails_no_message():
    """S15: the engine cancels the handlers on its way out; that is no failed attempt."""

    async def body(rig):
        async def handler(_delivery):
            await asyncio.sleep(1000)

        rig.handle(handler, retry_strategy=NoRetry(), max_workers=2)
        rig.add()
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 2)
        stop = asyncio.create_task(rig.engine.stop(30))
        await asyncio.sleep(1)
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stop
        assert rig.store.dlq_rows == []
        assert [row.attempts_count for row in rig.store.rows] == [0, 0]
        assert not {"nacked_terminal", "nacked_retried"} & set(rig.names())

    with_engine(body)


@pytest.mark.parametrize("strategy", [NoRetry(), ConstantRetry(delay_seconds=5)])
def test_a_handler_that_answers_a_stop_with_an_error_of_its_own_is_released(strategy):
    """S15, F-C03: a clean-up that fails because of our cancellation is no verdict."""

    async def body(rig):
        async def raising(_delivery):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                raise RuntimeError("rollback failed: connection is closed") from None

        async def judging(_delivery):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                return Terminal("rejected")

        rig.handle(raising, retry_strategy=strategy)
        rig.handle(judging, "b", name="b")
        rig.add()
        rig.add("b")
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 2)
        await rig.engine.stop(0)
        assert rig.store.dlq_rows == []
        assert [(r.attempts_count, r.deliveries_count) for r in rig.store.rows] == [(0, 0)] * 2
        assert closings(rig) == ["released"] * 2

    with_engine(body)


def test_a_stop_during_the_start_stops():
    async def body(rig):
        store = late(rig)
        opening = asyncio.Event()
        inner_open = store.inner.open

        async def slow_open(wake):
            await opening.wait()
            await inner_open(wake)

        store.inner.open = slow_open

        async def handler(_delivery):
            return None

        rig.handle(handler)
        start = asyncio.create_task(rig.engine.start())
        await asyncio.sleep(0.1)
        stop = asyncio.create_task(rig.engine.stop())
        await asyncio.sleep(0.1)
        opening.set()
        await asyncio.gather(start, stop, return_exceptions=True)
        assert not rig.engine.is_running
        insert(rig)
        await asyncio.sleep(30)
        assert rig.started == []
        assert store.inner._wake is None

    with_engine(body)


def test_a_look_that_is_answered_after_the_stop_began_keeps_no_slot_free():
    """Expired rows seen too late are for others; the prefetched rows of the hand are finished."""

    async def body(rig):
        store = late(rig)

        async def handler(_delivery):
            await asyncio.sleep(0.1)

        for _ in range(3):
            insert(rig)
        await store.inner.claim([Want("q", 3)], 3, uuid4(), 1.0)
        sub = rig.handle(handler, max_workers=1, lease_ttl_seconds=5.0)
        await rig.engine.start()
        await asyncio.sleep(5.011)
        looks = store.count("look")
        answer = store.hold_answer("look")
        for _ in range(6):
            insert(rig)
        await rig.until(lambda: store.count("look") > looks)
        await rig.until(lambda: len(rig.started) == 1)
        start = rig.now()
        stop = asyncio.create_task(rig.engine.stop(10))
        await asyncio.sleep(0.01)
        answer.set()
        await stop
        assert rig.now() - start < 2
        assert "drain_timeout" not in rig.names()
        assert not sub.abandoned

    with_engine(body)


# -- settle


def test_retries_do_not_wait_for_an_endless_stream_of_acks():
    """Every kind gets its turn, however many verdicts of another kind come meanwhile."""

    async def body(rig):
        store = late(rig)
        store.seconds["ack"] = 0.01

        async def handler(delivery):
            await asyncio.sleep(0.005)
            if delivery.payload == b"fail":
                raise ValueError

        async def feed():
            while True:
                for _ in range(4):
                    insert(rig)
                await asyncio.sleep(0.005)

        rig.handle(handler, max_workers=4, retry_strategy=ConstantRetry(delay_seconds=100))
        await rig.engine.start()
        feeding = asyncio.create_task(feed())
        await asyncio.sleep(1)
        insert(rig, payload=b"fail")
        await rig.until(lambda: any(d.payload == b"fail" for _, d in rig.started))
        began = rig.now()
        await rig.until(lambda: "nacked_retried" in rig.names(), seconds=20)
        waited = rig.now() - began
        feeding.cancel()
        assert waited < 0.2

    with_engine(body)


def test_a_held_row_is_asked_for_less_and_less_often():
    """A lock that lasts is no reason for ten statements a second."""

    async def body(rig):
        from outlast.model.delivery import Answer

        store = late(rig)

        async def ack(pairs, timeout, *, skip=False):
            store.calls.append((rig.now(), "ack", pairs, skip))
            return Answer(held=tuple(pairs))

        store.ack = ack

        async def handler(_delivery):
            return None

        rig.handle(handler)
        insert(rig)
        await rig.engine.start()
        await asyncio.sleep(100)
        assert store.count("ack") < 40

    with_engine(body)


def test_a_defect_in_the_middle_of_a_group_written_one_by_one_doubles_nothing():
    async def body(rig):
        store = late(rig)
        calls = []
        inner_ack = store.inner.ack

        async def ack(pairs, timeout, *, skip=False):
            calls.append(pairs)
            if len(pairs) > 1:
                raise RowRefused("one of them")
            if len(calls) == 4:
                raise AssertionError("a defect")
            return await inner_ack(pairs, timeout, skip=skip)

        store.ack = ack

        async def handler(_delivery):
            await asyncio.sleep(1)

        rig.handle(handler, max_workers=6)
        for _ in range(6):
            insert(rig)
        await rig.engine.start()
        await rig.until(lambda: not store.inner.rows)
        await asyncio.sleep(60)
        assert closings(rig) == ["acked"] * 6

    with_engine(body)


def test_a_table_lock_on_a_group_written_one_by_one_leaves_the_leases_fresh():
    """Many single statements that each wait for a lock: extensions go between them."""

    async def body(rig):
        store = late(rig)
        locked = True

        async def ack(pairs, timeout, *, skip=False):
            if len(pairs) > 1:
                raise RowRefused("one of them")
            if locked:
                await asyncio.sleep(0.3)
                raise RowLocked("somebody")
            return await store.inner.ack(pairs, timeout, skip=skip)

        store.ack = ack

        async def handler(_delivery):
            await asyncio.sleep(0.1)

        rig.handle(handler, max_workers=100, fetch_batch_size=100, lease_ttl_seconds=6.0)
        for _ in range(100):
            insert(rig)
        await rig.engine.start()
        oldest = 0.0
        for _ in range(600):
            await asyncio.sleep(0.1)
            now = store.inner.clock()
            for row in store.inner.rows:
                if row.acquired_at is not None:
                    oldest = max(oldest, (now - row.acquired_at).total_seconds())
        locked = False
        await rig.until(lambda: not store.inner.rows)
        assert oldest < 6.0

    with_engine(body)


def test_a_dead_letter_that_is_asked_for_again_and_again_keeps_its_lease(monkeypatch):
    """A refresh that meets its statement in flight comes again soon, not an interval later."""
    monkeypatch.setattr(jitter, "uniform", min)

    async def body(rig):
        store = late(rig)
        locked = True

        async def bury(letters, timeout, *, skip=False):
            await asyncio.sleep(0.3)
            if locked:
                raise RowLocked("somebody")
            return await store.inner.bury(letters, timeout, skip=skip)

        store.bury = bury

        async def handler(_delivery):
            return Terminal("rejected")

        rig.handle(handler, lease_ttl_seconds=1.5)
        insert(rig)
        await rig.engine.start()
        await asyncio.sleep(20)
        locked = False
        await rig.until(lambda: not store.inner.rows, seconds=10)
        assert closings(rig) == ["nacked_terminal"]

    with_engine(body)


# -- workers


class Perverse(Exception):
    def __repr__(self):
        raise SystemExit("in repr")

    __str__ = __repr__


@pytest.mark.parametrize("error", [SystemExit("strategy"), asyncio.CancelledError()])
def test_a_strategy_that_raises_anything_costs_no_worker(error):
    """F-C08: also what is not an Exception."""

    async def body(rig):
        class Strategy:
            def get_next_attempt_delay(self, **_kw):
                raise error

        async def handler(delivery):
            if delivery.payload == b"bad":
                raise ValueError

        sub = rig.handle(handler, retry_strategy=Strategy())
        rig.add(payload=b"bad")
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: len(rig.store.rows) == 1, seconds=5)
        await rig.until(lambda: "nacked_retried" in rig.names(), seconds=5)
        assert sub.running == 0

    with_engine(body)


def test_an_exception_whose_text_raises_what_is_no_exception_is_described():
    """S17."""

    async def body(rig):
        async def handler(_delivery):
            raise Perverse

        sub = rig.handle(handler, retry_strategy=NoRetry())
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.store.dlq_rows, seconds=5)
        assert sub.running == 0
        assert len(sub.workers) == 1

    with_engine(body)


def test_a_renderer_that_exits_is_no_exit():
    from outlast.policy.describe import describe

    def renderer(_exception):
        raise SystemExit

    assert describe(ValueError("x"), subscriber="s", renderer=renderer).last_exception


def test_a_worker_that_a_handler_cancelled_is_replaced_at_once():
    """Old time-out libraries leave a cancellation behind; the prefetched rows wait for nobody."""

    async def body(rig):
        async def handler(delivery):
            await asyncio.sleep(0.01)
            if delivery.id == 1:
                asyncio.current_task().cancel()

        rig.handle(handler, max_workers=1)
        for _ in range(5):
            rig.add()
        await rig.engine.start()
        await rig.until(lambda: not rig.store.rows, seconds=1)
        assert len(rig.started) == 5

    with_engine(body)


def test_a_worker_that_died_in_a_drain_is_replaced():
    async def body(rig):
        async def handler(delivery):
            await asyncio.sleep(0.5)
            if delivery.id == 1:
                asyncio.current_task().cancel()

        rig.handle(handler, max_workers=1)
        for _ in range(3):
            rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.started)
        await rig.engine.stop(10)
        assert rig.store.rows == []
        assert len(rig.started) == 3

    with_engine(body)


def test_a_sleeping_worker_that_is_cancelled_as_it_is_roused_ends_quietly():
    async def body(rig):
        async def handler(_delivery):
            return None

        sub = rig.handle(handler, max_workers=2)
        await rig.engine.start()
        await asyncio.sleep(0.5)
        workers = list(sub.workers)
        for worker in workers:
            worker.cancel()
        sub.rouse(2)
        results = await asyncio.gather(*workers, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)

    with_engine(body)


def test_a_handler_whose_lease_was_lost_is_still_cancelled_at_the_limit():
    """Else a handler that hangs keeps its slot for ever."""

    async def body(rig):
        async def handler(delivery):
            if delivery.id == 1:
                await asyncio.sleep(100_000)

        rig.handle(handler, lease_ttl_seconds=6.0, lease_limit_seconds=30.0)
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.started)
        rig.store.rows.clear()
        await asyncio.sleep(60)
        assert closings(rig) == ["lease_lost"]
        rig.add()
        await rig.until(lambda: not rig.store.rows, seconds=20)

    with_engine(body)


# -- claims


def test_what_was_read_back_once_is_not_started_again_under_its_token():
    """A row that left the hand without a verdict is nobody's until its lease ends."""

    async def body(rig):
        from outlast.model.outcome import UNSETTLED

        store = late(rig)

        async def handler(_delivery):
            return UNSETTLED

        inner = store.inner.read_back

        async def read_back(queues, token, timeout):
            claim, _ = await inner(queues, token, timeout)
            return claim, False

        store.inner.read_back = read_back
        rig.handle(handler)
        insert(rig)
        store.fail("claim", OutcomeUnknown("lost"), when="after")
        await rig.engine.start()
        await asyncio.sleep(30)
        assert store.count("read_back") > 1
        assert len(rig.started) == 1

    with_engine(body)


def test_a_read_back_that_crosses_a_settle_starts_nothing_twice():
    async def body(rig):
        store = late(rig)

        async def handler(_delivery):
            await asyncio.sleep(1.05)

        inner = store.inner.read_back

        async def read_back(queues, token, timeout):
            claim, _ = await inner(queues, token, timeout)
            # the rows were read; the answer takes its time
            await asyncio.sleep(0.2)
            return claim, False

        store.inner.read_back = read_back
        rig.handle(handler)
        insert(rig)
        store.fail("claim", OutcomeUnknown("lost"), when="after")
        await rig.engine.start()
        await asyncio.sleep(30)
        assert len(rig.started) == 1

    with_engine(body)


@pytest.mark.parametrize("error", [TryLater("57014"), CannotWrite("42501"), RowLocked("55P03")])
def test_a_read_back_that_fails_blocks_no_claim(error):
    async def body(rig):
        store = late(rig)

        async def handler(_delivery):
            return None

        async def read_back(queues, token, timeout):
            raise error

        store.inner.read_back = read_back
        rig.handle(handler)
        insert(rig)
        store.fail("claim", OutcomeUnknown("lost"), when="after")
        await rig.engine.start()
        await asyncio.sleep(1)
        insert(rig)
        await rig.until(lambda: rig.started, seconds=5)
        await asyncio.sleep(20)
        assert "unexpectedly" not in rig.log_text()

    with_engine(body)


def test_rows_that_are_read_back_late_may_start():
    """The wait in hand counts from when they came into hand; the lease's age from the claim."""

    async def body(rig):
        store = late(rig)

        async def handler(_delivery):
            return None

        sub = rig.handle(handler, min_fetch_interval=20.0, max_fetch_interval=20.0)
        insert(rig)
        store.fail("claim", OutcomeUnknown("lost"), when="after")
        store.refuse_reconnect = True
        await rig.engine.start()
        await asyncio.sleep(8)
        store.refuse_reconnect = False
        await rig.until(lambda: not store.inner.rows, seconds=5)
        assert store.count("release") == 0
        assert sub.prefetching

    with_engine(body)


def test_rows_taken_over_by_a_lost_statement_are_not_hoarded():
    """They come back when their slot is taken: they wait no longer than any other row may."""

    async def body(rig):
        store = late(rig)

        async def handler(delivery):
            await asyncio.sleep(1 if delivery.id == 2 else 500)

        expired = insert(rig)
        await store.inner.claim([Want("q", 1)], 1, uuid4(), 1.0)
        store.inner.rows[0].acquired_at -= timedelta(seconds=100)
        sub = rig.handle(handler, max_workers=1)
        sub.walk_at = 1000.0 + 100.0
        insert(rig)
        insert(rig)
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 1)
        sub.abandoned.append(Expired(expired, 60.0))
        store.fail("take_over", OutcomeUnknown("lost", timed_out=True), when="after")
        store.seconds["read_back"] = 1.0
        await rig.until(lambda: store.count("read_back"))
        await asyncio.sleep(20)
        assert [d.id for _, d in rig.started] == [2, 3]
        assert store.inner.rows[0].acquired_token is None

    with_engine(body)


def test_a_take_over_that_fails_gives_its_slot_to_the_prefetched_rows():
    async def body(rig):
        store = late(rig)

        async def handler(_delivery):
            await asyncio.sleep(1)

        sub = rig.handle(handler, max_workers=1, fetch_batch_size=2, min_fetch_interval=5.0)
        insert(rig)
        insert(rig)
        await rig.engine.start()
        await rig.until(lambda: len(rig.started) == 1)
        store.fail("take_over", TryLater("57014"))
        sub.abandoned.append(Expired(999, 60.0))
        await rig.until(lambda: len(rig.started) == 2, seconds=1.1)
        assert store.count("take_over") == 1

    with_engine(body)


def test_a_look_that_never_answers_starves_no_claim():
    """A bad plan of the walk costs looks, not claims."""

    async def body(rig):
        store = late(rig)

        async def look(peek, walk, timeout):
            await asyncio.sleep(timeout)
            raise OutcomeUnknown("no answer in time", timed_out=True)

        store.look = look

        async def handler(_delivery):
            return None

        rig.handle(handler)
        await rig.engine.start()
        await asyncio.sleep(100)
        for _ in range(10):
            insert(rig)
            await rig.until(lambda: not store.inner.rows, seconds=41)

    with_engine(body)


def test_every_subscription_is_peeked_for_when_a_cycle_takes_longer_than_the_interval():
    """Many queues and a slow look: nobody is always first."""

    async def body(rig):
        store = late(rig)
        store.seconds["look"] = 0.02
        seen = defaultdict(int)
        inner = store.inner.look

        async def look(peek, walk, timeout):
            for queue in peek:
                seen[queue] += 1
            for step in walk:
                seen["walk " + step.queue] += 1
            return await inner(peek, walk, timeout)

        store.inner.look = look

        async def handler(_delivery):
            return None

        rig.handle(handler, [f"many{n}" for n in range(1000)])
        rig.handle(handler, ["few"], name="few")
        await rig.engine.start()
        await asyncio.sleep(120)
        assert seen["few"] >= 8
        assert seen["walk few"] >= 3

    with_engine(body)


def test_expired_rows_follow_each_other_at_once_with_max_deliveries():
    """One at a time, but the next one as soon as the last is settled."""

    async def body(rig):
        async def handler(_delivery):
            return None

        store = late(rig)
        store.seconds["ack"] = 0.005
        for _ in range(20):
            insert(rig)
        await store.inner.claim([Want("q", 20)], 20, uuid4(), 1.0)
        rig.handle(handler, max_workers=4, max_deliveries=5, lease_ttl_seconds=5.0)
        await rig.engine.start()
        await rig.until(lambda: rig.started, seconds=20)
        await rig.until(lambda: not store.inner.rows, seconds=2)

    with_engine(body)


def test_with_max_deliveries_one_reclaimed_row_is_in_hand_in_the_process():
    """Subscriptions of one engine share the risk: a poison of one charges no other's twice."""

    async def body(rig):
        async def handler(_delivery):
            await asyncio.sleep(1)

        for _ in range(3):
            rig.add("a")
            rig.add("b")
        await rig.store.claim([Want("a", 3), Want("b", 3)], 6, uuid4(), 1.0)
        options = {"max_workers": 4, "max_deliveries": 2, "lease_ttl_seconds": 5.0}
        subs = [rig.handle(handler, q, name=q, **options) for q in "ab"]
        await rig.engine.start()
        most = 0
        while rig.store.rows:
            most = max(most, sum(e.reclaimed for s in subs for e in s.hand))
            await asyncio.sleep(0.05)
            assert rig.now() < 120
        assert most == 1

    with_engine(body)


# -- reconnect


def test_a_line_that_comes_and_goes_is_paced():
    """A server that accepts connections and drops them at the first statement."""

    async def body(rig):
        store = late(rig)

        async def reconnect(line):
            store.reconnects.append(rig.now())

        store.reconnect = reconnect

        async def claim(*_a, **_k):
            raise Disconnected("dropped")

        store.claim = claim

        async def handler(_delivery):
            return None

        rig.handle(handler)
        await rig.engine.start()
        await asyncio.sleep(60)
        assert len(store.reconnects) <= 60

    with_engine(body)


def test_delays_of_any_size_end_in_a_place():
    """Zero, huge: the row is somewhere, the engine goes on."""

    async def body(rig):
        delays = {1: 0.0, 2: 3e9, 3: 1e-9}

        async def handler(delivery):
            if delivery.attempts_count == 0 and delivery.id in delays:
                return Retry(delays[delivery.id])

        rig.handle(handler)
        for _ in range(4):
            rig.add()
        await rig.engine.start()
        await rig.until(lambda: len(rig.store.rows) == 1, seconds=5)
        assert rig.store.rows[0].id == 2
        assert rig.store.rows[0].acquired_token is None

    with_engine(body)
