"""Opens the connection of a store: its own, made as the application's pool makes them.

In: the application's engine. Out: a `DatabaseConnection` that is set up and checked, or an error
that an operator can act on. Nothing is created or altered but the journal mode.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Sequence

import aiosqlite
from sqlalchemy import Pool
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from outlast.model.errors import Disconnected, RowLocked, SchemaError, UnsupportedDatabase
from outlast.stores.sqlite.connection import DatabaseConnection, Hop
from outlast.stores.sqlite.names import Names
from outlast.tables.dead_letters import REQUIRED_COLUMNS
from outlast.tables.outbox import OUTBOX_COLUMNS

_log = logging.getLogger("outlast.stores.sqlite")

SQLITE_MIN = (3, 35, 0)
"""The first with RETURNING."""

_OPEN_SECONDS = 10.0
_LOCK_WAIT_MS = 300
_WAL_TRIES = 20
_WAL_PAUSE_SECONDS = 0.1


async def open_connection(engine: AsyncEngine, names: Names) -> DatabaseConnection:
    """A new connection, set up. Bounded, and nothing is left open when it fails."""
    if engine.dialect.name != "sqlite" or engine.dialect.driver != "aiosqlite":
        raise UnsupportedDatabase(
            f"this engine uses {engine.dialect.name}+{engine.dialect.driver}; the SQLite store "
            "needs aiosqlite: create_async_engine('sqlite+aiosqlite:///path/to/file.db')"
        )
    # a copy of the pool: the same creator, arguments and events, and never a connection of the
    # application's, so that handlers which hold them all cannot keep us waiting
    pool = engine.sync_engine.pool.recreate()
    try:
        async with asyncio.timeout(_OPEN_SECONDS):
            driver = await greenlet_spawn(_detached, pool)
    except Exception as error:
        raise Disconnected(
            f"{type(error).__name__}: {str(error) or f'no answer within {_OPEN_SECONDS:g} s'}",
            state=getattr(error, "sqlite_errorname", None),
        ) from error
    connection = DatabaseConnection(driver, names)
    try:
        await connection.run(lambda hop: _set_up(hop, names), _OPEN_SECONDS)
        await _write_ahead(connection, names)
    except BaseException:
        await connection.close()
        raise
    return connection


def _detached(pool: Pool) -> aiosqlite.Connection:
    fairy = pool.connect()
    driver = fairy.driver_connection
    fairy.detach()
    if not isinstance(driver, aiosqlite.Connection):
        raise UnsupportedDatabase(f"aiosqlite expected, got a {type(driver).__name__}")
    return driver


def _set_up(hop: Hop, names: Names) -> None:
    raw = hop.raw
    if hasattr(raw, "autocommit"):  # Python 3.12: an application may have chosen the new mode
        raw.autocommit = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL")  # noqa: B009
    raw.isolation_level = None
    raw.row_factory = None
    raw.text_factory = str
    hop.execute(f"PRAGMA busy_timeout={_LOCK_WAIT_MS}")
    check_version(hop.execute("SELECT sqlite_version()").fetchone()[0])
    files = {name: file for _, name, file in hop.execute("PRAGMA database_list").fetchall()}
    if names.schema_plain not in files:
        raise SchemaError(
            f"no attached SQLite database is called {names.schema_plain!r}, the schema of table "
            f"{names.outbox_plain!r}; attach it in a 'connect' event of the engine"
        )
    if not files[names.schema_plain]:
        raise _in_memory()
    hop.execute(f"PRAGMA {names.schema}.synchronous=NORMAL")


def check_version(found: str) -> None:
    """Refuse a library without RETURNING."""
    if tuple(int(part) for part in found.split(".")[:3]) < SQLITE_MIN:
        raise UnsupportedDatabase(
            f"SQLite {found} is too old: outlast needs SQLite "
            f"{'.'.join(map(str, SQLITE_MIN[:2]))} or later. It comes with Python's sqlite3 "
            "module: use a Python that is built with a newer SQLite."
        )


def _in_memory() -> UnsupportedDatabase:
    return UnsupportedDatabase(
        "this SQLite database is in memory (or temporary): every connection would see one of its "
        "own, and no message would survive the process. Consume from a file, "
        "sqlite+aiosqlite:///path/to/file.db; in tests use TestOutboxBroker."
    )


async def _write_ahead(connection: DatabaseConnection, names: Names) -> None:
    """WAL, so that readers and the writer do not wait for each other. It is a property of the
    file: switching needs the file for a moment, and only the first time.
    """
    for _ in range(_WAL_TRIES):
        try:
            mode = await connection.run(
                lambda hop: hop.execute(f"PRAGMA {names.schema}.journal_mode=WAL").fetchone()[0],
                _OPEN_SECONDS,
            )
        except RowLocked:
            await asyncio.sleep(_WAL_PAUSE_SECONDS)
            continue
        if mode == "memory":
            raise _in_memory()
        if mode == "wal":
            return
        break
    _log.warning(
        "the SQLite database of table %s is not in WAL mode (it is in use, or its file system "
        "cannot): readers will make claims wait",
        names.outbox_plain,
    )


def check_tables(hop: Hop, names: Names) -> frozenset[str]:
    """Refuse a table without a column that the hot statements need. The answer is what columns
    the dead-letter table has.
    """
    _columns(hop, names, names.outbox_plain, OUTBOX_COLUMNS)
    if names.dlq_plain is None:
        return frozenset()
    return _columns(hop, names, names.dlq_plain, REQUIRED_COLUMNS)


def columns_now(hop: Hop, names: Names, table: str | None) -> frozenset[str]:
    """The columns of a table beside the outbox; none where there is no such table."""
    rows = hop.execute("SELECT name FROM pragma_table_info(?, ?)", (table, names.schema_plain))
    return frozenset(name for (name,) in rows.fetchall())


def _columns(hop: Hop, names: Names, table: str, needed: Sequence[str]) -> frozenset[str]:
    found = columns_now(hop, names, table)
    where = f"table {table!r}"
    if names.schema_plain != "main":
        where += f" of the attached database {names.schema_plain!r}"
    if not found:
        raise SchemaError(
            f"{where} does not exist; create it with metadata.create_all or your migrations"
        )
    missing = [name for name in needed if name not in found]
    if missing:
        raise SchemaError(
            f"{where} has no column {', '.join(missing)}; bring it to the shape of "
            "make_outbox_table / make_dlq_table with a migration"
        )
    return found
