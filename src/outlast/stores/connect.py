"""Which store fits an engine. Drivers are imported when needed, and named when they lack."""

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.model.errors import UnsupportedDatabase
from outlast.ports.store import Store


def store_for(engine: AsyncEngine, outbox: Table, dlq: Table | None = None) -> Store:
    """The store for this engine; a driver that cannot consume is refused here."""
    dialect, driver = engine.dialect.name, engine.dialect.driver
    if dialect == "postgresql" and driver == "asyncpg":
        from outlast.stores.postgres.store import PostgresStore  # noqa: PLC0415

        return PostgresStore(engine, outbox, dlq)
    if dialect == "sqlite" and driver == "aiosqlite":
        from outlast.stores.sqlite.store import SqliteStore  # noqa: PLC0415

        return SqliteStore(engine, outbox, dlq)
    raise UnsupportedDatabase(
        f"consuming needs postgresql+asyncpg or sqlite+aiosqlite, this engine is "
        f"{dialect}+{driver}. Publishing works on any async driver; give the broker an engine "
        "with one of the two (pip install 'outlast[postgres]')",
    )
