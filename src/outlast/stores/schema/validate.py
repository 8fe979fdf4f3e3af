"""`validate_schema`: the live tables against the ones of this release.

In: an async engine or connection and the application's tables. Out: advice (also logged at INFO),
or one `SchemaError` with the findings of all tables; or both as a `SchemaState`. Never called by a
start; plain catalogue queries, no migration tool needed.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Dialect, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outlast.model.errors import SchemaError, UnsupportedDatabase
from outlast.stores.schema import read_postgres, read_sqlite
from outlast.stores.schema.compare import (
    MANUAL_PAGE,
    Report,
    compare_beside,
    compare_dead_letters,
    compare_outbox,
)
from outlast.stores.schema.live import LiveTable
from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table
from outlast.tables.autovacuum import SETTINGS_OFF, SETTINGS_ROWS

logger = logging.getLogger("outlast.schema")

Comparison = Callable[[Table, LiveTable, Dialect], Report]


class SchemaState(NamedTuple):
    """`drift` hurts; `advice` is what older tables lack. `manual`: the page on what no SQL is
    printed for, if there is any of it.
    """

    drift: tuple[str, ...]
    advice: tuple[str, ...]
    manual: str | None


async def validate_schema(
    engine: AsyncEngine,
    outbox_table: Table,
    dlq_table: Table | None = None,
    *,
    check_autovacuum: bool = False,
) -> list[str]:
    """Advice about what an older table lacks; `SchemaError` when something is not as it must be."""
    async with engine.connect() as connection:
        report, _ = await _compare(connection, outbox_table, dlq_table)
        untuned: list[str] = []
        if check_autovacuum and connection.dialect.name == "postgresql":
            live = await read_table(connection, outbox_table)
            untuned = [] if live is None else _untuned(live)
    for advice in report.advice:
        logger.info("%s", advice)
    _raise_for(report, untuned, outbox_table)
    return report.advice


async def schema_state(
    connection: AsyncConnection, outbox_table: Table, dlq_table: Table
) -> SchemaState:
    """The same as values, for whoever tells it; here absent tables of the desk are advice, too."""
    report, absent = await _compare(connection, outbox_table, dlq_table)
    if absent:
        report.advice.append(
            f"{', '.join(absent)}: absent, so what is done at the desk is not recorded and letters "
            "cannot be edited; `outlast db print` writes the SQL that makes them"
        )
    manual = MANUAL_PAGE if report.by_hand else None
    return SchemaState(tuple(report.findings), tuple(report.advice), manual)


async def _compare(
    connection: AsyncConnection, outbox: Table, dlq: Table | None
) -> tuple[Report, list[str]]:
    """Findings, and the tables of the desk where there is none of them."""
    report = Report()
    main: list[tuple[Table, Comparison]] = [
        (make_outbox_table(MetaData(schema=outbox.schema), outbox.name), compare_outbox)
    ]
    if dlq is not None:
        letters = make_dlq_table(MetaData(schema=dlq.schema), dlq.name)
        main.append((letters, compare_dead_letters))
    for wanted, compare in main:
        live = await read_table(connection, wanted)
        if live is None:
            report.findings.append(f"table {wanted.fullname} does not exist")
        else:
            _add(report, compare(wanted, live, connection.dialect))
    return report, await _compare_beside(connection, report, outbox, dlq)


async def _compare_beside(
    connection: AsyncConnection, report: Report, outbox: Table, dlq: Table | None
) -> list[str]:
    if dlq is None:
        return []
    beside = make_operations_tables(MetaData(schema=outbox.schema), outbox.name, dlq.name)
    found = [(wanted, await read_table(connection, wanted)) for wanted in beside]
    absent = [wanted.fullname for wanted, live in found if live is None]
    if len(absent) == len(found):
        return absent
    # some of them were made on purpose: a missing one is no choice but a migration that stopped
    report.findings += [f"table {name} does not exist, others of the desk do" for name in absent]
    for wanted, live in found:
        if live is not None:
            _add(report, compare_beside(wanted, live, connection.dialect))
    return []


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
