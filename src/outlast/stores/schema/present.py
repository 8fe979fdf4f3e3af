"""What a store asks when it starts: are the tables there, and which columns do they have.

In: a connection and the tables. Out: column names, or a `SchemaError` that names table and column.
Never issues DDL.
"""

from collections.abc import Iterable

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.errors import SchemaError
from outlast.stores.schema.validate import read_table
from outlast.tables.dead_letters import REQUIRED_COLUMNS


async def require_outbox(connection: AsyncConnection, outbox_table: Table) -> None:
    """Every column of the outbox is there."""
    await _columns(connection, outbox_table, outbox_table.c.keys(), "outbox table")


async def dlq_columns_present(connection: AsyncConnection, dlq_table: Table) -> frozenset[str]:
    """The columns of a dead-letter table: the ten that each has, and those of the others it has."""
    return await _columns(connection, dlq_table, REQUIRED_COLUMNS, "dead-letter table")


async def _columns(
    connection: AsyncConnection, table: Table, required: Iterable[str], what: str
) -> frozenset[str]:
    live = await read_table(connection, table)
    if live is None:
        raise SchemaError(
            f"the {what} {table.fullname!r} does not exist: create it with a migration, or with "
            "metadata.create_all()",
        )
    missing = [name for name in required if name not in live.columns]
    if missing:
        raise SchemaError(
            f"the {what} {table.fullname!r} lacks the column {', '.join(map(repr, missing))}: add "
            "it with a migration; validate_schema() lists every difference",
        )
    return frozenset(live.columns)
