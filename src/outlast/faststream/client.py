"""The client: one outbox table, statement by statement, for tests and tools.

Its inserts and looks join the caller's session; its claims and settles run on the connection they
are given, and are durable when that one commits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from outlast.faststream.message import OutboxInnerMessage
from outlast.model.delivery import Pair
from outlast.publish.arguments import TimerConflict
from outlast.publish.run import BatchRow


class AbstractOutboxClient(ABC):
    """What a client can do; the test double does the same without a database."""

    @property
    @abstractmethod
    def engine(self) -> Any:
        """The engine; None in a test double."""

    @property
    @abstractmethod
    def table(self) -> Any:
        """The outbox table; None in a test double."""

    # -- the publisher's side

    @abstractmethod
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

    @abstractmethod
    async def insert_batch(
        self,
        session: Any,
        *,
        queue: str,
        rows: Sequence[BatchRow],
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
    ) -> None:
        """Many messages, ids in their order."""

    @abstractmethod
    async def cancel_timer(self, session: Any, *, queue: str, timer_id: str) -> bool:
        """Whether this call deleted the live, unleased row of the timer."""

    @abstractmethod
    async def fetch_unprocessed(
        self, session: Any, *, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxInnerMessage]:
        """Rows that are not settled, by id, without a lease."""

    # -- the consumer's side

    @abstractmethod
    async def fetch(
        self, conn: Any, queues: Sequence[str], *, limit: int, lease_ttl_seconds: float
    ) -> list[OutboxInnerMessage]:
        """Lease due rows and rows whose lease expired, in the order they are due."""

    @abstractmethod
    async def delete_with_lease(
        self,
        conn: Any,
        id: int,  # noqa: A002
        token: UUID,
        *,
        dlq_payload: Mapping[str, Any] | None = None,
    ) -> bool:
        """Delete a row under its lease; with a `dlq_payload` it becomes a dead letter."""

    @abstractmethod
    async def delete_batch_with_lease(self, conn: Any, pairs: Iterable[Pair]) -> set[Pair]:
        """Delete rows under their leases; the pairs that were deleted."""

    @abstractmethod
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

    # -- both

    @abstractmethod
    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Compare the live tables with this release."""

    @abstractmethod
    async def ping(self) -> bool:
        """Whether the database answers."""
