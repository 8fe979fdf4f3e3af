"""The SQL that brings tables to their full shape, step after step, for a person or for us to run.

In: a connection and the tables of outbox and dead letters. Out: steps for what is missing there:
tables, columns, defaults, the check, indexes. Nothing is dropped and no value is overwritten;
workers, ours and others', go on meanwhile; stopped anywhere and made anew, the plan goes on. What
has another shape than ours is left as it is: `schema_state` tells it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    DefaultClause,
    Index,
    MetaData,
    Table,
    column,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import CreateIndex, CreateTable

from outlast.model.errors import SchemaError
from outlast.policy.neutral_text import neutral_text
from outlast.stores.schema.compare import INVALID, faults_of, has_like
from outlast.stores.schema.conditions import enforces_lease
from outlast.stores.schema.live import LiveTable
from outlast.stores.schema.spelling import column_spec, default_of, quoted, spelled, written
from outlast.stores.schema.validate import read_table
from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table
from outlast.tables.instant import now
from outlast.tables.outbox import LEASE_CHECK

FILL_ROWS = 10_000
"""Letters of one UPDATE: a fraction of a second, and few row locks at a time."""

# longer than deadlock_timeout, after which PostgreSQL calls an autovacuum off the table
_LOCK_WAIT = "3s"
_SQLITE_LOCK_WAIT_MS = 5000


class Step(NamedTuple):
    """One statement, and what it does."""

    title: str
    sql: str

    @property
    def text(self) -> str:
        """As it is printed."""
        return f"-- {neutral_text(self.title)}\n{self.sql};"


async def schema_plan(connection: AsyncConnection, outbox: Table, dlq: Table) -> tuple[str, ...]:
    """The statements in order, each with a comment and a semicolon; none when all is there."""
    return tuple(step.text for step in await schema_steps(connection, outbox, dlq))


async def schema_steps(connection: AsyncConnection, outbox: Table, dlq: Table) -> tuple[Step, ...]:
    """The steps in order. A table that is none of ours is refused, never altered."""
    letters = make_dlq_table(MetaData(schema=dlq.schema), dlq.name)
    tables = (
        make_outbox_table(MetaData(schema=outbox.schema), outbox.name),
        *make_operations_tables(MetaData(schema=outbox.schema), outbox.name, dlq.name),
        letters,
    )
    found = [(table, await read_table(connection, table)) for table in tables]
    dialect = connection.dialect.name
    made: list[Step] = []
    altered: list[Step] = []
    indexes: list[Step] = []
    for table, live in found:
        if live is None:
            made += _made(table, dialect)
            continue
        _refuse_stranger(table, live, dialect)
        altered += _altered(table, live, dialect)
        if table is letters:
            altered += await _filled(connection, table, live)
        indexes += _indexed(table, live, dialect)
    return (*made, *_among_others(altered, indexes, dialect))


def _made(table: Table, dialect: str) -> Iterator[Step]:
    sql = written(CreateTable(table, if_not_exists=True), dialect)
    yield Step(f"the table {table.fullname}", sql)
    for index in _sorted(table):
        sql = written(CreateIndex(index, if_not_exists=True), dialect)
        yield Step(f"its index {index.name}", sql)


def _refuse_stranger(table: Table, live: LiveTable, dialect: str) -> None:
    missing = [
        c.name for c in table.c if c.name not in live.columns and not _can_be_added(c, dialect)
    ]
    if missing:
        raise SchemaError(
            f"table {table.fullname} has no column {', '.join(missing)}, which cannot be added to "
            "rows that are there; nothing is done: name the right table, or make it anew"
        )


def _can_be_added(column: Column[Any], dialect: str) -> bool:
    if column.primary_key:
        return False
    if column.server_default is None or (dialect == "sqlite" and _is_time(column)):
        return bool(column.nullable)
    return True


def _is_time(column: Column[Any]) -> bool:
    default = column.server_default
    return isinstance(default, DefaultClause) and isinstance(default.arg, now)


def _altered(table: Table, live: LiveTable, dialect: str) -> Iterator[Step]:
    new = [c for c in table.c if c.name not in live.columns]
    name = spelled(table, dialect)
    if dialect == "sqlite":
        for c in new:
            sql = f"ALTER TABLE {name} ADD COLUMN {_added(c, dialect)}"
            yield Step(f"{table.fullname} gets {c.name}", sql)
        return
    # One ALTER, one lock for an instant: an old letter has no time yet, and no letter that is
    # written from here on is without one.
    actions = [f"ADD COLUMN IF NOT EXISTS {_added(c, dialect)}" for c in new]
    defaults = [c for c in table.c if _lacks_default(c, live)]
    actions += [
        f"ALTER COLUMN {quoted(c.name, dialect)} SET DEFAULT {default_of(c, dialect)}"
        for c in defaults
    ]
    if actions:
        title = f"{table.fullname} gets its columns and defaults: a moment's lock, no rewriting"
        yield Step(title, f"ALTER TABLE {name}\n    " + ",\n    ".join(actions))
    yield from _checked(table, live, name)


def _added(column: Column[Any], dialect: str) -> str:
    if column.nullable and _is_time(column):
        # a default at once would stamp old letters with this hour
        column = Column(column.name, column.type)
    return column_spec(column, dialect)


def _lacks_default(column: Column[Any], live: LiveTable) -> bool:
    there = live.columns.get(column.name)
    if there is None:
        return bool(column.nullable) and _is_time(column)
    return column.server_default is not None and not there.has_default


def _checked(table: Table, live: LiveTable, name: str) -> Iterator[Step]:
    check = f"{table.name}_lease_ck"
    if "acquired_token" not in table.c or check in live.checks:
        return
    if any(enforces_lease(condition) for condition in live.checks.values()):
        return
    name_of_check = quoted(check, "postgresql")
    adding = f"ALTER TABLE {name} ADD CONSTRAINT {name_of_check} CHECK ({LEASE_CHECK}) NOT VALID"
    yield Step(f"the check {check}, for rows that are written from here on", adding)
    checking = f"ALTER TABLE {name} VALIDATE CONSTRAINT {name_of_check}"
    yield Step("and for those that are there", checking)


async def _filled(connection: AsyncConnection, table: Table, live: LiveTable) -> list[Step]:
    """Old letters get their times from `failed_at`, some thousand in one statement."""
    times = [c for c in table.c if c.nullable and _is_time(c)]
    rows = select(table.c.id, func.row_number().over(order_by=table.c.id).label("place"))
    if all(c.name in live.columns for c in times):
        rows = rows.where(or_(*(c.is_(None) for c in times)))
        if (await connection.execute(select(rows.limit(1).exists()))).scalar_one() is False:
            return []
    numbered = rows.subquery("numbered")
    marks = select(numbered.c.id).where(numbered.c.place % FILL_ROWS == 0).order_by(numbered.c.id)
    ends = [*(await connection.execute(marks)).scalars(), None]
    filled: dict[Any, Any] = {c: func.coalesce(column(c.name), column("failed_at")) for c in times}
    fill = update(table).values(filled).where(or_(*(column(c.name).is_(None) for c in times)))
    steps = []
    for begin, end in zip([None, *ends], ends, strict=False):
        chunk = fill if begin is None else fill.where(column("id") > begin)
        chunk = chunk if end is None else chunk.where(column("id") <= end)
        which = f"up to {end}" if end is not None else "that are left"
        title = f"the letters {which}: what is not recorded of their times is when they failed"
        steps.append(Step(title, written(chunk, connection.dialect.name)))
    return steps


def _indexed(table: Table, live: LiveTable, dialect: str) -> Iterator[Step]:
    online = dialect == "postgresql" and not live.is_partitioned
    for index in _sorted(table):
        there = live.indexes.get(str(index.name))
        if there is not None and online and faults_of(index, there) == [INVALID]:
            yield Step(
                f"the index {index.name} again: it is there, but its creation failed",
                f"REINDEX INDEX CONCURRENTLY {_place(table, index)}",
            )
        elif there is None and not has_like(index, live):
            # beside a table that is written to, an index is built without keeping writers waiting
            index.dialect_options["postgresql"]["concurrently"] = online
            sql = written(CreateIndex(index, if_not_exists=True), dialect)
            yield Step(f"the index {index.name}", sql)


def _place(table: Table, index: Index) -> str:
    name = quoted(str(index.name), "postgresql")
    return name if table.schema is None else f"{quoted(table.schema, 'postgresql')}.{name}"


def _sorted(table: Table) -> list[Index]:
    return sorted(table.indexes, key=lambda index: str(index.name))


def _among_others(altered: Sequence[Step], indexes: Sequence[Step], dialect: str) -> Iterator[Step]:
    """The session, before it touches tables that others work on."""
    if not altered and not indexes:
        return
    if dialect == "sqlite":
        yield Step("wait for other writers", f"PRAGMA busy_timeout = {_SQLITE_LOCK_WAIT_MS}")
        yield from (*altered, *indexes)
        return
    yield Step("a large table takes its time", "SET statement_timeout = 0")
    if altered:
        # whoever waits for a table makes everybody behind wait
        title = "a lock that is not had in this time is given up: then print again and run that"
        yield Step(title, f"SET lock_timeout = '{_LOCK_WAIT}'")
        yield from altered
    if indexes:
        # built beside writers, an index waits for their transactions and keeps nobody waiting
        yield Step("the indexes wait for others as long as it takes", "SET lock_timeout = 0")
        yield from indexes
