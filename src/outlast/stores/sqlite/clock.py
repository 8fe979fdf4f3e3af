"""Instants as SQLite stores them, reckoned from the database's own clock.

In and out: text that sorts as time does. Never the clock of Python.
"""

from datetime import UTC, datetime, timedelta

from outlast.tables.instant import SQLITE_NOW, from_text, to_text

NOW = f"SELECT {SQLITE_NOW}"

FIRST_INSTANT = datetime.min.replace(tzinfo=UTC)
_LAST_INSTANT = datetime(9999, 12, 31, tzinfo=UTC)


def plus(instant: datetime, seconds: float) -> str:
    """The text of an instant plus seconds, kept within the years that can be written."""
    try:
        return to_text(min(instant + timedelta(seconds=seconds), _LAST_INSTANT))
    except OverflowError:
        return to_text(_LAST_INSTANT if seconds > 0 else FIRST_INSTANT)


def read(stored: object, otherwise: datetime) -> datetime:
    """A stored instant. SQLite checks no types: what another program wrote may be anything, and
    one such row must not keep a whole claim from being answered.
    """
    try:
        return from_text(stored)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return otherwise


def read_optional(stored: object) -> datetime | None:
    """A stored instant that may be absent."""
    return None if stored is None else read(stored, FIRST_INSTANT)
