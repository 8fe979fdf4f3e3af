"""A PostgreSQL database for a page that asks for one."""

import asyncio
import uuid
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine


def _on_server(url: str, statement: str) -> None:
    async def execute() -> None:
        engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
        try:
            async with engine.connect() as connection:
                await connection.execute(text(statement))
        finally:
            await engine.dispose()

    asyncio.run(execute())


@pytest.fixture
def page_postgres(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """The URL of a database of the page's own, made at the first call; skips without a server."""
    made: list[str] = []

    def url() -> str:
        if not made:
            server = request.getfixturevalue("postgres_url")
            name = f"docs_{uuid.uuid4().hex[:12]}"
            _on_server(server, f"CREATE DATABASE {name}")
            made.append(name)
        server = request.getfixturevalue("postgres_url")
        return make_url(server).set(database=made[0]).render_as_string(hide_password=False)

    yield url
    for name in made:
        _on_server(request.getfixturevalue("postgres_url"), f"DROP DATABASE {name} WITH (FORCE)")
