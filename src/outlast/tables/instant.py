"""Instants, stored alike by everything that writes them.

PostgreSQL: `timestamptz`. SQLite: text in UTC with microseconds, `YYYY-MM-DD HH:MM:SS.ffffff`, so
that text order is time order. In and out go time-zone aware datetimes; a naive one never reaches
SQLite. `now` is for defaults, `clock` and `clock_plus` are the statement's clock, for new rows.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import DateTime, Dialect, Float
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

SQLITE_FORMAT = "%Y-%m-%d %H:%M:%f000"
"""SQLite's clock has milliseconds; the zeros keep its text as long as what Python writes."""

SQLITE_NOW = f"(strftime('{SQLITE_FORMAT}','now'))"


def to_text(instant: datetime) -> str:
    """How SQLite stores an instant."""
    if instant.tzinfo is None:
        raise ValueError(f"an instant must be timezone-aware, got {instant!r}")
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def from_text(stored: str) -> datetime:
    """An instant as SQLite stored it."""
    return datetime.fromisoformat(stored).replace(tzinfo=UTC)


class Instant(TypeDecorator[datetime]):
    """A column of instants."""

    impl = DateTime(timezone=True)
    cache_ok = True
    # Alembic writes types of SQLAlchemy's own modules without an import of ours: a migration reads
    # `sa.DateTime(timezone=True)`, which is the same DDL, and goes on working without this package.
    __module__ = "sqlalchemy.types"

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return value
        if value.tzinfo is None:
            raise ValueError(f"an instant must be timezone-aware, got {value!r}")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return value
        return value.replace(tzinfo=UTC)

    def __repr__(self) -> str:
        return "DateTime(timezone=True)"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_instant, ())


def _instant() -> Instant:
    return Instant()


class now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL it stands for
    """The default of a column: the transaction's clock, where a database has one."""

    type = Instant()
    inherit_cache = True


class clock(FunctionElement[datetime]):  # noqa: N801
    """The statement's clock: a long transaction does not stamp its rows with its beginning."""

    type = Instant()
    inherit_cache = True


class clock_plus(FunctionElement[datetime]):  # noqa: N801
    """The statement's clock and a delay in seconds, added by the database."""

    type = Instant()
    inherit_cache = True

    def __init__(self, seconds: ColumnElement[float]) -> None:
        super().__init__(seconds)


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ARG001
    return "now()"


@compiles(clock)
def _clock(element: clock, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ARG001
    return "clock_timestamp()"


@compiles(clock_plus)
def _clock_plus(element: clock_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"(clock_timestamp() + make_interval(secs => {seconds}))"


@compiles(now, "sqlite")
@compiles(clock, "sqlite")
def _sqlite_now(element: now | clock, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ARG001
    return SQLITE_NOW


@compiles(clock_plus, "sqlite")
def _sqlite_plus(element: clock_plus, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"strftime('{SQLITE_FORMAT}','now',printf('%.6f seconds',{seconds}))"


SECONDS = Float(53)
"""The type of a delay: double precision holds a century to the microsecond."""

DELAY_MAX = timedelta(days=36525)
"""A century: beyond it databases leave the years they can count."""
