"""Extend, ack, retry and release. Each is one transaction in one visit to the database thread.

In: pairs of id and token. Out: the pairs that were not ours any more. Every statement is fenced by
both; one id may come twice under two tokens. Nothing is ever held: SQLite locks no rows.
"""

import json
from collections.abc import Sequence
from uuid import UUID

from outlast.model.delivery import ALL_SETTLED, Answer, Pair, RetryEntry
from outlast.stores.sqlite.clock import plus
from outlast.stores.sqlite.connection import Hop
from outlast.stores.sqlite.names import Names
from outlast.tables.instant import to_text


class Settles:
    """The statements of one outbox, built once."""

    def __init__(self, names: Names) -> None:
        # NOT INDEXED leaves the primary key: a token must never lead through an index of leases
        update = f"UPDATE {names.outbox} NOT INDEXED SET"
        unlease = "acquired_token = NULL, acquired_at = NULL"
        owned = "WHERE id IN (SELECT value FROM json_each(?)) AND acquired_token = ? RETURNING id"
        self._extend = f"{update} acquired_at = ? {owned}"
        self._ack = f"DELETE FROM {names.outbox} NOT INDEXED {owned}"  # noqa: S608 - a quoted name
        self._release = (
            f"{update} {unlease}, deliveries_count = max(0, deliveries_count - 1) {owned}"
        )
        self._postpone = (
            f"{update} {unlease}, next_attempt_at = ?, "
            f"deliveries_count = max(0, deliveries_count - 1) {owned}"
        )
        self._retry = (
            f"{update} {unlease}, next_attempt_at = ?, attempts_count = ?, first_attempt_at = ?, "
            "last_attempt_at = ? WHERE id = ? AND acquired_token = ?"
        )

    def extend(self, hop: Hop, pairs: Sequence[Pair]) -> Answer:
        """Begin the leases anew."""
        with hop.writing():
            _, now = hop.now()
            return _settled(hop, self._extend, (now,), pairs)

    def ack(self, hop: Hop, pairs: Sequence[Pair]) -> Answer:
        """Delete."""
        with hop.writing():
            return _settled(hop, self._ack, (), pairs)

    def release(self, hop: Hop, pairs: Sequence[Pair]) -> Answer:
        """Give back, uncounted."""
        with hop.writing():
            return _settled(hop, self._release, (), pairs)

    def postpone(self, hop: Hop, pairs: Sequence[Pair], seconds: float) -> Answer:
        """Give back, uncounted, for later."""
        with hop.writing():
            now, _ = hop.now()
            return _settled(hop, self._postpone, (plus(now, seconds),), pairs)

    def retry(self, hop: Hop, entries: Sequence[RetryEntry]) -> Answer:
        """Reschedule, from the database's now."""
        lost: list[Pair] = []
        with hop.writing():
            now, _ = hop.now()
            for entry in entries:
                values = (
                    plus(now, entry.delay_seconds),
                    entry.attempt.count,
                    to_text(entry.attempt.first_at),
                    to_text(entry.attempt.last_at),
                    entry.id,
                    entry.token.hex,
                )
                if hop.execute(self._retry, values).rowcount == 0:
                    lost.append((entry.id, entry.token))
        return Answer(tuple(lost)) if lost else ALL_SETTLED


def _settled(hop: Hop, sql: str, values: tuple[str, ...], pairs: Sequence[Pair]) -> Answer:
    """One statement for each token: a group holds many rows of few claims."""
    by_token: dict[UUID, list[int]] = {}
    for row_id, token in pairs:
        by_token.setdefault(token, []).append(row_id)
    lost: set[Pair] = set()
    for token, ids in by_token.items():
        found = hop.execute(sql, (*values, json.dumps(ids), token.hex)).fetchall()
        if len(found) < len(ids):
            settled = {row_id for (row_id,) in found}
            lost.update((row_id, token) for row_id in ids if row_id not in settled)
    return Answer(tuple(pair for pair in pairs if pair in lost)) if lost else ALL_SETTLED
