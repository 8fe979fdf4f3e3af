"""Comparing a live table with the one it should be.

In: the canonical Table, the `LiveTable`, which columns and indexes may be absent. Out: findings
(drift, named by table and column or index) and advice (what an older table lacks). Pure.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from sqlalchemy import Dialect, Index, Table

from outlast.stores.schema.conditions import enforces_lease, same_predicate
from outlast.stores.schema.live import LiveIndex, LiveTable
from outlast.stores.schema.types import holds
from outlast.tables.dead_letters import REQUIRED_COLUMNS
from outlast.tables.outbox import LEASE_CHECK

MANUAL_PAGE = "docs/guides/schema.md#fixing-drift-autogenerate-cant-see"
INVALID = "invalid index: its creation failed; REINDEX it, or drop and create it"


@dataclass(slots=True)
class Report:
    """`by_hand` is true when a finding is one that Alembic's autogenerate cannot see."""

    findings: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    by_hand: bool = False


def compare_outbox(wanted: Table, live: LiveTable, dialect: Dialect) -> Report:
    """Every column, index and the check of the outbox."""
    report = Report()
    _columns(report, wanted, live, dialect, required=wanted.c.keys())
    if not any(enforces_lease(check) for check in live.checks.values()):
        report.findings.append(f"{wanted.name}: missing CHECK constraint enforcing {LEASE_CHECK}")
        report.by_hand = True
    for index in _indexes(wanted):
        _index(report, wanted, index, live, older=_older_shapes(wanted, index))
    return report


def compare_dead_letters(wanted: Table, live: LiveTable, dialect: Dialect) -> Report:
    """What every dead-letter table has must be there; of the rest, what is there must be right."""
    report = Report()
    _columns(report, wanted, live, dialect, required=REQUIRED_COLUMNS)
    for index in _indexes(wanted):
        columns = [column.name for column in index.columns]
        if not set(columns) <= live.columns.keys():
            continue
        is_required = columns == ["queue", "failed_at"]
        _index(report, wanted, index, live, may_lack=not is_required)
    return report


def compare_beside(wanted: Table, live: LiveTable, dialect: Dialect) -> Report:
    """A table of the desk is there whole; an index that only makes reading fast may be absent."""
    report = Report()
    _columns(report, wanted, live, dialect, required=wanted.c.keys())
    for index in _indexes(wanted):
        _index(report, wanted, index, live, may_lack=not index.unique)
    return report


def _columns(
    report: Report, wanted: Table, live: LiveTable, dialect: Dialect, required: Container[str]
) -> None:
    absent = []
    for column in wanted.c:
        there = live.columns.get(column.name)
        where = f"{wanted.name}.{column.name}"
        if there is None:
            if column.name in required:
                report.findings.append(f"{where}: missing column")
            else:
                absent.append(column.name)
            continue
        if not holds(column.type, there.type, dialect):
            spelled = column.type.compile(dialect=dialect)
            report.findings.append(f"{where}: type mismatch, is {there.type}, needs {spelled}")
        if there.nullable != column.nullable:
            needs = "NULL" if column.nullable else "NOT NULL"
            report.findings.append(f"{where}: nullability mismatch, needs {needs}")
    if absent:
        report.advice.append(
            f"{wanted.name}: optional columns are absent and shown as not recorded: "
            f"{', '.join(absent)}; `outlast db print` writes the SQL that adds them",
        )


def _index(
    report: Report,
    wanted: Table,
    index: Index,
    live: LiveTable,
    *,
    older: tuple[tuple[str, tuple[str, ...]], ...] = (),
    may_lack: bool = False,
) -> None:
    name = str(index.name)
    there = live.indexes.get(name)
    if there is not None:
        faults = faults_of(index, there)
    elif has_like(index, live):
        return
    else:
        faults = ["missing index"]
    if not faults:
        return
    if any(_is(live.indexes.get(name), columns) for name, columns in older):
        report.advice.append(
            f"{wanted.name}: index {name} has an older shape, which is slower under load; the "
            f"present one is ({', '.join(c.name for c in index.columns)}) {_where(index) or ''}",
        )
    elif there is None and may_lack:
        report.advice.append(f"{wanted.name}: index {name} is absent; lists will be slower")
    else:
        report.findings += [f"{wanted.name}: index {name}: {fault}" for fault in faults]
        report.by_hand |= there is not None


def has_like(index: Index, live: LiveTable) -> bool:
    """Whether some index, of whatever name, does the same work."""
    return any(not faults_of(index, other) for other in live.indexes.values())


def faults_of(wanted: Index, live: LiveIndex) -> list[str]:
    """What keeps a live index from doing the work of the wanted one."""
    faults = []
    columns = tuple(column.name for column in wanted.columns)
    if live.columns != columns:
        faults.append(f"covers ({', '.join(live.columns)}), needs ({', '.join(columns)})")
    predicate = _where(wanted)
    if predicate is not None and live.predicate is None:
        faults.append(f"not a partial index, needs WHERE {predicate}")
    elif (predicate or live.predicate) and not same_predicate(
        live.predicate or "", predicate or ""
    ):
        faults.append(f"wrong partial predicate {live.predicate}, needs {predicate or 'none'}")
    if wanted.unique and not live.unique:
        faults.append("not UNIQUE")
    if not live.valid:
        faults.append(INVALID)
    return faults


def _older_shapes(table: Table, index: Index) -> tuple[tuple[str, tuple[str, ...]], ...]:
    # what earlier releases of faststream-outbox made, name and columns
    if str(index.name) == f"{table.name}_pending_idx":
        return ((str(index.name), ("queue", "next_attempt_at")),)
    if str(index.name) == f"{table.name}_leased_idx":
        return ((f"{table.name}_lease_idx", ("queue", "acquired_at")),)
    return ()


def _is(live: LiveIndex | None, columns: tuple[str, ...]) -> bool:
    return live is not None and live.valid and live.columns == columns


def _where(index: Index) -> str | None:
    where = index.dialect_options["postgresql"]["where"]
    return None if where is None else str(where)


def _indexes(table: Table) -> list[Index]:
    return sorted(table.indexes, key=lambda index: str(index.name))
