"""Watchdog: a thread that notices when the event loop stands still, and says who holds it.

A blocked loop refreshes no lease, so others take the rows over. The warning comes while it is
blocked, with the handler's name and the line it stands on.
"""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable

_FRAMES = 6


class Watchdog:
    """One per engine."""

    def __init__(
        self, seconds: float, running: Callable[[], list[str]], logger: logging.Logger
    ) -> None:
        self._seconds = seconds
        self._running = running
        self._logger = logger
        self._stopped = threading.Event()
        self._beat = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = 0

    def start(self) -> None:
        """Begin watching the running loop."""
        self._loop_thread = threading.get_ident()
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._watch, args=(loop,), name="outlast watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it never waits for the loop."""
        self._stopped.set()
        self._beat.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopped.wait(self._seconds):
            self._beat.clear()
            try:
                loop.call_soon_threadsafe(self._beat.set)
            except RuntimeError:
                return
            if self._beat.wait(self._seconds):
                continue
            self._tell()
            self._beat.wait()

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the documented way in
        where = "".join(traceback.format_stack(frame, limit=_FRAMES)) if frame else "unknown"
        names = ", ".join(self._running()) or "no handler"
        self._logger.warning(
            "the event loop stands still for more than %g s; handlers running: %s. Leases are not "
            "refreshed meanwhile: move blocking work to a thread. It stands at:\n%s",
            self._seconds,
            names,
            where,
        )
