"""The claims line: claim, read back, take over, look. In: wants. Out: deliveries and sights."""

import contextlib
import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from asyncpg.pgproto.pgproto import UUID as DriverUUID  # noqa: N811

from outlast.model.delivery import Claim, Delivery
from outlast.model.look import Expired, Sight, Walked, WalkStep, Want, peek_depth
from outlast.stores.postgres.statements import Statements
from outlast.stores.postgres.wire import Wire

_logger = logging.getLogger("outlast.stores.postgres")

_BEGINNING = datetime(1, 1, 1, tzinfo=UTC)
_LOWEST_ID = -(2**63)


async def claim(
    wire: Wire,
    sql: Statements,
    wanted: Sequence[Want],
    limit: int,
    token: UUID,
    timeout: float,
) -> Claim:
    """Lease due rows under one token."""
    names = [want.queue for want in wanted]
    quotas = [want.quota for want in wanted]
    # each settle writes it again for every row, and the driver writes its own kind at once
    own = DriverUUID(token.bytes)
    return _claimed(await wire.fetch(sql.claim, (own, names, quotas, limit), timeout), own)


async def read_back(
    wire: Wire, sql: Statements, queues: Sequence[str], token: UUID, timeout: float
) -> Claim:
    """What a claim whose answer was lost had leased."""
    return _claimed(await wire.fetch(sql.read_back, (list(queues), token), timeout), token)


async def take_over(
    wire: Wire, sql: Statements, rows: Sequence[Expired], token: UUID, timeout: float
) -> Claim:
    """Lease expired rows anew."""
    ids = [row.id for row in rows]
    ttls = [row.ttl_seconds for row in rows]
    return _claimed(await wire.fetch(sql.take_over, (token, ids, ttls), timeout), token)


async def look(
    wire: Wire, sql: Statements, peek: Sequence[str], walk: Sequence[WalkStep], timeout: float
) -> Sight:
    """Two reads, each its own statement: no snapshot is held over both."""
    due: dict[str, list[float]] = {}
    now: datetime | None = None
    if peek:
        arguments = (list(peek), peek_depth(len(peek)))
        for name, seconds, at in await wire.fetch(sql.peek, arguments, timeout):
            due.setdefault(name, []).append(seconds)
            now = at
    walked = tuple(await _walk(wire, sql, walk, timeout)) if walk else ()
    return Sight(due, walked, now)


async def _walk(
    wire: Wire, sql: Statements, steps: Sequence[WalkStep], timeout: float
) -> list[Walked]:
    arguments = (
        [step.queue for step in steps],
        [step.ttl_seconds for step in steps],
        [step.after[0] if step.after else _BEGINNING for step in steps],
        [step.after[1] if step.after else _LOWEST_ID for step in steps],
        [step.limit for step in steps],
    )
    seen = {row[0]: row for row in await wire.fetch(sql.walk, arguments, timeout)}
    walked: list[Walked] = []
    for step in steps:
        row = seen.get(step.queue)
        if row is None:
            walked.append(Walked(step.queue, (), None, None))
            continue
        _, count, expired, next_expiry, last_at, last_id = row
        after = (last_at, last_id) if count >= step.limit else None
        walked.append(Walked(step.queue, tuple(expired or ()), next_expiry, after))
    return walked


def _claimed(records: list[Any], token: UUID) -> Claim:
    if not records:
        return Claim([], None)
    if len(records) > 1:
        # rows come back in physical order
        records.sort(key=_order)
    return Claim([_delivery(record, token) for record in records], records[0][10])


def _order(record: Any) -> tuple[datetime, int]:
    return (record[7], record[0])


def _delivery(record: Any, token: UUID) -> Delivery:
    headers = record[3]
    if headers is not None and headers.__class__ is not dict:
        headers = _headers(headers, record[0])
    return Delivery(
        record[0],
        record[1],
        record[2],
        headers,
        record[4],
        record[5],
        record[6],
        record[7],
        record[8],
        record[9],
        record[10],
        record[11],
        token,
    )


def _headers(stored: Any, row_id: int) -> dict[str, Any] | None:
    """JSON text of the claims line; another process may have written anything. Connections of the
    application give what they have decoded.
    """
    headers: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        headers = json.loads(stored)
    if isinstance(headers, dict):
        return headers
    _logger.warning("row %s: its headers are no JSON object; it is delivered without them", row_id)
    return None
