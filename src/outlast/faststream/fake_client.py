"""`FakeOutboxClient`: the memory store with a client's face, and the writer of a test broker.

One fake, one model of the semantics: rows live in the store, nothing is decided here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID, uuid4

from outlast.faststream.client import AbstractOutboxClient
from outlast.faststream.message import OutboxInnerMessage, inner_message
from outlast.model.dead_letter import Letter
from outlast.model.delivery import Attempt, Pair, RetryEntry
from outlast.model.failure import Failure
from outlast.model.look import Expired, WalkStep, Want
from outlast.publish.arguments import (
    TimerConflict,
    check_activation,
    check_arguments,
    check_limit,
    check_queue,
    check_session,
    check_timer,
)
from outlast.publish.run import BatchRow
from outlast.stores.memory.rows import MemoryRow
from outlast.stores.memory.store import MemoryStore

_AT_ONCE = 1.0


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
        self.writer = MemoryWriter(self.store)

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

    async def insert(
        self,
        session: Any,
        *,
        queue: str,
        payload: bytes,
        headers: dict[str, Any] | None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> int | None:
        """One message."""
        check_arguments(
            "FakeOutboxClient.insert",
            queue=queue,
            session=session,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
            session_optional=True,
        )
        return await self.writer.insert(
            session,
            queue=queue,
            payload=payload,
            headers=headers,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
        )

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
        check_arguments(
            "FakeOutboxClient.insert_batch",
            queue=queue,
            session=session,
            activate_in=activate_in,
            activate_at=activate_at,
            session_optional=True,
        )
        await self.writer.insert_batch(
            session, queue=queue, rows=rows, activate_in=activate_in, activate_at=activate_at
        )

    async def cancel_timer(self, session: Any, *, queue: str, timer_id: str) -> bool:
        """Whether this call deleted the timer."""
        return await self.writer.cancel_timer(session, queue=queue, timer_id=timer_id)

    async def fetch_unprocessed(
        self, session: Any, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxInnerMessage]:
        """Rows by id."""
        rows = await self.writer.fetch_unprocessed(session, queue=queue, limit=limit)
        return [OutboxInnerMessage(**row) for row in rows]

    async def fetch(
        self,
        conn: Any,  # noqa: ARG002
        queues: Sequence[str],
        *,
        limit: int,
        lease_ttl_seconds: float,
    ) -> list[OutboxInnerMessage]:
        """Lease due and expired rows."""
        if not queues:
            return []
        token = uuid4()
        everything = len(self.rows) + 1
        steps = [WalkStep(q, lease_ttl_seconds, None, everything) for q in queues]
        sight = await self.store.look((), steps, _AT_ONCE)
        expired = [Expired(i, lease_ttl_seconds) for w in sight.walked for i in w.expired][:limit]
        taken = (await self.store.take_over(expired, token, _AT_ONCE)).rows
        wanted = [Want(queue, limit - len(taken)) for queue in queues]
        taken += (await self.store.claim(wanted, limit - len(taken), token, _AT_ONCE)).rows
        taken.sort(key=lambda d: (d.next_attempt_at, d.id))
        return [inner_message(delivery) for delivery in taken]

    async def delete_with_lease(
        self,
        conn: Any,  # noqa: ARG002
        id: int,  # noqa: A002
        token: UUID,
        *,
        dlq_payload: Mapping[str, Any] | None = None,
    ) -> bool:
        """Delete under the lease, into the dead letters if a reason is given."""
        if dlq_payload is None:
            return not (await self.store.ack([(id, token)], _AT_ONCE)).lost
        if not self.store.has_dead_letters:
            raise RuntimeError("dlq_payload needs a dlq_table, and there is none")
        letter = plain_letter(id, token, dlq_payload)
        return not (await self.store.bury([letter], _AT_ONCE)).lost

    async def delete_batch_with_lease(
        self,
        conn: Any,  # noqa: ARG002
        pairs: Iterable[Pair],
    ) -> set[Pair]:
        """Delete under the leases."""
        wanted = list(pairs)
        return set(wanted) - set((await self.store.ack(wanted, _AT_ONCE)).lost)

    async def mark_pending_with_lease(
        self,
        conn: Any,  # noqa: ARG002
        id: int,  # noqa: A002
        token: UUID,
        *,
        delay_seconds: float,
        attempts_count: int,
        first_attempt_at: datetime | None,
        last_attempt_at: datetime | None,
    ) -> bool:
        """Reschedule under the lease."""
        now = self.store.clock()
        attempt = Attempt(attempts_count, first_attempt_at or now, last_attempt_at or now)
        entry = RetryEntry(id, token, delay_seconds, attempt)
        return not (await self.store.retry([entry], _AT_ONCE)).lost

    async def validate_schema(self, *, check_autovacuum: bool = False) -> NoReturn:
        """There is no schema."""
        raise NotImplementedError("validate_schema is unavailable without a database")

    async def ping(self) -> bool:
        """Always there."""
        return True


def plain_letter(row_id: int, token: UUID, dlq_payload: Mapping[str, Any]) -> Letter:
    """A dead letter of which only reason and text are known."""
    return Letter(
        id=row_id,
        token=token,
        reason=dlq_payload["failure_reason"],
        failure=Failure(last_exception=dlq_payload.get("last_exception")),
        attempts_count=0,
        first_failure_at=None,
        last_failure_at=None,
        message_id=str(row_id),
        event_type=None,
        subscriber=None,
        consumer_instance=None,
        consumer_version=None,
    )
