"""One line: a connection of our own, its settings, its prepared statements.

Opened by a copy of the application's pool and detached, so it counts for nobody's pool. Commit
mode and lock bound are settings of the connection, never part of a statement; behind a pooler
nothing is set, for a setting would leak to strangers there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import greenlet_spawn

from outlast.model.errors import Disconnected, OutcomeUnknown, RowRefused
from outlast.ports.store import Line
from outlast.stores.postgres import failures

LOCK_TIMEOUT_MS = 300
CONNECT_SECONDS = 5.0
_CLOSE_SECONDS = 0.5
_TIMEOUTS_MAX = 2
"""After so many client timeouts in a row the connection counts as lost."""

SETTINGS = (
    "SET default_transaction_isolation = 'read committed'",
    "SET jit = off",
    # a queue table is analysed while empty: these plans would cost a hundred times as much
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    f"SET lock_timeout = {LOCK_TIMEOUT_MS}",
)
_EVERY_TYPE = (
    "SELECT $1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::float8[], $6::timestamptz[]"
)
"""Of the statements' parameters and answers, what the driver does not know by itself."""

COMMIT_WITHOUT_WAITING = "SET synchronous_commit = off"


class Wire:
    """The connection of one line."""

    def __init__(self, engine: AsyncEngine, line: Line, *, durable: bool) -> None:
        self._engine = engine
        self._line = line
        self._durable = durable
        self._proxy: PoolProxiedConnection | None = None
        self._connection: asyncpg.Connection[Any] | None = None
        self._prepared: dict[str, Any] = {}
        self._timeouts = 0
        self.is_pooled = False
        self.last_pid: int | None = None
        """The server process of the newest connection: what it was doing may outlive it."""

    @property
    def connection(self) -> "asyncpg.Connection[Any]":
        """The connection, or `Disconnected`."""
        if self._connection is None or self._connection.is_closed():
            raise Disconnected(f"the {self._line} connection is not open")
        return self._connection

    # -- life

    async def open(self) -> None:
        """Connect once. Whatever the driver raises reaches the caller."""
        await self.close()
        pool = self._engine.sync_engine.pool.recreate()
        async with asyncio.timeout(CONNECT_SECONDS):
            proxy: PoolProxiedConnection = await greenlet_spawn(pool.connect)
        connection: Any = proxy.driver_connection
        proxy.detach()
        self._proxy = proxy
        self._connection = connection
        self.last_pid = connection.get_server_pid()
        self._prepared, self._timeouts = {}, 0

    async def find_pooler(self, seconds: float) -> bool:
        """Whether somebody stands between us and the server: then its pid is not the one we saw."""
        connection = self.connection
        pid = await connection.fetchval("SELECT pg_backend_pid()", timeout=seconds)
        self.is_pooled = pid != connection.get_server_pid()
        return self.is_pooled

    async def settle_in(self, seconds: float) -> None:
        """Set what this line needs, once."""
        if self._line == "claims":
            await self._read_json_as_text(self.connection, seconds)
        if self.is_pooled:
            await self._learn_types(self.connection, seconds)
            return
        settings = [*SETTINGS, f"SET application_name = 'outlast {self._line}'"]
        if not self._durable:
            settings.append(COMMIT_WITHOUT_WAITING)
        await self.connection.execute("; ".join(settings), timeout=seconds)

    @staticmethod
    async def _read_json_as_text(connection: "asyncpg.Connection[Any]", seconds: float) -> None:
        # a decoder inside the driver would fail on one hostile value after the claim has landed,
        # and its whole batch would stay leased
        async with asyncio.timeout(seconds):
            await connection.set_type_codec(
                "json", schema="pg_catalog", format="text", encoder=str, decoder=str
            )
            await connection.set_type_codec(
                "jsonb", schema="pg_catalog", format="text", encoder=str, decoder=str
            )

    @staticmethod
    async def _learn_types(connection: "asyncpg.Connection[Any]", seconds: float) -> None:
        # to look up a type, asyncpg switches jit off and on again: through a pooler that may be
        # two servers, and a stranger keeps the setting. A transaction stays on one.
        async with asyncio.timeout(seconds), connection.transaction():
            await connection.fetch(_EVERY_TYPE, *[None] * _EVERY_TYPE.count("$"))

    async def close(self) -> None:
        """Never raises, never hangs."""
        connection, self._connection, self._proxy = self._connection, None, None
        if connection is None or connection.is_closed():
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await connection.close()
        except BaseException as error:
            with contextlib.suppress(Exception):
                connection.terminate()
            if not isinstance(error, Exception):
                raise

    async def listen(
        self, channel: str, heard: Callable[[str], None], deafened: Callable[[], None]
    ) -> None:
        """Hear the channel for as long as this connection lives, and when it ends."""

        def callback(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            heard(str(payload))

        connection = self.connection
        await connection.add_listener(channel, callback)
        connection.add_termination_listener(lambda _connection: deafened())

    # -- statements

    async def fetch(self, sql: str, arguments: Sequence[Any], timeout: float) -> list[Any]:
        """Run one statement in its own implicit transaction. Raises only `StoreFailure`s."""
        connection = self.connection
        try:
            try:
                rows = await self._run(connection, sql, arguments, timeout)
            except failures.STALE_PLAN:
                self._prepared = {}
                await connection.reload_schema_state()
                if self.is_pooled:
                    await self._learn_types(connection, timeout)
                rows = await self._run(connection, sql, arguments, timeout)
        except TimeoutError:
            raise self._timed_out(connection, timeout) from None
        except asyncpg.PostgresError as error:
            lost = connection.is_closed()
            raise failures.of_server_error(error, connection_lost=lost) from None
        except failures.CONNECTION_LOST as error:
            connection.terminate()
            raise failures.of_client_error(error) from None
        except (ValueError, TypeError, OverflowError) as error:
            raise RowRefused(f"a value cannot be sent: {type(error).__name__}: {error}") from None
        self._timeouts = 0
        return rows

    async def _run(
        self,
        connection: "asyncpg.Connection[Any]",
        sql: str,
        arguments: Sequence[Any],
        timeout: float,
    ) -> list[Any]:
        if self.is_pooled:
            return await connection.fetch(sql, *arguments, timeout=timeout)
        statement = self._prepared.get(sql)
        if statement is None:
            statement = self._prepared[sql] = await connection.prepare(sql, timeout=timeout)
        rows: list[Any] = await statement.fetch(*arguments, timeout=timeout)
        return rows

    def _timed_out(self, connection: "asyncpg.Connection[Any]", timeout: float) -> OutcomeUnknown:
        self._timeouts += 1
        if self._timeouts >= _TIMEOUTS_MAX:
            connection.terminate()
        return OutcomeUnknown(
            f"no answer on the {self._line} connection within {timeout:.1f} s",
            timed_out=not connection.is_closed(),
        )
