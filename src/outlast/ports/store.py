"""The store the engine drives: the hot statements of one outbox table, on three lines.

A *line* is a connection for one kind of work: `claims` (listen, claim, look), `settles`
(extensions, acks, retries, releases), `letters` (dead letters, the worker's row). The engine calls
each line from one task, so a store needs no locks. Every method raises only `StoreFailure` and its
subclasses, and never retries by itself: what to do about a failure is the engine's decision.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol
from uuid import UUID

from outlast.model.dead_letter import Letter
from outlast.model.delivery import Answer, Claim, Pair, RetryEntry
from outlast.model.look import Expired, Sight, WalkStep, Want
from outlast.model.replay_pass import Delivered, Failed, Retried
from outlast.model.worker import WorkerReport

Line = Literal["claims", "settles", "letters"]
Wake = Callable[[str | None], None]
"""Called with the queue a wake-up names, or None for "any of them"."""


class Store(Protocol):
    """One outbox table (and its dead-letter table) in one database."""

    lines: tuple[Line, ...]
    has_dead_letters: bool
    change_poll_seconds: float | None
    """How often `changed` is asked, where the database has no wake-ups of its own."""

    @property
    def has_replays(self) -> bool:
        """Whether the dead-letter table has the columns that a replay needs."""

    @property
    def worker_table(self) -> str | None:
        """The name of the table of workers; None: there is none."""

    async def open(self, wake: Wake) -> None:
        """Connect every line, check the tables. Raises what an operator can act on."""

    async def close(self) -> None:
        """Close every line. Never raises, never hangs."""

    async def reconnect(self, line: Line) -> None:
        """One attempt to bring a lost line back; `Disconnected` if it fails."""

    async def changed(self) -> bool:
        """Whether another connection committed something since the last call."""

    async def claim(self, wanted: Sequence[Want], limit: int, token: UUID, timeout: float) -> Claim:
        """Lease due rows of these queues under one token, at most `limit`."""

    async def read_back(
        self, queues: Sequence[str], token: UUID, timeout: float
    ) -> tuple[Claim, bool]:
        """The rows a lost claim leased, and whether no more of them can appear."""

    async def take_over(self, rows: Sequence[Expired], token: UUID, timeout: float) -> Claim:
        """Lease rows whose lease has expired (checked again here)."""

    async def look(self, peek: Sequence[str], walk: Sequence[WalkStep], timeout: float) -> Sight:
        """The next due instants of queues, and one chunk of the expired walk."""

    async def extend(self, pairs: Sequence[Pair], timeout: float, *, skip: bool = False) -> Answer:
        """Begin the leases anew. `skip` passes over locked rows and answers them as held."""

    async def ack(self, pairs: Sequence[Pair], timeout: float, *, skip: bool = False) -> Answer:
        """Delete the rows. Also the end of a terminal failure where there is no DLQ."""

    async def retry(
        self, entries: Sequence[RetryEntry], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Give the leases back, with the next attempt at the database's now plus the delay."""

    async def release(self, pairs: Sequence[Pair], timeout: float, *, skip: bool = False) -> Answer:
        """Give lease and delivery count back; when it is due stays as it was."""

    async def postpone(
        self, pairs: Sequence[Pair], seconds: float, timeout: float, *, skip: bool = False
    ) -> Answer:
        """Give lease and delivery count back; due at the database's now plus so many seconds."""

    async def bury(
        self, letters: Sequence[Letter], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Delete the rows and write their dead letters, atomically."""

    async def resolve(
        self, passes: Sequence[Delivered], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Delete the rows of acknowledged replays and resolve their letters, atomically."""

    async def refresh(
        self, passes: Sequence[Retried], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Reschedule the rows of failed replays and show the failure in their letters."""

    async def reopen(
        self, passes: Sequence[Failed], timeout: float, *, skip: bool = False
    ) -> Answer:
        """Delete the rows of replays that failed for good and open their letters again."""

    async def recheck_letters(self, timeout: float) -> None:
        """Look again what the dead-letter table has: a migration may have brought columns."""

    async def report(self, worker: WorkerReport, timeout: float) -> None:
        """Write the row of this worker; only where there is a table of workers."""

    async def forget_workers(self, timeout: float) -> int:
        """Delete some rows of workers that are seen no more, and say how many."""
