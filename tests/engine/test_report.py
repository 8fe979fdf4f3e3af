"""Workers are known: one row for each engine, and no delivery depends on it."""

import asyncio
from datetime import timedelta

import pytest

from outlast.model.errors import CannotWrite, Disconnected, OutcomeUnknown, RowLocked
from outlast.model.outcome import Terminal
from outlast.policy.retry import ConstantRetry, NoRetry
from outlast.stores.memory.store import MemoryStore
from tests import virtual
from tests.engine.bench import Rig, with_engine
from tests.engine.faults import FaultyStore


async def nothing(_delivery):
    return None


def with_workers(body, **options):
    """A rig over a memory with a table of workers, and `rig.row()` for the only row."""

    async def main():
        memory = MemoryStore(virtual.now, workers=True)
        rig = Rig(FaultyStore(memory), **options)
        rig.memory = memory

        def row():
            (found,) = memory.worker_rows.values()
            return found

        rig.row = row
        await body(rig)
        await rig.engine.stop(0.0)
        assert {t for t in asyncio.all_tasks() if t is not asyncio.current_task()} == set()

    virtual.run(main())


def test_a_worker_tells_at_once_what_it_serves_and_then_every_ten_seconds():
    async def body(rig):
        rig.handle(nothing, ("a", "b"), lease_ttl_seconds=30, max_workers=4)
        rig.handle(
            nothing,
            "c",
            name="other",
            lease_ttl_seconds=90,
            retry_strategy=ConstantRetry(delay_seconds=2, max_attempts=6, jitter_factor=0.5),
        )
        await rig.engine.start()
        await rig.until(lambda: rig.memory.worker_rows, seconds=0.1)
        row = rig.row()
        ((instance, _),) = rig.memory.worker_rows.items()
        assert instance.startswith("test:1:")
        assert row["version"] == "1.4"
        told = row["report"]
        assert told["queues"] == ["a", "b", "c"]
        assert [(s["name"], s["queues"]) for s in told["subscribers"]] == [
            ("handle", ["a", "b"]),
            ("other", ["c"]),
        ]
        assert (told["lease"], told["max_workers"]) == (90, 5)
        # the first subscriber retries for ever
        assert told["retry_horizon"] is None
        assert told["subscribers"][1]["retry_horizon"] == pytest.approx(2 * 1.25 * 5)
        assert "stopped" not in told
        started, first = row["started_at"], row["seen_at"]
        await asyncio.sleep(100)
        assert rig.store.count("report") == 11
        assert row["started_at"] == started
        assert (row["seen_at"] - first).total_seconds() == pytest.approx(100, abs=0.1)

    with_workers(body, consumer_version="1.4")


def test_what_handlers_take_is_told_in_bounded_memory():
    async def body(rig):
        times = [*[0.5] * 600, *[9.0] * 4, *[0.01] * 196]

        async def handler(_delivery):
            await asyncio.sleep(times.pop(0))

        subscription = rig.handle(handler)
        for _ in range(len(times)):
            rig.add()
        await rig.engine.start()
        await rig.until(lambda: not rig.memory.rows, step=5)
        await asyncio.sleep(11)
        told = rig.row()["report"]
        assert len(subscription.durations) == 200
        # of the newest 200, four took nine seconds
        assert told["p50"] == pytest.approx(0.01)
        assert told["p99"] == pytest.approx(9.0)
        assert told["subscribers"][0]["p99"] == told["p99"]

    with_workers(body)


def test_a_stop_is_told_before_the_last_handler_has_ended():
    """Who stops claims no more, so nobody may count on it; what it served stays known."""

    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(8)

        rig.handle(slow)
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.started)
        stop = asyncio.create_task(rig.engine.stop(20))
        await asyncio.sleep(0.1)
        assert not stop.done()
        told = rig.row()["report"]
        assert (told["stopped"], told["queues"], told["max_workers"]) == (True, [], 0)
        assert told["subscribers"][0]["queues"] == ["q"]
        await stop
        assert rig.memory.rows == []

    with_workers(body)


def test_an_idle_worker_tells_its_stop_and_a_database_that_hangs_does_not_delay_it():
    async def body(rig):
        rig.handle(nothing)
        await rig.engine.start()
        await rig.until(lambda: rig.memory.worker_rows)
        await rig.engine.stop(5)
        assert rig.row()["report"]["stopped"] is True

        later = rig.new_engine()
        rig.handle(nothing, engine=later)
        await later.start()
        await rig.until(lambda: len(rig.memory.worker_rows) == 2)
        rig.store.gate("report")
        before = rig.now()
        await later.stop(5)
        assert rig.now() - before < 2

    with_workers(body)


def test_a_subscriber_that_stops_serves_nothing_at_once_and_stays_known():
    async def body(rig):
        rig.handle(nothing, "a")
        going = rig.handle(nothing, "b", name="going")
        await rig.engine.start()
        await rig.until(lambda: rig.memory.worker_rows)
        await rig.engine.stop_subscription(going)
        await asyncio.sleep(0.1)
        told = rig.row()["report"]
        assert told["queues"] == ["a"]
        assert [s["name"] for s in told["subscribers"]] == ["handle", "going"]
        rig.handle(nothing, "d", name="late")
        await asyncio.sleep(0.1)
        assert rig.row()["report"]["queues"] == ["a", "d"]

    with_workers(body)


@pytest.mark.parametrize(
    "failure",
    [
        CannotWrite("permission denied for table outbox_worker"),
        RowLocked("locked"),
        OutcomeUnknown("no answer", timed_out=True),
    ],
    ids=["refused", "locked", "timeout"],
)
def test_a_row_that_cannot_be_written_is_told_once_and_hurts_nobody(failure):
    async def body(rig):
        for _ in range(4):
            rig.store.fail("report", failure)

        async def handler(delivery):
            return Terminal("rejected") if delivery.payload == b"bad" else None

        rig.handle(handler)
        await rig.engine.start()
        for n in range(30):
            rig.add(payload=b"bad" if n % 2 else b"good")
            await asyncio.sleep(2)
        assert rig.memory.rows == []
        assert len(rig.memory.dlq_rows) == 15
        assert len(rig.started) == 30
        assert rig.log_text().count("cannot be written") == 1
        assert rig.log_text().count("is written again") == 1
        assert rig.store.reconnects == []
        assert rig.row()["report"]["queues"] == ["q"]

    with_workers(body)


def test_a_line_that_is_lost_under_the_row_comes_back_for_the_letters():
    async def body(rig):
        rig.store.fail("report", Disconnected("gone"))

        async def reject(_delivery):
            return Terminal("rejected")

        rig.handle(reject)
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: rig.memory.dlq_rows, seconds=5)
        assert len(rig.store.reconnects) == 1
        await rig.until(lambda: rig.memory.worker_rows, seconds=11)

    with_workers(body)


def test_old_rows_are_forgotten_in_bites_and_seldom():
    async def body(rig):
        now = virtual.now()
        for n in range(250):
            rig.memory.worker_rows[f"old:{n}"] = {"seen_at": now - timedelta(days=31)}
        rig.memory.worker_rows["recent"] = {"seen_at": now - timedelta(days=29)}
        rig.handle(nothing)
        await rig.engine.start()
        await asyncio.sleep(0.1)
        assert len(rig.memory.worker_rows) == 152
        await asyncio.sleep(25)
        assert len(rig.memory.worker_rows) == 2
        calls = rig.store.count("forget_workers")
        await asyncio.sleep(3000)
        assert rig.store.count("forget_workers") == calls == 3
        await asyncio.sleep(700)
        assert rig.store.count("forget_workers") == 4

    with_workers(body)


def test_two_engines_of_one_process_have_a_row_each():
    async def body(rig):
        other = rig.new_engine()
        rig.handle(nothing, "a")
        rig.handle(nothing, "b", engine=other)
        await rig.engine.start()
        await other.start()
        await asyncio.sleep(0.1)
        queues = sorted(row["report"]["queues"] for row in rig.memory.worker_rows.values())
        assert queues == [["a"], ["b"]]
        await other.stop(0)

    with_workers(body)


def test_many_queues_make_no_endless_row():
    async def body(rig):
        rig.handle(nothing, [f"q{n}" for n in range(9_000)], max_fetch_interval=60)
        rig.handle(nothing, [f"r{n}" for n in range(9_000)], name="r", max_fetch_interval=60)
        rig.handle(nothing, "s", name="s")
        await rig.engine.start()
        await rig.until(lambda: rig.memory.worker_rows)
        told = rig.row()["report"]
        assert len(told["queues"]) == 10_000
        assert sum(len(s["queues"]) for s in told["subscribers"]) == 10_000

    with_workers(body)


def test_without_a_table_nothing_is_written():
    async def body(rig):
        rig.store = FaultyStore(rig.store)
        rig.engine = rig.new_engine()
        rig.handle(nothing, retry_strategy=NoRetry())
        await rig.engine.start()
        rig.add()
        await asyncio.sleep(60)
        await rig.engine.stop(1)
        assert not {"report", "forget_workers"} & {name for _, name, _, _ in rig.store.calls}

    with_engine(body)


def test_a_stop_that_meets_a_lock_is_told_when_it_is_gone():
    async def body(rig):
        rig.handle(nothing)
        await rig.engine.start()
        await rig.until(lambda: rig.memory.worker_rows)
        for _ in range(5):
            rig.store.fail("report", RowLocked("locked"))
        await rig.engine.stop(5)
        assert rig.row()["report"]["stopped"] is True

    with_workers(body)


def test_a_stop_waits_for_no_table_that_cannot_be_written():
    async def body(rig):
        rig.handle(nothing)
        await rig.engine.start()
        for _ in range(100):
            rig.store.fail("report", CannotWrite("permission denied"))
        before = rig.now()
        await rig.engine.stop(5)
        assert rig.now() - before < 2
        assert rig.store.count("report") < 20

    with_workers(body)


def test_a_long_drain_is_not_spent_on_a_table_that_cannot_be_written():
    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(60)

        rig.handle(slow)
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.started)
        for _ in range(1000):
            rig.store.fail("report", CannotWrite("permission denied"))
        before = rig.store.count("report")
        await rig.engine.stop(100)
        assert rig.store.count("report") - before < 20

    with_workers(body)


def test_one_moment_of_a_lock_is_not_worth_a_line():
    async def body(rig):
        rig.handle(nothing)
        await rig.engine.start()
        for _ in range(5):
            rig.store.fail("report", RowLocked("locked"))
            await asyncio.sleep(20)
        assert rig.log_text() == ""

    with_workers(body)
