"""Plain `def` handlers: FastStream runs them in a thread, and a thread cannot be cancelled.

A cancelled delivery would end at once while its thread runs on, and its row would be given to
somebody beside it. So the thread is watched, and the delivery ends when the thread does.
"""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any


class HandlerThread:
    """The thread of one delivery, if its handler gets as far as having one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._lock = threading.Lock()
        self._running = 0
        self._too_late = False

    def __enter__(self) -> None:
        with self._lock:
            if self._too_late:
                raise asyncio.CancelledError("cancelled before the handler began")
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            # a loop that is closed waits for nobody
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set)

    async def end(self) -> None:
        """Until the handler has returned; one that has not begun will not begin."""
        with self._lock:
            self._too_late = True
            if not self._running:
                return
        await self._ended.wait()


here: ContextVar[HandlerThread | None] = ContextVar("outlast_handler_thread", default=None)
"""What the handlers of this delivery enter; worker threads run in a copy of the context."""


def is_plain(call: Callable[..., Any]) -> bool:
    """Whether FastStream runs this handler in a thread."""
    return inspect.isroutine(call) and not inspect.iscoroutinefunction(call)


def watched(call: Callable[..., Any]) -> Callable[..., Any]:
    """The plain handler, with its thread told to its delivery."""
    try:
        signature = inspect.signature(call, eval_str=True)
    except (TypeError, ValueError, NameError):
        return call

    @wraps(call)
    def handler(*args: Any, **kwargs: Any) -> Any:
        thread = here.get()
        if thread is None:
            return call(*args, **kwargs)
        with thread:
            return call(*args, **kwargs)

    handler.__signature__ = signature  # type: ignore[attr-defined]
    return handler
