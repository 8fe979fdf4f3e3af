"""A virtual clock for asyncio: time passes only when every task waits, and at once.

`run(main)` drives a coroutine on it. A schedule that is empty while tasks wait is a deadlock.
"""

import asyncio
import signal
import traceback
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

BEGINNING = datetime(2030, 1, 1, tzinfo=UTC)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop whose `time()` jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 1000.0
        self._real_select = self._selector.select
        self._selector.select = self._jump  # type: ignore[method-assign]

    def _jump(self, timeout: float | None = None) -> Any:
        if timeout is None:
            # threads may still call back: wait for them in real time, for a while
            events = self._real_select(5.0)
            if not events:
                raise RuntimeError("deadlock: every task waits and nothing is scheduled")
            return events
        self._virtual += max(timeout, 0.0)
        if self._scheduled and abs(self._scheduled[0]._when - self._virtual) < 1e-7:
            # asyncio fires a timer a nanosecond early; here time would then stand still
            self._virtual = max(self._virtual, self._scheduled[0]._when)
        return self._real_select(0)

    def time(self) -> float:
        return self._virtual


def now() -> datetime:
    """The virtual database clock: the loop's, as an instant."""
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time() - 1000.0)


HANG_SECONDS = 60
"""Real seconds after which a test that makes no progress is ended with a traceback."""


def _hangs(_signal: int, frame: Any) -> None:
    where = "".join(traceback.format_stack(frame)[-12:])
    raise RuntimeError(f"the virtual clock runs on and on; it stands at:\n{where}")


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Drive `main` on a virtual clock."""
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANG_SECONDS)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
