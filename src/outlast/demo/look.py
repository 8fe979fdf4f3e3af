"""What waits in the shop's outbox now.

In: the engine. Out: a `Look`. It is a picture of the moment, and proves nothing.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.demo.shop import WHAT_HAPPENS, outbox

FRAME_SECONDS = 0.2
SOON_SECONDS = 10.0
"""How far ahead a retry or a timer may lie to be waited for."""


@dataclass(frozen=True, slots=True)
class Look:
    """`soon` counts what handlers of the shop will get soon, `waiting` every row."""

    waiting: int
    soon: int
    oldest_seconds: float


async def look(engine: AsyncEngine) -> Look:
    """Look at the table."""
    now = datetime.now(UTC)
    at = outbox.c.next_attempt_at
    is_soon = (at <= now + timedelta(seconds=SOON_SECONDS)) & outbox.c.queue.in_(WHAT_HAPPENS)
    async with engine.connect() as connection:
        row = await connection.execute(
            select(func.count(), func.count(case((is_soon, 1))), func.min(at))
        )
    waiting, soon, oldest = row.one()
    return Look(waiting, soon, max(0.0, (now - oldest).total_seconds()) if oldest else 0.0)
