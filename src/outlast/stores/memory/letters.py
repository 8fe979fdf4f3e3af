"""The letters of the memory store: buried, resolved, refreshed and opened again by replays.

Works on the store's own lists, in one step of the event loop.
"""

from datetime import datetime, timedelta
from typing import Any

from outlast.model.dead_letter import Letter
from outlast.model.replay_pass import (
    DELIVERED,
    KEPT_SECONDS,
    OPEN,
    REPLAYING,
    RESOLVED,
    Delivered,
    Failed,
    ReplayPass,
    Retried,
)
from outlast.stores.memory.rows import MemoryRow, dead_letter, failure_columns


class MemoryLetters:
    """What happens to dead letters when a row is settled."""

    def __init__(self, letters: list[dict[str, Any]], history: list[dict[str, Any]]) -> None:
        self._letters = letters
        self._history = history
        self._ids = 0

    def bury(self, row: MemoryRow, letter: Letter, now: datetime) -> None:
        """A new letter."""
        self._ids = max(self._ids, max((x["id"] for x in self._letters), default=0)) + 1
        self._letters.append(dead_letter(self._ids, row, letter, now))

    def resolve(self, row: MemoryRow, ended: Delivered, now: datetime) -> None:
        """The replay was acknowledged."""
        found = self._linked(row, ended)
        if found is None:
            return
        found["total_deliveries"] += row.deliveries_count
        found["resolution"] = DELIVERED
        found["purge_after"] = now + timedelta(seconds=KEPT_SECONDS)
        self._move(found, RESOLVED, now)
        self._tell(found, RESOLVED, ended.actor, now)

    def refresh(self, row: MemoryRow, ended: Retried, now: datetime) -> None:
        """The replay failed and is tried again."""
        found = self._linked(row, ended)
        if found is not None:
            found.update(failure_columns(ended.failure))
            found["last_failure_at"] = ended.attempt.last_at
            found["attempts_count"] = ended.attempt.count
            found["deliveries_count"] = row.deliveries_count

    def reopen(self, row: MemoryRow, ended: Failed, now: datetime) -> None:
        """The replay failed for good."""
        found = self._linked(row, ended)
        if found is None:
            self.bury(row, ended.letter, now)
            return
        letter = ended.letter
        found.update(failure_columns(letter.failure))
        found["failure_reason"] = letter.reason
        found["last_failure_at"] = letter.last_failure_at or now
        found["attempts_count"] = letter.attempts_count
        found["deliveries_count"] = row.deliveries_count
        found["total_deliveries"] += row.deliveries_count
        found["resolution"] = found["purge_after"] = None
        found["subscriber"] = letter.subscriber
        found["consumer_instance"] = letter.consumer_instance
        found["consumer_version"] = letter.consumer_version
        self._move(found, OPEN, now)
        self._tell(found, "replay_failed", letter.consumer_instance, now)

    def _linked(self, row: MemoryRow, ended: ReplayPass) -> dict[str, Any] | None:
        for letter in self._letters:
            if letter["id"] == ended.letter_id:
                together = letter["state"] == REPLAYING and letter["replayed_as"] == row.id
                return letter if together else None
        return None

    @staticmethod
    def _move(letter: dict[str, Any], state: str, now: datetime) -> None:
        letter["state"] = state
        letter["state_changed_at"] = now
        letter["replayed_as"] = None

    def _tell(self, letter: dict[str, Any], kind: str, actor: str | None, now: datetime) -> None:
        self._history.append({"dlq_id": letter["id"], "at": now, "kind": kind, "actor": actor})
