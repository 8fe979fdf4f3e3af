"""`validate_schema`: the live tables against the ones of this release.

In: an async engine and the application's tables. Out: advice (also logged at INFO), or one
`SchemaError` with the findings of all tables. Never called by a start; plain catalogue queries, no
migration tool needed.
"""

import logging

from sqlalchemy import MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outlast.model.errors import SchemaError, UnsupportedDatabase
from outlast.stores.schema import read_postgres, read_sqlite
from outlast.stores.schema.compare import (
    MANUAL_PAGE,
    Report,
    compare_dead_letters,
    compare_outbox,
)
from outlast.stores.schema.live import LiveTable
from outlast.tables import make_dlq_table, make_outbox_table
from outlast.tables.autovacuum import SETTINGS_OFF, SETTINGS_ROWS

logger = logging.getLogger("outlast.schema")


async def validate_schema(
    engine: AsyncEngine,
    outbox_table: Table,
    dlq_table: Table | None = None,
    *,
    check_autovacuum: bool = False,
) -> list[str]:
    """Advice about what an older table lacks; `SchemaError` when something is not as it must be."""
    report = Report()
    untuned: list[str] = []
    async with engine.connect() as connection:
        live = await read_table(connection, outbox_table)
        wanted = make_outbox_table(MetaData(schema=outbox_table.schema), outbox_table.name)
        if live is None:
            report.findings.append(f"table {outbox_table.fullname} does not exist")
        else:
            _add(report, compare_outbox(wanted, live, connection.dialect))
            if check_autovacuum and connection.dialect.name == "postgresql":
                untuned = _untuned(live)
        if dlq_table is not None:
            live = await read_table(connection, dlq_table)
            wanted = make_dlq_table(MetaData(schema=dlq_table.schema), dlq_table.name)
            if live is None:
                report.findings.append(f"table {dlq_table.fullname} does not exist")
            else:
                _add(report, compare_dead_letters(wanted, live, connection.dialect))
    for advice in report.advice:
        logger.info("%s", advice)
    _raise_for(report, untuned, outbox_table)
    return report.advice


async def read_table(connection: AsyncConnection, table: Table) -> LiveTable | None:
    """A table as the database describes it, or None."""
    if connection.dialect.name == "postgresql":
        return await read_postgres.read(connection, table)
    if connection.dialect.name == "sqlite":
        return await read_sqlite.read(connection, table)
    raise UnsupportedDatabase(
        f"the schema can be checked on PostgreSQL and SQLite, not on {connection.dialect.name}"
    )


def _add(report: Report, other: Report) -> None:
    report.findings += other.findings
    report.advice += other.advice
    report.by_hand |= other.by_hand


def _untuned(live: LiveTable) -> list[str]:
    faults = [
        f"{name} is {live.storage.get(name, 'not set')}, needs 0"
        for name in SETTINGS_OFF
        if float(live.storage.get(name, "nan")) != 0
    ]
    return faults + [f"{name} is not set" for name in SETTINGS_ROWS if name not in live.storage]


def _raise_for(report: Report, untuned: list[str], outbox_table: Table) -> None:
    parts = []
    if report.findings:
        manual = f" (see {MANUAL_PAGE})" if report.by_hand else ""
        parts.append(f"Outbox schema mismatch: {'; '.join(report.findings)}{manual}")
    if untuned:
        parts.append(
            f"Outbox autovacuum not tuned: {outbox_table.name}: {'; '.join(untuned)}; "
            "outbox_autovacuum_ddl() writes the statement",
        )
    if parts:
        raise SchemaError(". ".join(parts))
