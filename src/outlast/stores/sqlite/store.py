"""`SqliteStore`: the store protocol over one connection, which is all three lines.

In: the calls of the engine. Out: their answers, each after one visit to the database thread. Who
drives a SQLite outbox makes one of these; what the statements are is in the files beside.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.model.dead_letter import Letter
from outlast.model.delivery import Answer, Claim, Pair, RetryEntry
from outlast.model.errors import CannotWrite, Disconnected, StoreFailure
from outlast.model.look import Expired, Sight, WalkStep, Want
from outlast.model.replay_pass import Delivered, Failed, Retried
from outlast.model.worker import WorkerReport
from outlast.ports.store import Line, Wake
from outlast.stores.sqlite.claims import Claims
from outlast.stores.sqlite.connection import DatabaseConnection, Hop
from outlast.stores.sqlite.letters import Letters
from outlast.stores.sqlite.names import Names
from outlast.stores.sqlite.opening import check_tables, columns_now, open_connection
from outlast.stores.sqlite.replays import Replays
from outlast.stores.sqlite.settles import Settles
from outlast.stores.sqlite.workers import Workers
from outlast.tables.dead_letters import DLQ_COLUMNS
from outlast.tables.operations import HISTORY_COLUMNS, WORKER_COLUMNS

T = TypeVar("T")

_log = logging.getLogger("outlast.stores.sqlite")

_CHECK_SECONDS = 5.0


class SqliteStore:
    """One outbox in one SQLite file."""

    lines: tuple[Line, ...] = ("claims", "settles", "letters")
    change_poll_seconds: float | None = 0.05

    def __init__(self, engine: AsyncEngine, outbox: Table, dlq: Table | None = None) -> None:
        self.has_dead_letters = dlq is not None
        self._engine = engine
        self._names = Names(engine.dialect, outbox, dlq)
        self._dlq = dlq
        self._claims = Claims(self._names)
        self._settles = Settles(self._names)
        self._letters = Letters(self._names, ())
        self._replays: Replays | None = None
        self._workers: Workers | None = None
        self._connection: DatabaseConnection | None = None
        self._former: list[DatabaseConnection] = []
        self._reconnecting = asyncio.Lock()
        self._data_version: int | None = None

    # -- the connection

    async def open(self, wake: Wake) -> None:  # noqa: ARG002 - wake-ups come from `changed`
        """Connect, and check what is there against what the statements need."""
        self._reconnecting = asyncio.Lock()
        try:
            await self._open()
        except StoreFailure as error:
            raise RuntimeError(
                f"cannot open the SQLite database {self._engine.url.database!r}: {error}"
            ) from error

    async def _open(self) -> None:
        connection = await open_connection(self._engine, self._names)
        try:
            columns = await connection.run(self._survey, _CHECK_SECONDS)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        if self._dlq is not None:
            missing = [name for name in DLQ_COLUMNS if name not in columns]
            if missing:
                _log.info(
                    "table %s lacks optional columns, which are not recorded: %s",
                    self._dlq.fullname,
                    ", ".join(missing),
                )

    def _survey(self, hop: Hop) -> frozenset[str]:
        columns = check_tables(hop, self._names)
        self._replays = self._workers = None
        if columns_now(hop, self._names, self._names.worker_plain).issuperset(WORKER_COLUMNS):
            self._workers = Workers(self._names.worker or "")
        self._data_version = self._read_version(hop)
        if self._dlq is not None:
            self._letters = Letters(self._names, columns)
            self._find_replays(hop, columns)
        return columns

    def _find_replays(self, hop: Hop, columns: frozenset[str]) -> None:
        if columns.issuperset(DLQ_COLUMNS):
            beside = columns_now(hop, self._names, self._names.history_plain)
            history = self._names.history if beside.issuperset(HISTORY_COLUMNS) else None
            self._letters = Letters(self._names, columns)
            self._replays = Replays(self._names, self._letters, history)

    async def close(self) -> None:
        """Close, within seconds."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def reconnect(self, line: Line) -> None:  # noqa: ARG002 - there is only one
        """A new connection, unless another line has brought it back already."""
        async with self._reconnecting:
            if self._connection is not None:
                if self._connection.is_open:
                    return
                former, self._connection = self._connection, None
                await former.close()
                self._former = [old for old in (*self._former, former) if old.may_still_land]
            try:
                self._connection = await open_connection(self._engine, self._names)
            except Exception as error:
                raise Disconnected(str(error), state=getattr(error, "state", None)) from error
            # versions of two connections do not compare: the next `changed` says yes
            self._data_version = None

    async def changed(self) -> bool:
        """Whether the file has another version than at the last call."""
        version = await self._run(self._read_version, _CHECK_SECONDS)
        before, self._data_version = self._data_version, version
        return version != before

    def _read_version(self, hop: Hop) -> int:
        found = hop.execute(f"PRAGMA {self._names.schema}.data_version").fetchone()
        return int(found[0])

    async def _run(self, work: Callable[[Hop], T], timeout: float) -> T:
        connection = self._connection
        if connection is None or not connection.is_open:
            raise Disconnected(f"no connection to the database of {self._names.outbox_plain!r}")
        return await connection.run(work, timeout)

    # -- the engine's calls

    async def claim(
        self,
        wanted: Sequence[Want],
        limit: int,
        token: UUID,
        timeout: float,
    ) -> Claim:
        """Lease due rows of these queues."""
        return await self._run(lambda hop: self._claims.claim(hop, wanted, limit, token), timeout)

    async def read_back(
        self,
        queues: Sequence[str],
        token: UUID,
        timeout: float,
    ) -> tuple[Claim, bool]:
        """What a lost claim leased. Calls of one connection follow one another, so only one that
        is still under way on a former connection could add to it.
        """
        self._former = [old for old in self._former if old.may_still_land]
        final = not self._former
        found = await self._run(lambda hop: self._claims.read_back(hop, queues, token), timeout)
        return found, final

    async def take_over(
        self,
        rows: Sequence[Expired],
        token: UUID,
        timeout: float,
    ) -> Claim:
        """Lease expired rows anew."""
        return await self._run(lambda hop: self._claims.take_over(hop, rows, token), timeout)

    async def look(
        self,
        peek: Sequence[str],
        walk: Sequence[WalkStep],
        timeout: float,
    ) -> Sight:
        """Heads of queues, and one chunk of the expired walk."""
        return await self._run(lambda hop: self._claims.look(hop, peek, walk), timeout)

    async def extend(
        self,
        pairs: Sequence[Pair],
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002 - no row is ever locked by itself
    ) -> Answer:
        """Begin the leases anew."""
        return await self._run(lambda hop: self._settles.extend(hop, pairs), timeout)

    async def ack(
        self,
        pairs: Sequence[Pair],
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002
    ) -> Answer:
        """Delete the rows."""
        return await self._run(lambda hop: self._settles.ack(hop, pairs), timeout)

    async def retry(
        self,
        entries: Sequence[RetryEntry],
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002
    ) -> Answer:
        """Reschedule the rows."""
        return await self._run(lambda hop: self._settles.retry(hop, entries), timeout)

    async def release(
        self,
        pairs: Sequence[Pair],
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002
    ) -> Answer:
        """Give the rows back, uncounted."""
        return await self._run(lambda hop: self._settles.release(hop, pairs), timeout)

    async def postpone(
        self,
        pairs: Sequence[Pair],
        seconds: float,
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002
    ) -> Answer:
        """Give the rows back, uncounted, for later."""
        return await self._run(lambda hop: self._settles.postpone(hop, pairs, seconds), timeout)

    async def bury(
        self,
        letters: Sequence[Letter],
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002
    ) -> Answer:
        """Delete the rows and write their dead letters."""
        if not self.has_dead_letters:
            raise CannotWrite(f"{self._names.outbox_plain!r} has no dead-letter table")
        return await self._run(lambda hop: self._letters.bury(hop, letters), timeout)

    # -- replays

    @property
    def has_replays(self) -> bool:
        """Whether the dead-letter table has the columns that a replay needs."""
        return self._replays is not None

    async def recheck_letters(self, timeout: float) -> None:
        """A migration may have brought the columns that were lacking."""
        if self._dlq is not None:
            dlq = self._names.dlq_plain
            await self._run(
                lambda hop: self._find_replays(hop, columns_now(hop, self._names, dlq)), timeout
            )

    async def resolve(
        self,
        passes: Sequence[Delivered],
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002
    ) -> Answer:
        """Delete the rows of acknowledged replays and resolve their letters."""
        replays = self._ready_replays()
        return await self._run(lambda hop: replays.resolve(hop, passes), timeout)

    async def refresh(
        self,
        passes: Sequence[Retried],
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002
    ) -> Answer:
        """Reschedule the rows of failed replays and show the failure."""
        replays = self._ready_replays()
        return await self._run(lambda hop: replays.refresh(hop, passes), timeout)

    async def reopen(
        self,
        passes: Sequence[Failed],
        timeout: float,
        *,
        skip: bool = False,  # noqa: ARG002
    ) -> Answer:
        """Delete the rows of replays that failed for good and open their letters."""
        replays = self._ready_replays()
        return await self._run(lambda hop: replays.reopen(hop, passes), timeout)

    def _ready_replays(self) -> Replays:
        assert self._replays is not None, "asked only where has_replays is true"
        return self._replays

    # -- the row of this worker

    @property
    def worker_table(self) -> str | None:
        """The table of workers, if one was found at open."""
        return None if self._workers is None else self._workers.table

    async def report(self, worker: WorkerReport, timeout: float) -> None:
        """Write the row of this worker."""
        workers = self._ready_workers()
        await self._run(lambda hop: workers.write(hop, worker), timeout)

    async def forget_workers(self, timeout: float) -> int:
        """Delete some rows of workers that are seen no more."""
        return await self._run(self._ready_workers().forget, timeout)

    def _ready_workers(self) -> Workers:
        assert self._workers is not None, "asked only where worker_table says so"
        return self._workers
