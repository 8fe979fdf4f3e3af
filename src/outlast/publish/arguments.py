"""What a publish is asked to do, checked in a fixed order before anything else happens.

In: the keywords of `publish`, `publish_batch`, a response or a timer. Out: nothing, or the first
error, naming the field, the value and what to do. Every door calls these, so all refuse alike.
"""

from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from outlast.policy.names import check_name, check_queue
from outlast.tables.instant import DELAY_MAX

TimerConflict = Literal["ignore", "extend"]
"""What happens when a live message has the timer already: leave it, or move it to a later time."""

SessionOrConnection = AsyncSession | AsyncConnection


def check_arguments(
    context: str,
    *,
    queue: object,
    session: object,
    activate_in: object = None,
    activate_at: object = None,
    timer_id: object = None,
    timer_conflict: object = "ignore",
    session_optional: bool = False,
) -> None:
    """Everything but body and headers. `context` is what the user called."""
    check_activation(context, activate_in, activate_at)
    if not (session_optional and session is None):
        check_session(context, session)
    check_queue(queue)
    if timer_id is not None:
        check_name("timer_id", timer_id)
    check_timer_conflict(timer_id, timer_conflict)


def check_activation(context: str, activate_in: object, activate_at: object) -> None:
    """When: at most one of the two, and one that a database can count to."""
    if activate_in is not None and activate_at is not None:
        raise ValueError(
            f"{context} accepts at most one of activate_in / activate_at, got "
            f"activate_in={activate_in!r} and activate_at={activate_at!r}",
        )
    if activate_at is not None:
        if not isinstance(activate_at, datetime):
            raise TypeError(f"{context} requires activate_at to be a datetime, got {activate_at!r}")
        if activate_at.utcoffset() is None:
            raise ValueError(
                f"{context} requires activate_at to be timezone-aware, got {activate_at!r}; "
                "use datetime.now(tz=timezone.utc), or .replace(tzinfo=...)",
            )
        _check_countable(activate_at)
    if activate_in is not None:
        if not isinstance(activate_in, timedelta):
            raise TypeError(
                f"{context} requires activate_in to be a timedelta, got {activate_in!r}"
            )
        if abs(activate_in) > DELAY_MAX:
            raise ValueError(
                f"activate_in must be within {DELAY_MAX.days} days (100 years), got {activate_in!r}"
            )


def _check_countable(instant: datetime) -> None:
    try:
        year = (instant - (instant.utcoffset() or timedelta())).year
    except OverflowError:
        year = 0
    if not 1 < year < 9999:  # noqa: PLR2004 - the ends of the calendar move with the time zone
        raise ValueError(f"activate_at must be within the years 2 to 9998 in UTC, got {instant!r}")


def check_session(context: str, session: object) -> None:
    """The caller's transaction: an async session or connection of SQLAlchemy."""
    if not isinstance(session, (AsyncSession, AsyncConnection)):
        raise TypeError(
            f"{context} requires session to be an AsyncSession or AsyncConnection of "
            f"sqlalchemy.ext.asyncio, got {type(session).__name__}; pass the one whose "
            "transaction the message belongs to",
        )


def check_timer_conflict(timer_id: object, timer_conflict: object) -> None:
    """Which of the known rules, and only where there is a timer."""
    known = get_args(TimerConflict)
    if timer_conflict not in known:
        raise ValueError(
            f"timer_conflict must be one of {', '.join(map(repr, known))}, got {timer_conflict!r}"
        )
    if timer_conflict != "ignore" and timer_id is None:
        raise ValueError(
            f"timer_conflict={timer_conflict!r} needs a timer_id: without one there is nothing to "
            "conflict with",
        )


def check_timer(queue: object, timer_id: object) -> None:
    """The name of a timer, to cancel it."""
    check_queue(queue)
    check_name("timer_id", timer_id)


def check_limit(limit: object) -> int:
    """How many rows to look at."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be an int, got {limit!r} ({type(limit).__name__})")
    if limit < 1:
        raise ValueError(f"limit must be >= 1, got {limit}")
    return min(limit, 2**63 - 1)


def check_one_body(count: int, **single: Any) -> None:
    """What belongs to one message cannot be given to several."""
    if count <= 1:
        return
    for name, value in single.items():
        if value is not None:
            raise ValueError(
                f"{name} belongs to one message and this is a batch of {count}; publish them one "
                f"by one, or leave {name} out",
            )
