"""An action on many letters, seen from outside: how far it is, and Ctrl-C.

In: what to run, and how many letters there are. Out: its result, or `Stopped` with what was done.
On a terminal there is a bar, elsewhere a line after each chunk.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from outlast.cli.paper import tell
from outlast.model.replay import BulkReplay
from outlast.ops.tally import BulkChange

BAR_CHARS = 30


class Stopped(Exception):  # noqa: N818 - asked for, no error
    """Ctrl-C came; `done` is the result of the chunks before."""

    def __init__(self, done: Any) -> None:
        super().__init__()
        self.done = done


async def stoppable(go: Callable[[Callable[[Any], None]], Awaitable[Any]], total: int) -> Any:
    """Run to the end, or to the end of the chunk in which Ctrl-C came."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    is_terminal = sys.stderr.isatty()

    def progress(done: Any) -> None:
        handled = _handled(done)
        if is_terminal:
            # the bar is taken away again: what stays is the result
            sys.stderr.write(f"\r{_bar(handled, total)}" if handled < total else "\r\x1b[K")
            sys.stderr.flush()
        elif handled < total:
            tell(f"{handled} of {total}")
        if stop.is_set() and handled < total:
            if is_terminal:
                tell("")
            raise Stopped(done)

    task = asyncio.current_task()

    def interrupt() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        elif not stop.is_set():
            stop.set()
            tell("stopping after this chunk; Ctrl-C again breaks it off")

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await go(progress)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _bar(handled: int, total: int) -> str:
    full = BAR_CHARS * handled // total
    return f"[{'#' * full}{'.' * (BAR_CHARS - full)}] {handled} of {total}"


def _handled(done: BulkReplay | BulkChange) -> int:
    """Letters that got a result; the results themselves are kept for a part only."""
    if isinstance(done, BulkChange):
        return done.done + done.skipped + done.failed
    return done.replayed + done.skipped + done.failed + sum(kind.count for kind in done.refused)
