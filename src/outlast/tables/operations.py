"""`make_operations_tables`: what the desk keeps beside the dead letters, on the same MetaData.

In: a MetaData and the names of outbox and dead-letter table. Out: the history of every act, the
revisions of edited messages, the workers that were seen. They are found by name, in the schema of
the outbox; no foreign keys, because a history outlives its letter.
"""

from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.schema import conv

from outlast.tables.instant import Instant, now
from outlast.tables.names import check_identifiers
from outlast.tables.outbox import headers_type, key_type, partial

HISTORY_KINDS = (
    *("replayed", "replay_failed", "resolved", "folded", "recalled"),
    *("edited", "assigned", "triaged", "noted", "reviewed", "reopened", "escalated"),
    *("discarded", "restored", "purged", "revealed", "exported", "imported"),
    *("expired", "archived"),
)
"""Everything a history row can tell."""

MANY_LETTERS = "dlq_id IS NULL"
"""A history row of an operation on many: what makes a repeated request found again."""


class OperationsTableNames(NamedTuple):
    """`history` and `revision` are None without a dead-letter table."""

    history: str | None
    revision: str | None
    worker: str


class OperationsTables(NamedTuple):
    """The tables of the desk."""

    history: Table
    revision: Table
    worker: Table


def operations_table_names(
    outbox_table: Table | str, dlq_table: Table | str | None
) -> OperationsTableNames:
    """The names under which the desk tables of an outbox are looked for, in its schema."""
    outbox = outbox_table if isinstance(outbox_table, str) else outbox_table.name
    dlq = dlq_table if isinstance(dlq_table, str | None) else dlq_table.name
    return OperationsTableNames(
        None if dlq is None else f"{dlq}_history",
        None if dlq is None else f"{dlq}_revision",
        f"{outbox}_worker",
    )


def make_operations_tables(
    metadata: MetaData, outbox_table: str = "outbox", dlq_table: str = "outbox_dlq"
) -> OperationsTables:
    """The desk tables, attached to `metadata`, in the schema of `metadata`."""
    for given in (outbox_table, dlq_table):
        check_identifiers(given, [])
    history, revision, worker = (
        f"{dlq_table}_history",
        f"{dlq_table}_revision",
        f"{outbox_table}_worker",
    )
    letter, request = f"{history}_letter_idx", f"{history}_request_uq"
    check_identifiers(dlq_table, [history, revision, letter, request])
    check_identifiers(outbox_table, [worker])
    return OperationsTables(
        _make_history(metadata, history, letter, request),
        _make_revision(metadata, revision),
        _make_worker(metadata, worker),
    )


def _make_history(metadata: MetaData, name: str, letter: str, request: str) -> Table:
    return Table(
        name,
        metadata,
        Column("id", key_type(), primary_key=True, autoincrement=True),
        Column("dlq_id", BigInteger),
        Column("at", Instant, nullable=False, server_default=now()),
        Column("actor", String(255)),
        Column("kind", String(64), nullable=False),
        Column("reason", Text),
        Column("request_id", String(255)),
        Column("detail", headers_type()),
        Index(conv(letter), "dlq_id", "id"),
        partial(request, MANY_LETTERS, "actor", "request_id", unique=True),
        sqlite_autoincrement=True,
    )


def _make_revision(metadata: MetaData, name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("dlq_id", BigInteger, primary_key=True, autoincrement=False),
        Column("revision", Integer, primary_key=True, autoincrement=False),
        Column("at", Instant, nullable=False, server_default=now()),
        Column("actor", String(255)),
        Column("payload", LargeBinary, nullable=False),
        Column("headers", headers_type()),
        Column("transform", Text),
        Column("digest", String(255)),
        Column("reason", Text),
    )


def _make_worker(metadata: MetaData, name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("instance", String(255), primary_key=True),
        Column("version", String(255)),
        Column("started_at", Instant, nullable=False, server_default=now()),
        Column("seen_at", Instant, nullable=False, server_default=now()),
        Column("report", headers_type()),
    )


_TABLES = make_operations_tables(MetaData())

HISTORY_COLUMNS: tuple[str, ...] = tuple(_TABLES.history.c.keys())
WORKER_COLUMNS: tuple[str, ...] = tuple(_TABLES.worker.c.keys())
"""A table of the right name without one of these is somebody else's, and counts as absent."""
