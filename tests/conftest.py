"""Databases for tests: each test gets a schema or a file of its own.

`postgres`, `postgres_psycopg`, `sqlite` are one database each; `database` runs a test on SQLite and
on PostgreSQL, `any_driver` on each driver we support for publishing. A test writes
`database.run(body)` with `async def body(engine): ...`.
"""

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

POSTGRES_URL = os.environ.get(
    "OUTLAST_TEST_POSTGRES",
    "postgresql+asyncpg://postgres@127.0.0.1:5432/test",
)


@dataclass
class Database:
    """One database of one test. On PostgreSQL every connection sees only the test's schema."""

    url: str
    schema: str | None = None
    connect_args: dict[str, Any] = field(default_factory=dict)

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    @property
    def dsn(self) -> str:
        """For asyncpg itself; pass `server_settings={"search_path": database.schema}`."""
        return make_url(POSTGRES_URL).set(drivername="postgresql").render_as_string(False)

    def engine(self, **options: Any) -> AsyncEngine:
        return create_async_engine(self.url, connect_args=self.connect_args, **options)

    def run(self, body: Callable[[AsyncEngine], Awaitable[Any]], **options: Any) -> Any:
        async def with_engine() -> Any:
            engine = self.engine(**options)
            try:
                return await body(engine)
            finally:
                await engine.dispose()

        return asyncio.run(with_engine())


def _server(statement: str) -> None:
    async def execute() -> None:
        engine = create_async_engine(POSTGRES_URL, connect_args={"timeout": 10})
        try:
            async with engine.begin() as connection:
                await connection.execute(text(statement))
        finally:
            await engine.dispose()

    asyncio.run(execute())


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """The server's URL; the test is skipped where there is none."""
    try:
        _server("SELECT 1")
    except OSError as error:
        pytest.skip(f"PostgreSQL is not reachable (OUTLAST_TEST_POSTGRES): {error}")
    return POSTGRES_URL


@pytest.fixture
def postgres_schema(postgres_url: str) -> Iterator[str]:
    """A fresh schema, dropped after the test."""
    name = f"t_{uuid.uuid4().hex[:16]}"
    _server(f"CREATE SCHEMA {name}")
    yield name
    _server(f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def postgres(postgres_url: str, postgres_schema: str) -> Database:
    """PostgreSQL by asyncpg."""
    settings = {
        "server_settings": {"search_path": postgres_schema, "application_name": postgres_schema},
    }
    return Database(postgres_url, postgres_schema, settings)


@pytest.fixture
def postgres_psycopg(postgres_url: str, postgres_schema: str) -> Database:
    """PostgreSQL by psycopg."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    url = make_url(postgres_url).set(drivername="postgresql+psycopg")
    return Database(
        url.render_as_string(False),
        postgres_schema,
        {"options": f"-csearch_path={postgres_schema}", "application_name": postgres_schema},
    )


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    """A SQLite file by aiosqlite."""
    return Database(f"sqlite+aiosqlite:///{tmp_path / 'outlast.db'}")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """The same test on SQLite and on PostgreSQL."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["sqlite", "postgres", "postgres_psycopg"])
def any_driver(request: pytest.FixtureRequest) -> Database:
    """The same test on every driver that can publish."""
    return request.getfixturevalue(request.param)
