"""Scenes on SQLite and in a PostgreSQL database of their own: backends are terminated there."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url

from tests.crash.scene import Scene


def admin(dsn: str, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(execute())


@pytest.fixture
def own_database(postgres_url: str) -> Iterator[str]:
    """The URL of a new database on the shared server, dropped after the test."""
    url = make_url(postgres_url)
    name = f"crash_{uuid.uuid4().hex[:12]}"
    dsn = url.set(drivername="postgresql").render_as_string(False)
    admin(dsn, f"CREATE DATABASE {name}")
    yield url.set(database=name).render_as_string(False)
    admin(dsn, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_scene(own_database: str, tmp_path: Path) -> Callable[..., Scene]:
    return lambda **options: Scene(url=own_database, folder=tmp_path, **options)


@pytest.fixture
def sqlite_scene(tmp_path: Path) -> Callable[..., Scene]:
    url = f"sqlite+aiosqlite:///{tmp_path / 'crash.db'}"
    return lambda **options: Scene(url=url, folder=tmp_path, **options)


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest) -> Any:
    """The same test on both databases."""
    return request.getfixturevalue(f"{request.param}_scene")
