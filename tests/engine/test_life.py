"""From a committed row to a handler, and to the dead letters: the thin path."""

import asyncio

from outlast.model.outcome import RETRY_TERMINAL, Retry, Terminal
from outlast.policy.retry import NoRetry
from tests.engine.bench import with_engine


async def _nothing(_delivery):
    return None


def test_a_message_reaches_its_handler_and_goes():
    async def body(rig):
        rig.handle(_nothing)
        await rig.engine.start()
        rig.add(payload=b"hello")
        await rig.until(lambda: not rig.store.rows)
        assert [d.payload for _, d in rig.started] == [b"hello"]
        assert rig.names() == ["dispatched", "acked"]
        assert rig.store.dlq_rows == []

    with_engine(body)


def test_a_wake_up_is_followed_by_one_claim():
    """S1-44: from the wake-up to the handler no time passes, however long the interval."""

    async def body(rig):
        rig.handle(_nothing, min_fetch_interval=10.0, max_fetch_interval=10.0)
        await rig.engine.start()
        await asyncio.sleep(25)
        before = len(rig.told("fetched"))
        rig.add()
        await rig.until(lambda: rig.started)
        assert rig.started[0][0] == 25.0
        assert len(rig.told("fetched")) - before == 1

    with_engine(body)


def test_a_failing_message_is_retried_on_time_and_then_dead():
    """S0-11, S0-50: attempts at 0, 5, 10 s; then one dead letter, told before its terminal nack."""
    from outlast.policy.retry import ConstantRetry

    async def body(rig):
        async def fail(_delivery):
            raise ValueError("no")

        rig.handle(fail, retry_strategy=ConstantRetry(delay_seconds=5, max_attempts=3))
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: rig.store.dlq_rows)
        starts = [at for at, _ in rig.started]
        assert [round(at, 1) for at in starts] == [0.0, 5.0, 10.0]
        assert all(-1e-6 <= at - due < 0.05 for at, due in zip(starts, (0, 5, 10), strict=True))
        (letter,) = rig.store.dlq_rows
        assert letter["failure_reason"] == RETRY_TERMINAL
        assert letter["attempts_count"] == 3
        assert letter["deliveries_count"] == 3
        assert letter["last_exception"] == "ValueError('no')"
        assert rig.names()[-2:] == ["dlq_written", "nacked_terminal"]
        # from its making, not from its last claim
        assert 10.0 <= rig.told("dlq_written")[0]["age_seconds"] < 10.1
        assert rig.names().count("dispatched") == 3
        assert rig.store.rows == []

    with_engine(body)


def test_the_outcome_a_deliverer_returns_is_what_is_settled():
    async def body(rig):
        outcomes = [Retry(2.0), Terminal("rejected")]

        async def deliver(_delivery):
            return outcomes.pop(0)

        rig.handle(deliver)
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: rig.store.dlq_rows)
        assert rig.store.dlq_rows[0]["failure_reason"] == "rejected"
        assert rig.store.dlq_rows[0]["last_exception"] is None

    with_engine(body)


def test_without_dead_letters_a_terminal_failure_just_goes():
    """S0-01: no DLQ table, no dead letter, one delete."""
    from outlast.stores.memory.store import MemoryStore
    from tests import virtual

    async def body(rig):
        rig.store.has_dead_letters = False

        async def fail(_delivery):
            raise ValueError

        rig.handle(fail, retry_strategy=NoRetry())
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: not rig.store.rows)
        assert rig.store.dlq_rows == []
        assert rig.names() == ["dispatched", "nacked_terminal"]

    assert MemoryStore(virtual.now).has_dead_letters
    with_engine(body)


def test_many_workers_run_at_once_and_no_more():
    """S1-08: `max_workers` handlers at the same time."""

    async def body(rig):
        running, most = 0, 0

        async def handler(_delivery):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1

        rig.handle(handler, max_workers=4)
        await rig.engine.start()
        for _ in range(20):
            rig.add()
        await rig.until(lambda: not rig.store.rows)
        assert most == 4

    with_engine(body)
