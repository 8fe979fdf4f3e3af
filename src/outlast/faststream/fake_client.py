"""`FakeOutboxClient`: the memory store with a client's face, and the writer of a test broker.

One fake, one model of the semantics: rows live in the store, nothing is decided here.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, NoReturn

from outlast.faststream.client import AbstractOutboxClient
from outlast.policy.names import check_queue
from outlast.publish.arguments import (
    check_activation,
    check_limit,
    check_session,
    check_timer,
)
from outlast.publish.run import BatchRow
from outlast.stores.memory.rows import MemoryRow
from outlast.stores.memory.store import MemoryStore


class MemoryWriter:
    """Publishes into the memory store; a transaction that rolls back is not modelled."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.inserted: list[int] = []
        """Ids of new rows, for those who run handlers at once."""

    async def insert(self, session: Any, **message: Any) -> int | None:  # noqa: ARG002
        """One message."""
        json.dumps(message["headers"], allow_nan=False)
        row_id = self._store.insert(**message)
        if row_id is not None:
            self.inserted.append(row_id)
        return row_id

    async def insert_batch(
        self,
        session: Any,
        *,
        queue: str,
        rows: Sequence[BatchRow],
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
    ) -> None:
        """Many messages."""
        for payload, headers in rows:
            await self.insert(
                session,
                queue=queue,
                payload=payload,
                headers=headers,
                activate_in=activate_in,
                activate_at=activate_at,
            )

    async def cancel_timer(self, session: Any, *, queue: str, timer_id: str) -> bool:
        """Whether this call deleted the timer."""
        check_session("cancel_timer", session)
        check_timer(queue, timer_id)
        return self._store.cancel_timer(queue=queue, timer_id=timer_id)

    async def fetch_unprocessed(
        self, session: Any, *, queue: str | None = None, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Rows by id."""
        check_session("fetch_unprocessed", session)
        if queue is not None:
            check_queue(queue)
        most = check_limit(limit)
        rows = [r for r in self._store.rows if queue is None or r.queue == queue]
        return [asdict(r) for r in sorted(rows, key=lambda r: r.id)[:most]]


class FakeOutboxClient(AbstractOutboxClient):
    """An outbox without a database."""

    def __init__(self, *, dlq_enabled: bool = True) -> None:
        self.store = MemoryStore(dead_letters=dlq_enabled)
        self.writer = self.inserts = MemoryWriter(self.store)

    @property
    def rows(self) -> list[MemoryRow]:
        """The outbox: objects with the table's columns as attributes."""
        return self.store.rows

    @property
    def dlq_rows(self) -> list[dict[str, Any]]:
        """The dead letters: dicts with the table's columns as keys."""
        return self.store.dlq_rows

    @property
    def engine(self) -> None:
        """There is none."""

    @property
    def table(self) -> None:
        """There is none."""

    def feed(
        self,
        *,
        queue: str,
        payload: bytes,
        headers: dict[str, Any] | None = None,
        next_attempt_at: datetime | None = None,
        timer_id: str | None = None,
    ) -> int | None:
        """A row as another process would have committed it."""
        check_queue(queue)
        if timer_id is not None:
            check_timer(queue, timer_id)
        check_activation("feed", None, next_attempt_at)
        json.dumps(headers, allow_nan=False)
        return self.store.insert(
            queue=queue,
            payload=payload,
            headers=headers,
            activate_at=next_attempt_at,
            timer_id=timer_id,
        )

    @property
    def has_dead_letters(self) -> bool:
        """Whether it was made with dead letters."""
        return self.store.has_dead_letters

    async def on(self, conn: Any, method: str) -> MemoryStore:  # noqa: ARG002
        """There are no connections: whatever is given is good."""
        return self.store

    async def validate_schema(self, *, check_autovacuum: bool = False) -> NoReturn:
        """There is no schema."""
        raise NotImplementedError("validate_schema is unavailable without a database")

    async def ping(self) -> bool:
        """Always there."""
        return True
