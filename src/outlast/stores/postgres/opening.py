"""What is checked when the lines are opened: tables, columns, kinds of table, poolers.

Reads the catalogue only. Raises what an operator can act on, without a password in it.
"""

from collections.abc import Sequence
from typing import Any

import asyncpg
from sqlalchemy import Table

from outlast.model.errors import SchemaError, UnsupportedDatabase
from outlast.stores.postgres.statements import qualified
from outlast.stores.postgres.wire import Wire
from outlast.tables.dead_letters import REQUIRED_COLUMNS
from outlast.tables.outbox import OUTBOX_COLUMNS

_TABLE = (
    "select c.relkind::text, exists (select from pg_inherits h where h.inhparent = c.oid), "
    "array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 "
    "and not a.attisdropped) from pg_class c where c.oid = to_regclass($1)"
)

POOLED = (
    "the database is reached through a connection pooler in transaction mode: wake-ups do not "
    "arrive there and nothing can be set, so outlast polls every min_fetch_interval and commits "
    "as the database is configured. Give the broker an engine with a direct DSN, or a role of its "
    "own with ALTER ROLE … SET jit = off, enable_seqscan = off, enable_bitmapscan = off (never "
    "synchronous_commit)"
)

_STATEMENT_CACHE = (
    "the database is reached through a connection pooler in transaction mode, and asyncpg's "
    "statement cache is on: prepared statements fail there. Pass "
    "connect_args={'statement_cache_size': 0, 'prepared_statement_cache_size': 0} to "
    "create_async_engine, or use a direct DSN"
)


async def detect_pooler(wire: Wire, seconds: float) -> bool:
    """Whether there is a pooler; refuses one together with a statement cache."""
    try:
        pooled = await wire.find_pooler(seconds)
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        raise UnsupportedDatabase(_STATEMENT_CACHE) from None
    if pooled and _statement_cache_size(wire.connection) > 0:
        raise UnsupportedDatabase(_STATEMENT_CACHE)
    return pooled


def _statement_cache_size(connection: Any) -> int:
    # asyncpg has no public way to ask; without an answer the cache counts as off
    configuration = getattr(connection, "_config", None)
    return int(getattr(configuration, "statement_cache_size", 0) or 0)


async def check_outbox(wire: Wire, table: Table, seconds: float) -> None:
    """The outbox is a plain table with every column."""
    kind, has_children, columns = await _describe(wire, table, seconds)
    if kind != "r" or has_children:
        raise UnsupportedDatabase(
            f"table {qualified(table)} is partitioned, inherited from, or not a plain table; a "
            "claim locates rows by their place in one table and would lease the wrong ones",
        )
    _require(table, OUTBOX_COLUMNS, columns)


async def check_dead_letters(wire: Wire, table: Table, seconds: float) -> frozenset[str]:
    """The columns the dead-letter table has; those of S0 are needed."""
    _, _, columns = await _describe(wire, table, seconds)
    _require(table, REQUIRED_COLUMNS, columns)
    return frozenset(columns)


async def columns_now(wire: Wire, table: Table, seconds: float) -> frozenset[str]:
    """The columns of a table; none where there is no such table."""
    rows = await wire.fetch(_TABLE, (qualified(table),), seconds)
    return frozenset(rows[0][2] if rows else ())


async def _describe(wire: Wire, table: Table, seconds: float) -> tuple[str, bool, Sequence[str]]:
    name = qualified(table)
    row = await wire.connection.fetchrow(_TABLE, name, timeout=seconds)
    if row is None:
        raise SchemaError(
            f"table {name} does not exist; create it with metadata.create_all or your migrations",
        )
    return row[0], row[1], row[2]


def _require(table: Table, needed: Sequence[str], present: Sequence[str]) -> None:
    missing = [name for name in needed if name not in present]
    if missing:
        raise SchemaError(
            f"table {qualified(table)} has no column {', '.join(missing)}; bring it to the shape "
            "of make_outbox_table / make_dlq_table with a migration",
        )
