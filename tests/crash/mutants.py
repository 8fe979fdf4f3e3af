"""Planted bugs, which the audit must catch: a harness that cannot fail proves nothing.

Each is a small change around the store or the handler of a worker process. `publish_outside` is
planted in the producer.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.model.delivery import ALL_SETTLED, Answer, Claim
from outlast.model.look import Walked
from outlast.model.outcome import ACK
from tests.crash.scene import QUEUE, dlq, outbox


class Mutant:
    """A store with a bug; `database` for statements of its own."""

    def __init__(self, inner: Any, database: AsyncEngine, folder: Path) -> None:
        self.inner = inner
        self.database = database
        self.marker = folder / "marker"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class AckIgnoresToken(Mutant):
    """Whoever holds the lease by now, the row goes."""

    async def ack(self, pairs: Any, timeout: float, *, skip: bool = False) -> Answer:
        async with self.database.begin() as connection:
            ids = [row_id for row_id, _ in pairs]
            await connection.execute(delete(outbox).where(outbox.c.id.in_(ids)))
        return ALL_SETTLED


class BuryInTwoTransactions(Mutant):
    """The letter is there before the row is gone, and the worker dies in between."""

    async def bury(self, letters: Sequence[Any], timeout: float, *, skip: bool = False) -> Answer:
        async with self.database.begin() as connection:
            for letter in letters:
                rows = select(
                    outbox.c.id,
                    outbox.c.queue,
                    outbox.c.payload,
                    outbox.c.deliveries_count,
                    outbox.c.created_at,
                ).where(outbox.c.id == letter.id)
                row = (await connection.execute(rows)).one()
                values = {
                    "original_id": row.id,
                    "queue": row.queue,
                    "payload": row.payload,
                    "deliveries_count": row.deliveries_count,
                    "created_at": row.created_at,
                    "failed_at": row.created_at,
                    "failure_reason": letter.reason,
                }
                await connection.execute(insert(dlq).values(values))
        if not self.marker.exists():
            # once: the process that takes the row over goes through
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        pairs = [(letter.id, letter.token) for letter in letters]
        return await self.inner.ack(pairs, timeout, skip=skip)


class BuryForgets(Mutant):
    """The row goes; the letter was to follow."""

    async def bury(self, letters: Any, timeout: float, *, skip: bool = False) -> Answer:
        return await self.inner.ack([(x.id, x.token) for x in letters], timeout, skip=skip)


class ClaimsEarly(Mutant):
    """Time does not matter."""

    async def claim(self, wanted: Any, limit: int, token: UUID, timeout: float) -> Claim:
        async with self.database.begin() as connection:
            await connection.execute(
                update(outbox)
                .where(outbox.c.queue == QUEUE, outbox.c.acquired_token.is_(None))
                .values(next_attempt_at=outbox.c.created_at)
            )
        return await self.inner.claim(wanted, limit, token, timeout)


class AcksAtClaim(Mutant):
    """At most once: the row goes before its handler runs."""

    async def claim(self, wanted: Any, limit: int, token: UUID, timeout: float) -> Claim:
        claim = await self.inner.claim(wanted, limit, token, timeout)
        if claim.rows:
            await self.inner.ack([(row.id, row.token) for row in claim.rows], timeout)
        return claim


class StealsLeases(Mutant):
    """Takes over what others still hold: every lease it sees counts as expired."""

    async def look(self, peek: Any, walk: Any, timeout: float) -> Any:
        sight = await self.inner.look(peek, walk, timeout)
        async with self.database.connect() as connection:
            leased = select(outbox.c.id).where(outbox.c.acquired_token.is_not(None))
            ids = tuple((await connection.execute(leased)).scalars())
        return sight._replace(walked=tuple(Walked(w.queue, ids, None, None) for w in sight.walked))

    async def take_over(self, rows: Any, token: UUID, timeout: float) -> Claim:
        soonest = [row._replace(ttl_seconds=0.001) for row in rows]
        return await self.inner.take_over(soonest, token, timeout)


def ack_on_cancel(deliver: Any) -> Any:
    """A cancelled handler counts as a success."""

    async def cancelled_is_done(delivery: Any) -> Any:
        try:
            return await deliver(delivery)
        except asyncio.CancelledError:
            return ACK

    return cancelled_is_done


STORES: dict[str, type[Mutant]] = {
    "ack_ignores_token": AckIgnoresToken,
    "bury_in_two_transactions": BuryInTwoTransactions,
    "bury_forgets": BuryForgets,
    "claims_early": ClaimsEarly,
    "acks_at_claim": AcksAtClaim,
    "steals_leases": StealsLeases,
}


def plant(
    name: str | None, store: Any, deliver: Any, database: AsyncEngine, folder: Path
) -> tuple[Any, Any]:
    """The store and handler of a worker, with the bug of this name."""
    if name in STORES:
        return STORES[name](store, database, folder), deliver
    if name == "ack_on_cancel":
        return store, ack_on_cancel(deliver)
    return store, deliver
