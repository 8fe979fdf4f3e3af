"""Claim, read back, take over and look. Each is one visit to the database thread.

In: queues, ids and a token. Out: deliveries and sights, on the database's clock. Only a claim and a
take-over write, and a claim only when something is due.
"""

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from outlast.model.delivery import Claim, Delivery
from outlast.model.look import Expired, Sight, Walked, WalkStep, Want, peek_depth
from outlast.stores.sqlite.clock import FIRST_INSTANT, plus, read, read_optional
from outlast.stores.sqlite.connection import Hop
from outlast.stores.sqlite.names import Names
from outlast.tables.instant import to_text

_log = logging.getLogger("outlast.stores.sqlite")

# as bytes, because bytes that are not text would fail the whole claim
_COLUMNS = (
    "id, queue, payload, CAST(headers AS BLOB), attempts_count, deliveries_count, created_at, "
    "next_attempt_at, first_attempt_at, last_attempt_at, acquired_at, timer_id"
)
_NEXT_ATTEMPT_AT = 7

_decode = json.JSONDecoder().decode

_Row = tuple[Any, ...]


class Claims:
    """The statements of one outbox, built once."""

    def __init__(self, names: Names) -> None:
        outbox = names.outbox
        pending = f"FROM {outbox} WHERE queue = ? AND acquired_token IS NULL"
        leased = f"FROM {outbox} WHERE queue = ? AND acquired_token IS NOT NULL"
        # NOT INDEXED leaves the primary key: rows are located by id, whatever ANALYZE has seen
        update = f"UPDATE {outbox} NOT INDEXED SET"
        lease = (
            f"{update} acquired_token = ?, acquired_at = ?, "
            # an absurd counter may not keep its queue from being claimed
            "deliveries_count = min(deliveries_count, 9223372036854775806) + 1"
        )
        listed = "id IN (SELECT value FROM json_each(?))"
        self._is_due = f"SELECT 1 {pending} AND next_attempt_at <= ? LIMIT 1"
        self._claim = (
            f"{lease} WHERE id IN (SELECT id {pending} AND next_attempt_at <= ? "
            f"ORDER BY next_attempt_at, id LIMIT ?) RETURNING {_COLUMNS}"
        )
        self._take_over = (
            f"{lease} WHERE {listed} AND acquired_token IS NOT NULL "
            f"AND (acquired_at < ? OR acquired_at > ?) RETURNING {_COLUMNS}"
        )
        self._read_back = f"SELECT {_COLUMNS} {leased} AND acquired_token = ?"
        self._peek = f"SELECT next_attempt_at {pending} ORDER BY next_attempt_at, id LIMIT ?"
        walk = f"SELECT id, next_attempt_at, acquired_at {leased}"
        order = "ORDER BY next_attempt_at, id LIMIT ?"
        self._walk = f"{walk} {order}"
        self._walk_on = f"{walk} AND (next_attempt_at, id) > (?, ?) {order}"

    def claim(self, hop: Hop, wanted: Sequence[Want], limit: int, token: UUID) -> Claim:
        """Lease due rows, queue by queue. The peek takes no write lock, so that an idle worker
        never keeps a publisher waiting.
        """
        now, text = hop.now()
        first = self._first_due(hop, wanted, text) if limit > 0 else None
        if first is None:
            return Claim([], now)
        rows: list[_Row] = []
        with hop.writing():
            now, text = hop.now()
            for want in wanted[first:]:
                quota = min(want.quota, limit - len(rows))
                if quota > 0:
                    rows += hop.execute(
                        self._claim, (token.hex, text, want.queue, text, quota)
                    ).fetchall()
                if len(rows) >= limit:
                    break
        return _leased(rows, now, token)

    def _first_due(self, hop: Hop, wanted: Sequence[Want], text: str) -> int | None:
        for position, want in enumerate(wanted):
            if want.quota > 0 and hop.execute(self._is_due, (want.queue, text)).fetchone():
                return position
        return None

    def read_back(self, hop: Hop, queues: Sequence[str], token: UUID) -> Claim:
        """What the token holds."""
        now, _ = hop.now()
        rows: list[_Row] = []
        for queue in queues:
            rows += hop.execute(self._read_back, (queue, token.hex)).fetchall()
        rows.sort(key=_order)
        return Claim([_delivery(row, now, token, None) for row in rows], now)

    def take_over(self, hop: Hop, expired: Sequence[Expired], token: UUID) -> Claim:
        """Lease rows anew, each only if its own TTL is over by now."""
        by_ttl: dict[float, list[int]] = {}
        for row in expired:
            by_ttl.setdefault(row.ttl_seconds, []).append(row.id)
        rows: list[_Row] = []
        with hop.writing():
            now, text = hop.now()
            for ttl, ids in by_ttl.items():
                values = (token.hex, text, json.dumps(ids), plus(now, -ttl), plus(now, ttl))
                rows += hop.execute(self._take_over, values).fetchall()
        return _leased(rows, now, token)

    def look(self, hop: Hop, peek: Sequence[str], walk: Sequence[WalkStep]) -> Sight:
        """Heads of queues, and one chunk of the walk of each queue."""
        now, _ = hop.now()
        due: dict[str, list[float]] = {}
        depth = peek_depth(len(peek))
        for queue in peek:
            heads = hop.execute(self._peek, (queue, depth)).fetchall()
            if heads:
                due[queue] = [(read(head[0], now) - now).total_seconds() for head in heads]
        return Sight(due, tuple(self._step(hop, step, now) for step in walk), now)

    def _step(self, hop: Hop, step: WalkStep, now: datetime) -> Walked:
        # one more than asked: whether there is more is known without another visit
        if step.after is None:
            rows = hop.execute(self._walk, (step.queue, step.limit + 1)).fetchall()
        else:
            instant, row_id = step.after
            values = (step.queue, to_text(instant), row_id, step.limit + 1)
            rows = hop.execute(self._walk_on, values).fetchall()
        chunk = rows[: step.limit]
        earliest, latest = plus(now, -step.ttl_seconds), plus(now, step.ttl_seconds)
        expired: list[int] = []
        oldest_live = latest
        for row_id, _, acquired_at in chunk:
            if earliest <= str(acquired_at) <= latest:
                oldest_live = min(oldest_live, acquired_at)
            else:
                expired.append(row_id)
        wait = None
        if len(expired) < len(chunk):
            wait = step.ttl_seconds - (now - read(oldest_live, now)).total_seconds()
        after = None
        if chunk and len(rows) > step.limit:
            row_id, next_attempt_at, _ = chunk[-1]
            after = (read(next_attempt_at, FIRST_INSTANT), row_id)
        return Walked(step.queue, tuple(expired), wait, after)


def _leased(rows: list[_Row], now: datetime, token: UUID) -> Claim:
    """Rows that were leased just now."""
    rows.sort(key=_order)  # RETURNING promises no order
    return Claim([_delivery(row, now, token, now) for row in rows], now)


def _order(row: _Row) -> tuple[str, int]:
    return (str(row[_NEXT_ATTEMPT_AT]), row[0])


def _delivery(row: _Row, now: datetime, token: UUID, acquired_at: datetime | None) -> Delivery:
    payload, created_at, next_attempt_at = row[2], row[6], row[_NEXT_ATTEMPT_AT]
    created = read(created_at, now)
    return Delivery(
        row[0],
        row[1],
        payload if isinstance(payload, bytes) else str(payload).encode(),
        _headers(row[3], row[0]),
        row[4],
        row[5],
        created,
        created if next_attempt_at == created_at else read(next_attempt_at, now),
        read_optional(row[8]),
        read_optional(row[9]),
        acquired_at or read(row[10], now),
        row[11],
        token,
    )


def _headers(stored: bytes | None, row_id: int) -> dict[str, Any] | None:
    if stored is None:
        return None
    try:
        headers = _decode(stored.decode())
    except (ValueError, RecursionError):
        headers = _of_another_encoding(stored)
    if headers is None or isinstance(headers, dict):
        return headers
    _log.warning("row %s: its headers are no JSON object; it is delivered without them", row_id)
    return None


def _of_another_encoding(stored: bytes) -> Any:
    # a file may hold its text as UTF-16, which `loads` detects
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return stored
