"""Where a list or an action goes on, as one opaque text.

In: places. Out: text, and back. What a stranger made up is refused; nothing in it is trusted beyond
its type, and everything of it is bound.
"""

import base64
import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

from outlast.ops.refusals import BadRequest
from outlast.stores.desk.selection import Boundary, Place

CURSOR_CHARS_MAX = 32_768

_ID_MAX = 2**63 - 1


class Run(NamedTuple):
    """An action that goes on: its filter, what it takes, how far it came."""

    filter: str
    boundary: Boundary
    after: int
    counted: int
    handled: int


def of_place(place: Place) -> str:
    """The cursor of a list."""
    return _write(["l", place.at.astimezone(UTC).isoformat(), place.id])


def place_of(cursor: str) -> Place:
    """Where the list goes on."""
    kind, at, place_id = _read(cursor, 3)
    if kind != "l":
        raise _refusal()
    return Place(_time(at), _number(place_id))


def of_run(run: Run) -> str:
    """The cursor of an action."""
    at = run.boundary.at.astimezone(UTC).isoformat()
    return _write(["r", run.filter, run.boundary.id, at, run.after, run.counted, run.handled])


def run_of(cursor: str) -> Run:
    """The action that goes on."""
    kind, text, highest, at, after, counted, handled = _read(cursor, 7)
    if kind != "r" or not isinstance(text, str):
        raise _refusal()
    boundary = Boundary(_number(highest), _time(at))
    return Run(text, boundary, _number(after), _number(counted), _number(handled))


def _write(parts: list[Any]) -> str:
    text = json.dumps(parts, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _read(cursor: str, size: int) -> list[Any]:
    if len(cursor) > CURSOR_CHARS_MAX:
        raise _refusal()
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise _refusal() from None
    if not isinstance(parts, list) or len(parts) != size:
        raise _refusal()
    return parts


def _time(value: object) -> datetime:
    try:
        found = datetime.fromisoformat(str(value))
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise _refusal()


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _ID_MAX:
        raise _refusal()
    return value


def _refusal() -> BadRequest:
    return BadRequest("this is no cursor of ours", "start again without it")
