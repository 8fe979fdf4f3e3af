"""`outbox_autovacuum_ddl`: the storage settings an outbox on PostgreSQL wants, as DDL text.

An outbox is rewritten all day and nearly empty: a threshold in rows fits it, a share of its size
does not. Nothing is executed here; the text goes into a migration.
"""

from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql

_dialect: Dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]

SETTINGS_OFF = ("autovacuum_vacuum_scale_factor", "autovacuum_vacuum_insert_scale_factor")
SETTINGS_ROWS = ("autovacuum_vacuum_threshold", "autovacuum_vacuum_insert_threshold")


def _setting(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 0:
        raise ValueError(f"{name} must be >= 0, got {value!r}")
    return value


def outbox_autovacuum_ddl(
    table_name: str = "outbox",
    *,
    schema: str | None = None,
    vacuum_threshold: int = 1000,
    insert_threshold: int = 1000,
    vacuum_cost_delay: int | None = None,
    vacuum_cost_limit: int | None = None,
) -> str:
    """An `ALTER TABLE … SET (…)` for PostgreSQL, identifiers quoted."""
    if not isinstance(table_name, str) or not table_name:
        raise ValueError(f"table_name must be a non-empty str, got {table_name!r}")
    quote = _dialect.identifier_preparer.quote_identifier
    settings = {
        "autovacuum_vacuum_scale_factor": 0,
        "autovacuum_vacuum_threshold": _setting("vacuum_threshold", vacuum_threshold),
        "autovacuum_vacuum_insert_scale_factor": 0,
        "autovacuum_vacuum_insert_threshold": _setting("insert_threshold", insert_threshold),
    }
    if vacuum_cost_delay is not None:
        settings["autovacuum_vacuum_cost_delay"] = _setting("vacuum_cost_delay", vacuum_cost_delay)
    if vacuum_cost_limit is not None:
        settings["autovacuum_vacuum_cost_limit"] = _setting("vacuum_cost_limit", vacuum_cost_limit)
    name = quote(table_name) if schema is None else f"{quote(schema)}.{quote(table_name)}"
    assignments = ", ".join(f"{key} = {value}" for key, value in settings.items())
    return f"ALTER TABLE {name} SET ({assignments})"
