"""Guard: a replayed row does not run where its letter could not move with it.

Comes in: rows in hand, before their handler starts. Goes out: what is put off, for a worker whose
dead-letter table has every column; this one's is looked at again, on the letters line, in case a
migration has brought them.
"""

import asyncio
import logging
from collections.abc import Callable

from outlast.engine.hand import InHand
from outlast.model.errors import Disconnected, OutcomeUnknown, StoreFailure
from outlast.model.headers import REPLAY
from outlast.model.outcome import Postpone
from outlast.model.replay_pass import letter_of
from outlast.policy import jitter
from outlast.ports.store import Store

POSTPONE_SECONDS = 30.0
RECHECK_SECONDS = 5.0
"""Between two looks at the columns."""
TELL_SECONDS = 30.0
"""Between two ERRORs; the later ones count what they leave out."""

_SOON = 1.0


class ReplayGuard:
    """One per engine."""

    def __init__(
        self,
        store: Store,
        ring: Callable[[], None],
        timeout: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        self._store = store
        self._timeout = timeout
        self._ring = ring
        self._logger = logger
        self._recheck_at: float | None = None
        self._rechecked_at = float("-inf")
        self._tell_at = float("-inf")
        self._untold = 0

    def refusal(self, entry: InHand) -> Postpone | None:
        """What becomes of a row that may not run here."""
        headers = entry.delivery.headers
        if not headers or REPLAY not in headers or self._store.has_replays:
            return None
        letter_id = letter_of(headers)
        if letter_id is None:
            return None
        now = asyncio.get_running_loop().time()
        seconds = jitter.spread(POSTPONE_SECONDS, 0.4)
        if self._store.has_dead_letters:
            if now >= self._rechecked_at + RECHECK_SECONDS:
                # the row waits only until that is known
                seconds = _SOON
            if self._recheck_at is None:
                self._recheck_at = max(now, self._rechecked_at + RECHECK_SECONDS)
                self._ring()
        self._tell(entry, letter_id, seconds, now)
        return Postpone(seconds)

    def next_at(self) -> float | None:
        """When the columns are to be looked at again."""
        return self._recheck_at

    async def recheck(self) -> None:
        """Look at the columns again. Raises only when the line is lost."""
        self._recheck_at = None
        self._rechecked_at = asyncio.get_running_loop().time()
        try:
            await self._store.recheck_letters(self._timeout())
        except StoreFailure as failure:
            is_lost = isinstance(failure, OutcomeUnknown) and not failure.timed_out
            if isinstance(failure, Disconnected) or is_lost:
                raise
            self._logger.warning("the columns of the dead letters cannot be read: %s", failure)
        else:
            if self._store.has_replays:
                self._logger.warning("the dead-letter table has every column now: replays run here")

    def _tell(self, entry: InHand, letter_id: int, seconds: float, now: float) -> None:
        if now < self._tell_at:
            self._untold += 1
            return
        lacking = "its dead-letter table lacks columns"
        remedy = "bring the table to its full shape: outlast db print"
        if not self._store.has_dead_letters:
            lacking, remedy = "it has no dead-letter table", "give its broker the dlq_table"
        self._logger.error(
            "row %d of queue %r replays dead letter %d, which this worker could not end with it: "
            "%s. The row is not run here and comes again in %.0f s, for any worker (%d more such "
            "rows since the last line); %s",
            entry.delivery.id,
            entry.delivery.queue,
            letter_id,
            lacking,
            seconds,
            self._untold,
            remedy,
        )
        self._tell_at, self._untold = now + TELL_SECONDS, 0
