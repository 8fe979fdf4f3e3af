"""Which tables and columns there are: found by the catalogue, never assumed.

In: a connection and the names. Out: `DeskTables`, whose dead-letter table has exactly the columns
of the live one. A table of faststream-outbox is read as it is.
"""

from dataclasses import dataclass

from sqlalchemy import Column, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.errors import NoDeadLetterQueue, SchemaError
from outlast.stores.schema.validate import read_table
from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table
from outlast.tables.dead_letters import DLQ_COLUMNS, REQUIRED_COLUMNS


@dataclass(frozen=True, slots=True)
class DeskTables:
    """What was found. `history`, `revision` and `worker` are None where there is no such table."""

    dlq: Table
    outbox: Table | None
    history: Table | None
    revision: Table | None
    worker: Table | None
    missing: tuple[str, ...]
    """Columns of ours that the dead-letter table lacks."""
    is_postgres: bool

    @property
    def records_states(self) -> bool:
        """Whether letters can be acted on: every column is there."""
        return not self.missing

    @property
    def is_whole(self) -> bool:
        """Whether nothing that the desk knows of is absent."""
        beside = (self.outbox, self.history, self.revision, self.worker)
        return self.records_states and None not in beside


async def find_tables(connection: AsyncConnection, outbox: Table, dlq: Table) -> DeskTables:
    """Look them up, in the schema they are said to be in."""
    schema = dlq.schema
    full = make_dlq_table(MetaData(schema=schema), dlq.name)
    live = await read_table(connection, full)
    if live is None:
        lost = (
            f"table {dlq.fullname} does not exist; name the right one with --dlq-table, or create "
            "it with your migrations or outlast db create"
        )
        if await read_table(connection, outbox) is None:
            raise SchemaError(lost)
        raise NoDeadLetterQueue(
            f"Configured broker does not support dead letter queues. The {lost}"
        )
    lacking = [name for name in REQUIRED_COLUMNS if name not in live.columns]
    if lacking:
        raise SchemaError(
            f"table {dlq.fullname} has no column {', '.join(lacking)}: it is no table of dead "
            "letters"
        )
    beside = make_operations_tables(MetaData(schema=outbox.schema), outbox.name, dlq.name)
    found = [await _if_whole(connection, table) for table in beside]
    rows = make_outbox_table(MetaData(schema=outbox.schema), outbox.name)
    return DeskTables(
        dlq=_only(full, set(live.columns)),
        outbox=await _if_whole(connection, rows),
        history=found[0],
        revision=found[1],
        worker=found[2],
        missing=tuple(name for name in DLQ_COLUMNS if name not in live.columns),
        is_postgres=connection.dialect.name == "postgresql",
    )


async def _if_whole(connection: AsyncConnection, table: Table) -> Table | None:
    live = await read_table(connection, table)
    return table if live is not None and set(table.c.keys()) <= set(live.columns) else None


def _only(table: Table, present: set[str]) -> Table:
    columns: list[Column[object]] = [
        Column(column.name, column.type, primary_key=column.primary_key, nullable=column.nullable)
        for column in table.columns
        if column.name in present
    ]
    return Table(table.name, MetaData(schema=table.schema), *columns)
