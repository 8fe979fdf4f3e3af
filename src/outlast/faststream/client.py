"""The client: one outbox table, statement by statement, for tests and tools.

Its inserts and looks join the caller's session; its claims and settles run on the connection they
are given, and are durable when that one commits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID, uuid4

from outlast.faststream.message import OutboxInnerMessage, inner_message
from outlast.model.dead_letter import Letter
from outlast.model.delivery import Answer, Attempt, Claim, Pair, RetryEntry
from outlast.model.failure import Failure
from outlast.model.look import Expired, Sight, WalkStep, Want
from outlast.publish.arguments import TimerConflict, check_arguments
from outlast.publish.run import BatchRow, Writer

SECONDS = 20.0
"""How long one statement of a client may take."""

_WALK_MAX = 1000


class HotStatements(Protocol):
    """The part of a store that a client runs."""

    has_dead_letters: bool

    async def claim(self, wanted: Sequence[Want], limit: int, token: UUID, timeout: float) -> Claim:
        """Lease due rows."""

    async def take_over(self, rows: Sequence[Expired], token: UUID, timeout: float) -> Claim:
        """Lease expired rows."""

    async def look(self, peek: Sequence[str], walk: Sequence[WalkStep], timeout: float) -> Sight:
        """Find expired rows."""

    async def ack(self, pairs: Sequence[Pair], timeout: float) -> Answer:
        """Delete rows."""

    async def retry(self, entries: Sequence[RetryEntry], timeout: float) -> Answer:
        """Reschedule rows."""

    async def bury(self, letters: Sequence[Letter], timeout: float) -> Answer:
        """Delete rows into the dead letters."""


class AbstractOutboxClient(ABC):
    """What a client can do; the test double does the same without a database."""

    writer: Writer

    @property
    @abstractmethod
    def engine(self) -> Any:
        """The engine; None in a test double."""

    @property
    @abstractmethod
    def table(self) -> Any:
        """The outbox table; None in a test double."""

    @property
    @abstractmethod
    def has_dead_letters(self) -> bool:
        """Whether there is a table for dead letters."""

    @abstractmethod
    async def on(self, conn: Any, method: str) -> HotStatements:
        """The hot statements, run on this connection."""

    @abstractmethod
    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Compare the live tables with this release."""

    @abstractmethod
    async def ping(self) -> bool:
        """Whether the database answers."""

    # -- the publisher's side

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
        """One message; its row id, or None when its timer is taken."""
        check_arguments(
            f"{type(self).__name__}.insert",
            queue=queue,
            session=session,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
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
        """Many messages, each a payload and its headers; ids in their order."""
        check_arguments(
            f"{type(self).__name__}.insert_batch",
            queue=queue,
            session=session,
            activate_in=activate_in,
            activate_at=activate_at,
        )
        await self.writer.insert_batch(
            session, queue=queue, rows=rows, activate_in=activate_in, activate_at=activate_at
        )

    async def cancel_timer(self, session: Any, *, queue: str, timer_id: str) -> bool:
        """Whether this call deleted the live, unleased row of the timer."""
        return await self.writer.cancel_timer(session, queue=queue, timer_id=timer_id)

    async def fetch_unprocessed(
        self, session: Any, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxInnerMessage]:
        """Rows that are not settled, by id, without a lease."""
        rows = await self.writer.fetch_unprocessed(session, queue=queue, limit=limit)
        return [OutboxInnerMessage(**row) for row in rows]

    # -- the consumer's side

    async def fetch(
        self, conn: Any, queues: Sequence[str], *, limit: int, lease_ttl_seconds: float
    ) -> list[OutboxInnerMessage]:
        """Lease due rows and rows whose lease expired, in the order they are due."""
        hot = await self.on(conn, "fetch")
        if not queues:
            return []
        token = uuid4()
        steps = [WalkStep(queue, lease_ttl_seconds, None, _WALK_MAX) for queue in queues]
        walked = (await hot.look((), steps, SECONDS)).walked
        expired = [Expired(i, lease_ttl_seconds) for w in walked for i in w.expired][:limit]
        taken = list((await hot.take_over(expired, token, SECONDS)).rows) if expired else []
        if (room := limit - len(taken)) > 0:
            wanted = [Want(queue, room) for queue in queues]
            taken += (await hot.claim(wanted, room, token, SECONDS)).rows
        taken.sort(key=lambda delivery: (delivery.next_attempt_at, delivery.id))
        return [inner_message(delivery) for delivery in taken]

    async def delete_with_lease(
        self,
        conn: Any,
        id: int,  # noqa: A002
        token: UUID,
        *,
        dlq_payload: Mapping[str, Any] | None = None,
    ) -> bool:
        """Delete a row under its lease; with a `dlq_payload` it becomes a dead letter."""
        hot = await self.on(conn, "delete_with_lease")
        if dlq_payload is None:
            return not (await hot.ack([(id, token)], SECONDS)).lost
        if not self.has_dead_letters:
            raise RuntimeError("a dlq_payload needs a dlq_table, and this client has none")
        letter = Letter(
            id=id,
            token=token,
            reason=dlq_payload["failure_reason"],
            failure=Failure(last_exception=dlq_payload.get("last_exception")),
            attempts_count=0,
            first_failure_at=None,
            last_failure_at=None,
            message_id=str(id),
            event_type=None,
            subscriber=None,
            consumer_instance=None,
            consumer_version=None,
        )
        return not (await hot.bury([letter], SECONDS)).lost

    async def delete_batch_with_lease(self, conn: Any, pairs: Iterable[Pair]) -> set[Pair]:
        """Delete rows under their leases; the pairs that were deleted."""
        hot = await self.on(conn, "delete_batch_with_lease")
        wanted = list(pairs)
        if not wanted:
            return set()
        return set(wanted) - set((await hot.ack(wanted, SECONDS)).lost)

    async def mark_pending_with_lease(
        self,
        conn: Any,
        id: int,  # noqa: A002
        token: UUID,
        *,
        delay_seconds: float,
        attempts_count: int,
        first_attempt_at: datetime | None,
        last_attempt_at: datetime | None,
    ) -> bool:
        """Give a lease back, the next attempt after the delay."""
        hot = await self.on(conn, "mark_pending_with_lease")
        now = datetime.now(UTC)
        attempt = Attempt(attempts_count, first_attempt_at or now, last_attempt_at or now)
        entry = RetryEntry(id, token, delay_seconds, attempt)
        return not (await hot.retry([entry], SECONDS)).lost
