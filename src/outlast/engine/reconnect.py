"""Bringing a lost line back: at once the first time, then paced, with one log line per change.

One per engine, shared by its lines, so that an absent database sees at most fifty attempts a
minute from a process however many lines it has. A line that comes back only to be lost again is
paced as well.
"""

import asyncio
import logging

from outlast.model.errors import StoreFailure
from outlast.policy import jitter
from outlast.ports.store import Line, Store

ATTEMPT_SECONDS = 1.25
"""The mean pause between attempts while the database is away."""


class Reconnector:
    """Knows which lines are lost, and tells when that changes."""

    def __init__(self, store: Store, logger: logging.Logger) -> None:
        self._store = store
        self._logger = logger
        self._lost: set[Line] = set()
        self._told_away = False
        self._next_at = 0.0
        self._line_next_at: dict[Line, float] = {}
        self._turn = asyncio.Lock()

    async def restore(self, line: Line, why: BaseException) -> None:
        """Return when the line stands again."""
        self._lost.add(line)
        loop = asyncio.get_running_loop()
        while True:
            async with self._turn:
                next_at = max(self._next_at, self._line_next_at.get(line, 0.0))
                if (wait := next_at - loop.time()) > 0:
                    await asyncio.sleep(wait)
                self._line_next_at[line] = loop.time() + jitter.spread(ATTEMPT_SECONDS, 0.1)
                try:
                    await self._store.reconnect(line)
                except StoreFailure as failure:
                    self._next_at = loop.time() + jitter.spread(ATTEMPT_SECONDS, 0.1)
                    self._tell_away(failure, why)
                else:
                    self._next_at = 0.0
                    self._tell_back(line)
                    return

    def _tell_away(self, failure: StoreFailure, why: BaseException) -> None:
        if not self._told_away:
            self._told_away = True
            self._logger.warning(
                "the database is away: %s (first sign: %s); trying again about every %.1f s",
                failure,
                why,
                ATTEMPT_SECONDS,
            )

    def _tell_back(self, line: Line) -> None:
        self._lost.discard(line)
        if self._told_away and not self._lost:
            self._told_away = False
            self._logger.warning("the database is back; claiming goes on")
