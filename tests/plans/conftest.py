"""A database that nobody else uses: a snapshot held by a stranger would keep dead rows alive."""

import asyncio
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.conftest import Database


def _execute(url: str, statement: str) -> None:
    async def execute() -> None:
        engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
        try:
            async with engine.connect() as connection:
                await connection.execute(text(statement))
        finally:
            await engine.dispose()

    asyncio.run(execute())


@pytest.fixture(scope="session")
def lonely_url(postgres_url: str) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:16]}"
    _execute(postgres_url, f"CREATE DATABASE {name}")
    yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    _execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def lonely(lonely_url: str) -> Iterator[Database]:
    """A schema of its own in that database."""
    schema = f"t_{uuid.uuid4().hex[:16]}"
    _execute(lonely_url, f"CREATE SCHEMA {schema}")
    yield Database(lonely_url, schema, {"server_settings": {"search_path": schema}})
    _execute(lonely_url, f"DROP SCHEMA {schema} CASCADE")
