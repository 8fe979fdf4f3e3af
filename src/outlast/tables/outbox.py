"""`make_outbox_table`: the outbox on the application's own MetaData.

Exactly these columns, check and indexes, no more: the hot statements have one shape, and tables
and workers of faststream-outbox can be used beside ours. Nothing here issues DDL.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.schema import conv
from sqlalchemy.types import TypeEngine

from outlast.tables.instant import Instant, now
from outlast.tables.names import channel_name, check_identifiers

LEASE_CHECK = "(acquired_token IS NULL) = (acquired_at IS NULL)"
PENDING = "acquired_token IS NULL"
LEASED = "acquired_token IS NOT NULL"
TIMED = "timer_id IS NOT NULL"


def key_type() -> TypeEngine[int]:
    """64 bits everywhere; SQLite counts only a column that is exactly INTEGER."""
    return BigInteger().with_variant(Integer(), "sqlite")


class HeadersType(JSONB):
    """JSONB whose None is SQL NULL, not the JSON null."""

    # Alembic writes a plain JSONB with `astext_type=Text()` into migrations for other databases,
    # where that name is not defined; see `Instant` for the module
    __module__ = JSONB.__module__

    def __init__(self) -> None:
        super().__init__(none_as_null=True)

    def __repr__(self) -> str:
        return "JSONB(none_as_null=True)"

    def __reduce__(self) -> tuple[Any, ...]:
        return (headers_type, ())


def headers_type() -> TypeEngine[Any]:
    """JSONB on PostgreSQL, JSON text on SQLite."""
    return HeadersType().with_variant(JSON(none_as_null=True), "sqlite")


def partial(name: str, condition: str, *columns: str, unique: bool = False) -> Index:
    # a bound value in the condition would keep planners from matching it: hence SQL text
    return Index(
        conv(name),
        *columns,
        unique=unique,
        postgresql_where=text(condition),
        sqlite_where=text(condition),
    )


def make_outbox_table(metadata: MetaData, table_name: str = "outbox") -> Table:
    """The outbox table, attached to `metadata`, in the schema of `metadata`."""
    check, pending, leased, timer = (
        f"{table_name}{suffix}"
        for suffix in ("_lease_ck", "_pending_idx", "_leased_idx", "_timer_id_uq")
    )
    check_identifiers(table_name, [check, pending, leased, timer, channel_name(str(table_name))])
    return Table(
        table_name,
        metadata,
        Column("id", key_type(), primary_key=True, autoincrement=True),
        Column("queue", String(255), nullable=False),
        Column("payload", LargeBinary, nullable=False),
        Column("headers", headers_type()),
        Column("attempts_count", BigInteger, nullable=False, server_default="0"),
        Column("deliveries_count", BigInteger, nullable=False, server_default="0"),
        Column("created_at", Instant, nullable=False, server_default=now()),
        Column("next_attempt_at", Instant, nullable=False, server_default=now()),
        Column("first_attempt_at", Instant),
        Column("last_attempt_at", Instant),
        Column("acquired_at", Instant),
        # on SQLite 32 hexadecimal digits, `token.hex`
        Column("acquired_token", Uuid),
        Column("timer_id", String(255)),
        CheckConstraint(LEASE_CHECK, name=conv(check)),
        partial(pending, PENDING, "queue", "next_attempt_at", "id"),
        partial(leased, LEASED, "queue", "next_attempt_at", "id"),
        partial(timer, TIMED, "queue", "timer_id", unique=True),
        sqlite_autoincrement=True,
    )


OUTBOX_COLUMNS: tuple[str, ...] = tuple(make_outbox_table(MetaData()).c.keys())
"""Every column of an outbox; all of them are needed."""
