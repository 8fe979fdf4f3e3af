"""The database's clock as seen from here: its last answer plus local monotonic elapsed."""

import asyncio
from datetime import UTC, datetime, timedelta


class DatabaseClock:
    """Set by every claim, counted from before the claim was sent, so it is never behind."""

    def __init__(self) -> None:
        self._answer: datetime | None = None
        self._sent_at = 0.0

    def set(self, answer: datetime, sent_at: float) -> None:
        """The database said `answer` to a statement sent at `sent_at`."""
        self._answer = answer
        self._sent_at = sent_at

    def now(self) -> datetime:
        """The database's now, as well as it is known; this machine's before the first claim."""
        if self._answer is None:
            return datetime.now(UTC)
        elapsed = asyncio.get_running_loop().time() - self._sent_at
        return self._answer + timedelta(seconds=elapsed)
