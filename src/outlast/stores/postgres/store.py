"""PostgreSQL: three connections of our own, one for each kind of work, opened and checked here.

Comes in: the calls of `ports.Store`. Goes out: one statement each. Never retries, never decides.
"""

import asyncio
import logging
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import MetaData, Table
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.model.dead_letter import Letter
from outlast.model.delivery import Answer, Claim, Pair, RetryEntry
from outlast.model.errors import OutlastError
from outlast.model.look import Expired, Sight, WalkStep, Want
from outlast.model.replay_pass import Delivered, Failed, Retried
from outlast.model.worker import WorkerReport
from outlast.ports.store import Line, Wake
from outlast.stores.postgres import claims, failures, opening, replays, settles, workers
from outlast.stores.postgres.replays import ReplayStatements
from outlast.stores.postgres.statements import Statements, qualified
from outlast.stores.postgres.wire import Wire
from outlast.stores.postgres.workers import WorkerStatements
from outlast.tables import channel_name
from outlast.tables.dead_letters import DLQ_COLUMNS
from outlast.tables.operations import HISTORY_COLUMNS, WORKER_COLUMNS, operations_table_names

OPEN_SECONDS = 10.0
_STEP_SECONDS = 5.0

_logger = logging.getLogger("outlast")


class PostgresStore:
    """One outbox table, and its dead-letter table, on PostgreSQL."""

    lines: tuple[Line, ...] = ("claims", "settles", "letters")
    change_poll_seconds: float | None = None

    def __init__(self, engine: AsyncEngine, outbox: Table, dlq: Table | None = None) -> None:
        self._engine = engine
        self._outbox = outbox
        self._dlq = dlq
        self._channel = channel_name(outbox)
        self._sql = Statements(outbox, None)
        self._wires = {
            "claims": Wire(engine, "claims", durable=False),
            "settles": Wire(engine, "settles", durable=False),
            "letters": Wire(engine, "letters", durable=True),
        }
        self._wake: Wake | None = None
        self._old_pids: list[int] = []
        self.has_dead_letters = dlq is not None
        self._replays: ReplayStatements | None = None
        self._workers: WorkerStatements | None = None

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler was found at open."""
        return self._wires["claims"].is_pooled

    # -- life

    async def open(self, wake: Wake) -> None:
        """Three connections, checked tables, an ear for wake-ups."""
        self._wake = wake
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._open()
        except OutlastError:
            raise
        except Exception as error:
            raise RuntimeError(self._cannot_open(error)) from error

    async def _open(self) -> None:
        claims_wire = self._wires["claims"]
        await claims_wire.open()
        if await opening.detect_pooler(claims_wire, _STEP_SECONDS):
            _logger.warning(opening.POOLED)
        await opening.check_outbox(claims_wire, self._outbox, _STEP_SECONDS)
        columns: frozenset[str] = frozenset()
        if self._dlq is not None:
            columns = await opening.check_dead_letters(claims_wire, self._dlq, _STEP_SECONDS)
            self._tell_missing(columns)
        self._sql = Statements(self._outbox, self._dlq, columns)
        names = operations_table_names(self._outbox, self._dlq)
        self._replays = self._workers = None
        if self._dlq is not None and columns.issuperset(DLQ_COLUMNS):
            history = await self._find("claims", names.history, HISTORY_COLUMNS, _STEP_SECONDS)
            self._replays = ReplayStatements(self._sql, qualified(self._dlq), history)
        worker = await self._find("claims", names.worker, WORKER_COLUMNS, _STEP_SECONDS)
        if worker is not None:
            self._workers = WorkerStatements(worker)
        for name in ("settles", "letters"):
            await self._wires[name].open()
            self._wires[name].is_pooled = claims_wire.is_pooled
        for wire in self._wires.values():
            await wire.settle_in(_STEP_SECONDS)
        await self._listen()

    async def _find(
        self, line: Line, name: str | None, needed: Sequence[str], seconds: float
    ) -> str | None:
        """The quoted name of a desk table, if there is one in the schema of the outbox."""
        assert name is not None
        table = Table(name, MetaData(), schema=self._outbox.schema)
        columns = await opening.columns_now(self._wires[line], table, seconds)
        return qualified(table) if columns.issuperset(needed) else None

    @property
    def has_replays(self) -> bool:
        """Whether the dead-letter table has the columns that a replay needs."""
        return self._replays is not None

    @property
    def worker_table(self) -> str | None:
        """The table of workers, if one was found at open."""
        return None if self._workers is None else self._workers.table

    def _tell_missing(self, columns: frozenset[str]) -> None:
        assert self._dlq is not None
        missing = [name for name in DLQ_COLUMNS if name not in columns]
        if missing:
            _logger.info(
                "table %s lacks optional columns, which are not recorded: %s",
                self._dlq.fullname,
                ", ".join(missing),
            )

    async def _listen(self) -> None:
        wire = self._wires["claims"]
        if not wire.is_pooled:
            await wire.listen(self._channel, self._heard, self._deafened)

    def _heard(self, queue: str) -> None:
        if self._wake is not None:
            self._wake(queue)

    def _deafened(self) -> None:
        # a claim finds out what became of the connection, at once and not at the next look
        if self._wake is not None:
            self._wake(None)

    def _cannot_open(self, error: Exception) -> str:
        address = self._engine.url.render_as_string(hide_password=True)
        what = str(error) or f"no answer within {OPEN_SECONDS:g} s"
        return (
            f"cannot open the database at {address}: {type(error).__name__}: {what}. Consuming "
            f"needs {len(self.lines)} connections beside the application's pool"
        )

    async def close(self) -> None:
        """Close all three, together."""
        self._wake = None
        await asyncio.gather(*(wire.close() for wire in self._wires.values()))

    async def reconnect(self, line: Line) -> None:
        """One attempt."""
        wire = self._wires[line]
        self._remember_backend(line)
        try:
            await wire.open()
            await wire.settle_in(_STEP_SECONDS)
            if line == "claims":
                await self._listen()
        except Exception as error:  # noqa: BLE001 - whatever it was, there is no connection
            await wire.close()
            raise failures.not_connected(error) from None

    def _remember_backend(self, line: Line) -> None:
        if line == "claims" and (pid := self._wires[line].last_pid) is not None:
            self._old_pids = [*self._old_pids[-8:], pid]

    async def changed(self) -> bool:
        """PostgreSQL has wake-ups; it is never polled."""
        return False

    # -- claims

    async def claim(self, wanted: Sequence[Want], limit: int, token: UUID, timeout: float) -> Claim:
        return await claims.claim(self._wires["claims"], self._sql, wanted, limit, token, timeout)

    async def read_back(
        self, queues: Sequence[str], token: UUID, timeout: float
    ) -> tuple[Claim, bool]:
        wire = self._wires["claims"]
        # asked before the rows are read: a backend that is gone by now commits nothing later
        final = True
        for pid in self._old_pids:
            gone = await wire.fetch(self._sql.backend_is_gone, (pid,), timeout)
            final = final and bool(gone[0][0])
        return await claims.read_back(wire, self._sql, queues, token, timeout), final

    async def take_over(self, rows: Sequence[Expired], token: UUID, timeout: float) -> Claim:
        return await claims.take_over(self._wires["claims"], self._sql, rows, token, timeout)

    async def look(self, peek: Sequence[str], walk: Sequence[WalkStep], timeout: float) -> Sight:
        return await claims.look(self._wires["claims"], self._sql, peek, walk, timeout)

    # -- settles

    async def extend(self, pairs: Sequence[Pair], timeout: float, *, skip: bool = False) -> Answer:
        plain, skipping = self._sql.extend, self._sql.extend_skipping
        return await settles.pairs(
            self._wires["settles"], plain, skipping, pairs, timeout, skip=skip
        )

    async def ack(self, pairs: Sequence[Pair], timeout: float, *, skip: bool = False) -> Answer:
        plain, skipping = self._sql.ack, self._sql.ack_skipping
        return await settles.pairs(
            self._wires["settles"], plain, skipping, pairs, timeout, skip=skip
        )

    async def retry(
        self, entries: Sequence[RetryEntry], timeout: float, *, skip: bool = False
    ) -> Answer:
        plain, skipping = self._sql.retry, self._sql.retry_skipping
        return await settles.retries(
            self._wires["settles"], plain, skipping, entries, timeout, skip=skip
        )

    async def release(self, pairs: Sequence[Pair], timeout: float, *, skip: bool = False) -> Answer:
        plain, skipping = self._sql.release, self._sql.release_skipping
        return await settles.pairs(
            self._wires["settles"], plain, skipping, pairs, timeout, skip=skip
        )

    async def postpone(
        self, pairs: Sequence[Pair], seconds: float, timeout: float, *, skip: bool = False
    ) -> Answer:
        plain, skipping = self._sql.postpone, self._sql.postpone_skipping
        return await settles.postponed(
            self._wires["settles"], plain, skipping, pairs, seconds, timeout, skip=skip
        )

    async def bury(
        self, letters: Sequence[Letter], timeout: float, *, skip: bool = False
    ) -> Answer:
        plain, skipping = self._sql.bury, self._sql.bury_skipping
        return await settles.letters(
            self._wires["letters"], plain, skipping, letters, timeout, skip=skip
        )

    # -- replays

    async def resolve(
        self, passes: Sequence[Delivered], timeout: float, *, skip: bool = False
    ) -> Answer:
        sql = self._replay_sql()
        return await replays.resolve(self._wires["letters"], sql, passes, timeout, skip=skip)

    async def refresh(
        self, passes: Sequence[Retried], timeout: float, *, skip: bool = False
    ) -> Answer:
        sql = self._replay_sql()
        return await replays.refresh(self._wires["letters"], sql, passes, timeout, skip=skip)

    async def reopen(
        self, passes: Sequence[Failed], timeout: float, *, skip: bool = False
    ) -> Answer:
        sql = self._replay_sql()
        return await replays.reopen(self._wires["letters"], sql, passes, timeout, skip=skip)

    async def recheck_letters(self, timeout: float) -> None:
        if self._dlq is None:
            return
        columns = await opening.columns_now(self._wires["letters"], self._dlq, timeout)
        if columns.issuperset(DLQ_COLUMNS):
            name = operations_table_names(self._outbox, self._dlq).history
            history = await self._find("letters", name, HISTORY_COLUMNS, timeout)
            self._sql = Statements(self._outbox, self._dlq, columns)
            self._replays = ReplayStatements(self._sql, qualified(self._dlq), history)

    # -- the row of this worker

    async def report(self, worker: WorkerReport, timeout: float) -> None:
        await workers.write(self._wires["letters"], self._worker_sql(), worker, timeout)

    async def forget_workers(self, timeout: float) -> int:
        return await workers.forget(self._wires["letters"], self._worker_sql(), timeout)

    def _worker_sql(self) -> WorkerStatements:
        assert self._workers is not None, "asked only where worker_table says so"
        return self._workers

    def _replay_sql(self) -> ReplayStatements:
        assert self._replays is not None, "asked only where has_replays is true"
        return self._replays
