"""Reading a table from SQLite's catalogue, through SQLAlchemy's inspector.

In: a connection and a Table. Out: a `LiveTable`, or None when there is no such table.
"""

from typing import Any

from sqlalchemy import Connection, Table, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.stores.schema.live import LiveColumn, LiveIndex, LiveTable


async def read(connection: AsyncConnection, table: Table) -> LiveTable | None:
    """The table as the catalogue has it."""
    return await connection.run_sync(_read, table)


def _read(connection: Connection, table: Table) -> LiveTable | None:
    inspector = inspect(connection)
    if not inspector.has_table(table.name, schema=table.schema):
        return None
    where = {"table_name": table.name, "schema": table.schema}
    columns = connection.execute(
        text('SELECT name, type, "notnull" AS required, pk FROM pragma_table_info(:name, :schema)'),
        {"name": table.name, "schema": table.schema or "main"},
    )
    return LiveTable(
        columns={
            row.name: LiveColumn(row.type, nullable=not row.required and not row.pk)
            for row in columns
        },
        indexes={
            str(index["name"]): _index(index)
            for index in inspector.get_indexes(**where)  # type: ignore[arg-type]
        },
        checks={
            str(check["name"] or number): check["sqltext"]
            for number, check in enumerate(
                inspector.get_check_constraints(**where)  # type: ignore[arg-type]
            )
        },
    )


def _index(index: Any) -> LiveIndex:
    predicate = index.get("dialect_options", {}).get("sqlite_where")
    return LiveIndex(
        columns=tuple(name or "" for name in index["column_names"]),
        unique=bool(index["unique"]),
        predicate=None if predicate is None else str(predicate),
    )
