"""`OutboxClient`: a store's own SQL, statement by statement, inside the caller's transaction.

Comes in: an AsyncConnection of SQLAlchemy. Goes out: the store's statements on its driver. Nothing
is committed here, and no second version of a statement lives here.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outlast.faststream.client import AbstractOutboxClient, HotStatements
from outlast.model.dead_letter import Letter
from outlast.model.delivery import Answer, Claim, Pair, RetryEntry
from outlast.model.errors import NotConnected, UnsupportedDatabase
from outlast.model.look import Expired, Sight, WalkStep, Want
from outlast.publish.run import OutboxWriter
from outlast.tables.names import channel_name, check_identifiers

if TYPE_CHECKING:
    from outlast.stores.postgres.wire import Wire
    from outlast.stores.sqlite.connection import Hop

T = TypeVar("T")

_PING_SECONDS = 5.0
_COLUMNS_OF = "SELECT name FROM pragma_table_info(?, ?)"


class OutboxClient(AbstractOutboxClient):
    """One outbox table of a database."""

    def __init__(
        self,
        engine: AsyncEngine | None,
        outbox_table: Table,
        *,
        dlq_table: Table | None = None,
        notify: bool = True,
    ) -> None:
        names = [str(index.name) for index in outbox_table.indexes]
        check_identifiers(outbox_table.name, [*names, channel_name(outbox_table)])
        self._engine = engine
        self._table = outbox_table
        self._dlq_table = dlq_table
        self.writer = OutboxWriter(outbox_table, notify=notify)

    @property
    def engine(self) -> AsyncEngine | None:
        """The application's engine."""
        return self._engine

    @property
    def table(self) -> Table:
        """The outbox."""
        return self._table

    @property
    def has_dead_letters(self) -> bool:
        """Whether it was made with a table for them."""
        return self._dlq_table is not None

    async def on(self, conn: Any, method: str) -> HotStatements:
        """The hot statements, in this connection's transaction."""
        if not isinstance(conn, AsyncConnection):
            raise TypeError(
                f"OutboxClient.{method} requires a live AsyncConnection, got {type(conn).__name__}"
            )
        # the driver is spoken to directly below: the transaction has to begin before
        await conn.execute(select(1))
        driver = (await conn.get_raw_connection()).driver_connection
        name = f"{conn.dialect.name}+{conn.dialect.driver}"
        if name == "postgresql+asyncpg":
            return await _OnPostgres.made(driver, self._table, self._dlq_table)
        if name == "sqlite+aiosqlite":
            return _OnSqlite(driver, conn, self._table, self._dlq_table)
        raise UnsupportedDatabase(
            f"OutboxClient.{method} needs postgresql+asyncpg or sqlite+aiosqlite, not {name}"
        )

    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Compare the live tables with this release; `SchemaError` lists what differs."""
        from outlast.stores.schema.validate import validate_schema  # noqa: PLC0415

        if self._engine is None:
            raise NotConnected("validate_schema needs an engine")
        await validate_schema(
            self._engine, self._table, self._dlq_table, check_autovacuum=check_autovacuum
        )

    async def ping(self) -> bool:
        """Whether a pooled connection answers within five seconds."""
        if self._engine is None:
            return False
        try:
            async with asyncio.timeout(_PING_SECONDS), self._engine.connect() as connection:
                await connection.exec_driver_sql("SELECT 1")
        except Exception:  # noqa: BLE001 - whatever it is, the database did not answer
            return False
        return True


class _OnPostgres:
    """The statements of the PostgreSQL store on an asyncpg connection."""

    def __init__(self, driver: Any, outbox: Table, dlq: Table | None, present: Any) -> None:
        from outlast.stores.postgres.statements import Statements  # noqa: PLC0415

        self.connection = driver
        self.has_dead_letters = dlq is not None
        self._sql = Statements(outbox, dlq, present)

    @classmethod
    async def made(cls, driver: Any, outbox: Table, dlq: Table | None) -> "_OnPostgres":
        from outlast.stores.postgres.opening import check_dead_letters  # noqa: PLC0415

        made = cls(driver, outbox, None, ())
        if dlq is None:
            return made
        present = await check_dead_letters(made._wire, dlq, _PING_SECONDS)
        return cls(driver, outbox, dlq, present)

    @property
    def _wire(self) -> "Wire":
        # as much of a line as a statement needs
        return cast("Wire", self)

    async def fetch(self, sql: str, arguments: Sequence[Any], timeout: float) -> list[Any]:
        """One statement."""
        rows: list[Any] = await self.connection.fetch(sql, *arguments, timeout=timeout)
        return rows

    async def claim(self, wanted: Sequence[Want], limit: int, token: UUID, timeout: float) -> Claim:
        from outlast.stores.postgres import claims  # noqa: PLC0415

        return await claims.claim(self._wire, self._sql, wanted, limit, token, timeout)

    async def take_over(self, rows: Sequence[Expired], token: UUID, timeout: float) -> Claim:
        from outlast.stores.postgres import claims  # noqa: PLC0415

        return await claims.take_over(self._wire, self._sql, rows, token, timeout)

    async def look(self, peek: Sequence[str], walk: Sequence[WalkStep], timeout: float) -> Sight:
        from outlast.stores.postgres import claims  # noqa: PLC0415

        return await claims.look(self._wire, self._sql, peek, walk, timeout)

    async def ack(self, pairs: Sequence[Pair], timeout: float) -> Answer:
        from outlast.stores.postgres import settles  # noqa: PLC0415

        sql = self._sql.ack
        return await settles.pairs(self._wire, sql, sql, pairs, timeout, skip=False)

    async def retry(self, entries: Sequence[RetryEntry], timeout: float) -> Answer:
        from outlast.stores.postgres import settles  # noqa: PLC0415

        sql = self._sql.retry
        return await settles.retries(self._wire, sql, sql, entries, timeout, skip=False)

    async def bury(self, letters: Sequence[Letter], timeout: float) -> Answer:
        from outlast.stores.postgres import settles  # noqa: PLC0415

        sql = self._sql.bury
        return await settles.letters(self._wire, sql, sql, letters, timeout, skip=False)


class _OnSqlite:
    """The statements of the SQLite store on an aiosqlite connection."""

    def __init__(
        self, driver: Any, conn: AsyncConnection, outbox: Table, dlq: Table | None
    ) -> None:
        from outlast.stores.sqlite import claims, settles  # noqa: PLC0415
        from outlast.stores.sqlite.names import Names  # noqa: PLC0415

        self.has_dead_letters = dlq is not None
        self._driver = driver
        self._names = Names(conn.dialect, outbox, dlq)
        self._claims = claims.Claims(self._names)
        self._settles = settles.Settles(self._names)

    async def _run(self, work: "Callable[[Hop], T]") -> T:
        from outlast.stores.sqlite import upstream  # noqa: PLC0415
        from outlast.stores.sqlite.connection import Hop  # noqa: PLC0415

        class Joined(Hop):
            """A visit inside the caller's transaction."""

            @contextmanager
            def writing(self, *, durable: bool = False) -> Iterator[None]:  # noqa: ARG002
                if not self.raw.in_transaction:
                    self.execute("BEGIN IMMEDIATE")
                yield

        hop = Joined(upstream.raw(self._driver), self._names.schema)
        return await upstream.on_thread(self._driver, lambda: work(hop))

    async def claim(self, wanted: Sequence[Want], limit: int, token: UUID, timeout: float) -> Claim:  # noqa: ARG002
        return await self._run(lambda hop: self._claims.claim(hop, wanted, limit, token))

    async def take_over(self, rows: Sequence[Expired], token: UUID, timeout: float) -> Claim:  # noqa: ARG002
        return await self._run(lambda hop: self._claims.take_over(hop, rows, token))

    async def look(self, peek: Sequence[str], walk: Sequence[WalkStep], timeout: float) -> Sight:  # noqa: ARG002
        return await self._run(lambda hop: self._claims.look(hop, peek, walk))

    async def ack(self, pairs: Sequence[Pair], timeout: float) -> Answer:  # noqa: ARG002
        return await self._run(lambda hop: self._settles.ack(hop, pairs))

    async def retry(self, entries: Sequence[RetryEntry], timeout: float) -> Answer:  # noqa: ARG002
        return await self._run(lambda hop: self._settles.retry(hop, entries))

    async def bury(self, letters: Sequence[Letter], timeout: float) -> Answer:  # noqa: ARG002
        from outlast.stores.sqlite.letters import Letters  # noqa: PLC0415

        names = self._names

        def work(hop: "Hop") -> Answer:
            found = hop.execute(_COLUMNS_OF, (names.dlq_plain, names.schema_plain)).fetchall()
            return Letters(names, frozenset(name for (name,) in found)).bury(hop, letters)

        return await self._run(work)
