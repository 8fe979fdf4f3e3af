"""Hostile handlers: whatever they raise or do, the transition happens and the worker lives."""

import asyncio
import time

import pytest

from outlast.model.errors import OutlastError
from outlast.policy.retry import ConstantRetry, NoRetry
from tests.engine.bench import with_engine


class RaisingRepr(Exception):
    def __repr__(self):
        raise RuntimeError("repr")

    def __str__(self):
        raise RuntimeError("str")


class StrangeRepr(Exception):
    def __repr__(self):
        return 42

    __str__ = __repr__


def _deep(levels):
    if levels:
        _deep(levels - 1)
    raise ValueError("deep")


def _recursion():
    _recursion()


HOSTILE = {
    "repr": RaisingRepr(),
    "strange": StrangeRepr(),
    "nul": ValueError("a\x00b"),
    "surrogate": ValueError("\ud800 lone"),
    "huge": ValueError("x" * 100_000_000),
    "group": ExceptionGroup("many", [ValueError("a"), TimeoutError("b")]),
    "base": BaseException("not an Exception"),
    "generator": GeneratorExit("odd"),
    "stop": StopAsyncIteration("odd"),
    "exit": SystemExit(3),
    "cancelled": asyncio.CancelledError("foreign"),
    "outlast": OutlastError("ours"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_any_exception_becomes_a_dead_letter(name):
    """S0-37, S0-38, F-F08, F-F09, F-C04: bounded, storable text; no neighbour is disturbed."""

    async def body(rig):
        async def handler(delivery):
            if delivery.payload == b"bad":
                raise HOSTILE[name]

        rig.handle(handler, retry_strategy=NoRetry())
        await rig.engine.start()
        rig.add(payload=b"bad")
        rig.add(payload=b"good")
        await rig.until(lambda: not rig.store.rows)
        (letter,) = rig.store.dlq_rows
        for column in ("last_exception", "error_message", "stack_trace", "error_type"):
            text = letter[column]
            assert "\x00" not in text
            assert len(text.encode("utf-8")) <= 8192 * (4 if column == "last_exception" else 1)
            assert len(text) <= 8192
        assert letter["fingerprint"].startswith("v1:")
        assert rig.names().count("acked") == 1
        if name == "huge":
            assert letter["last_exception"].endswith("…[truncated]")

    with_engine(body)


def test_a_deep_traceback_keeps_its_last_twenty_frames():
    """S0-39, S4-101: a column of its own for the trace; its last twenty frames, and it says so."""

    async def body(rig):
        async def handler(_delivery):
            _deep(200)

        rig.handle(handler, retry_strategy=NoRetry())
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: rig.store.dlq_rows)
        trace = rig.store.dlq_rows[0]["stack_trace"]
        assert trace.count("in _deep") == 20
        assert "earlier frames left out" in trace
        assert trace.rstrip().endswith("ValueError: deep")

    with_engine(body)


def test_recursion_errors_are_ordinary():
    async def body(rig):
        async def handler(_delivery):
            _recursion()

        rig.handle(handler, retry_strategy=NoRetry())
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: rig.store.dlq_rows)
        assert rig.store.dlq_rows[0]["error_type"] == "RecursionError"

    with_engine(body)


def test_a_foreign_cancellation_is_a_failed_attempt_not_a_hot_loop():
    """A cancelled inner task, or a handler that cancels its own: the strategy decides."""

    async def body(rig):
        async def inner():
            await asyncio.sleep(10)

        async def cancels_inner(_delivery):
            task = asyncio.create_task(inner())
            await asyncio.sleep(0)
            task.cancel()
            await task

        async def cancels_itself(_delivery):
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

        retry = ConstantRetry(delay_seconds=2, max_attempts=3)
        rig.handle(cancels_inner, "a", retry_strategy=retry)
        rig.handle(cancels_itself, "b", name="b", retry_strategy=retry)
        await rig.engine.start()
        rig.add("a")
        rig.add("b")
        await rig.until(lambda: len(rig.store.dlq_rows) == 2)
        assert {row["attempts_count"] for row in rig.store.dlq_rows} == {3}
        assert {row["error_type"] for row in rig.store.dlq_rows} == {
            "asyncio.exceptions.CancelledError"
        }
        # both subscriptions still work
        rig.add("a")
        rig.add("b")
        await rig.until(lambda: len(rig.store.dlq_rows) == 4)

    with_engine(body)


def test_a_raising_or_absurd_strategy_is_never_terminal():
    """F-C08: the message is retried with the default delays, the error is visible."""

    async def body(rig):
        from datetime import datetime

        class Bad:
            answers = [ZeroDivisionError("s"), float("nan"), -1, "soon", datetime(2030, 1, 1)]

            def get_next_attempt_delay(self, **_):
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer

        async def handler(_delivery):
            if len(rig.started) <= 5:
                raise ValueError

        rig.handle(handler, retry_strategy=Bad())
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: not rig.store.rows, step=0.01)
        assert rig.store.dlq_rows == []
        assert len(rig.started) == 6
        gaps = [b[0] - a[0] for a, b in zip(rig.started, rig.started[1:], strict=False)]
        assert all(0.8 <= gap <= 20 for gap in gaps)

    with_engine(body)


def test_a_failing_queue_does_not_starve_another():
    """F-F16: everything fails on one queue; the other is served as if it were alone."""

    async def body(rig):
        async def fail(_delivery):
            raise ValueError

        async def fine(_delivery):
            await asyncio.sleep(0.01)

        retry = ConstantRetry(delay_seconds=0.5)
        rig.handle(fail, "bad", retry_strategy=retry, max_workers=4)
        rig.handle(fine, "good", name="good")
        for _ in range(100):
            rig.add("bad")
        await rig.engine.start()
        await asyncio.sleep(5)
        start = rig.now()
        for _ in range(20):
            rig.add("good")
        await rig.until(lambda: not any(r.queue == "good" for r in rig.store.rows))
        assert rig.now() - start < 1.0

    with_engine(body)


def test_a_handler_that_returns_while_its_child_runs_is_done():
    """F-F10: the verdict is the handler's; what it started lives on by itself."""

    async def body(rig):
        children = []

        async def child():
            await asyncio.sleep(5)

        async def handler(_delivery):
            children.append(asyncio.create_task(child()))

        rig.handle(handler)
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: not rig.store.rows)
        await asyncio.gather(*children)

    with_engine(body)


def test_a_blocked_event_loop_is_told_with_the_handlers_name():
    """F-B06: the warning comes while the loop stands still, and says where."""

    async def body(rig):
        async def blocks(_delivery):
            end = time.monotonic() + 5
            while "stands still" not in rig.log_text() and time.monotonic() < end:
                time.sleep(0.01)  # the fault itself

        rig.handle(blocks, name="slow_report")
        await rig.engine.start()
        rig.add()
        await rig.until(lambda: not rig.store.rows)
        assert "slow_report" in rig.log_text()
        assert "test_exceptions.py" in rig.log_text()

    with_engine(body, blocked_loop_seconds=0.05)
