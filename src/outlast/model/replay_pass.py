"""One pass of a replayed dead letter, as its worker ends it: the row and the letter it came from.

Made by the engine for a row that carries a replay header; a store moves the letter in the very
statement that settles the row, and only if letter, row and state still belong together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outlast.model import headers as envelope
from outlast.model.dead_letter import Letter
from outlast.model.delivery import Attempt
from outlast.model.failure import Failure

RESOLVED = "resolved"
REPLAYING = "replaying"
OPEN = "open"

DELIVERED = "delivered"
"""The resolution of a letter whose replay was acknowledged."""

KEPT_SECONDS = 7 * 86_400.0
"""How long a resolved letter is kept before it may be deleted."""

_ID_MAX = 2**63 - 1


def letter_of(headers: Mapping[str, Any] | None) -> int | None:
    """The letter a row says it replays; None for anything but a plausible id."""
    value = (headers or {}).get(envelope.REPLAY)
    if value is None or isinstance(value, bool):
        return None
    try:
        letter_id = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return letter_id if 0 < letter_id <= _ID_MAX else None


@dataclass(frozen=True, slots=True)
class Delivered:
    """Acknowledged: the row goes, the letter is resolved."""

    id: int
    token: UUID
    letter_id: int
    actor: str


@dataclass(frozen=True, slots=True)
class Retried:
    """Failed, to be tried again: the row is rescheduled, the letter shows the newest failure."""

    id: int
    token: UUID
    letter_id: int
    delay_seconds: float
    attempt: Attempt
    failure: Failure


@dataclass(frozen=True, slots=True)
class Failed:
    """Failed for good: the row goes, the same letter is open again, or a new one is written."""

    letter_id: int
    letter: Letter

    @property
    def id(self) -> int:
        """The row."""
        return self.letter.id

    @property
    def token(self) -> UUID:
        """Its lease."""
        return self.letter.token


ReplayPass = Delivered | Retried | Failed
