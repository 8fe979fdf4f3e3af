"""Where the database is: what `--dsn` says, as an engine. Nothing is created by looking.

In: a URL or the path of a SQLite file. Out: an async engine that has not connected yet. A password
never leaves here in a message.
"""

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outlast.model.errors import UnsupportedDatabase
from outlast.ops import BadRequest

CONNECT_SECONDS = 10

_POSTGRES = {"postgres", "postgresql", "postgresql+psycopg2", "postgresql+pg8000"}
_SQLITE = {"sqlite", "sqlite+pysqlite"}


def engine_at(dsn: str) -> AsyncEngine:
    """The engine of this address."""
    url = _url(dsn)
    family = url.drivername.partition("+")[0]
    if family not in {"postgresql", "sqlite"}:
        raise UnsupportedDatabase(f"the desk works on PostgreSQL and SQLite, not on {family}")
    arguments: dict[str, object] = {}
    if family == "sqlite":
        _need_file(url)
    elif url.drivername == "postgresql+asyncpg":
        arguments["timeout"] = CONNECT_SECONDS
        url = _ssl_as_asyncpg_says(url)
    try:
        return create_async_engine(url, connect_args=arguments)
    except ModuleNotFoundError as error:
        raise UnsupportedDatabase(
            f"{url.drivername} needs the package {error.name}: pip install 'outlast[postgres]'"
        ) from None
    except ArgumentError:
        raise BadRequest(f"{url.drivername} is no driver that can be used here") from None


def _url(dsn: str) -> URL:
    if "://" not in dsn:
        return URL.create("sqlite+aiosqlite", database=dsn)
    try:
        url = make_url(dsn)
    except (ArgumentError, ValueError):
        raise BadRequest(
            "the database address cannot be read", "write postgresql://user@host/name or a file"
        ) from None
    if url.drivername in _POSTGRES:
        return url.set(drivername="postgresql+asyncpg")
    if url.drivername in _SQLITE:
        return url.set(drivername="sqlite+aiosqlite")
    return url


def _need_file(url: URL) -> None:
    if not url.database or url.database == ":memory:":
        raise BadRequest("a database in memory is seen by nobody else", "name a file with --dsn")
    name = url.database.removeprefix("file:").partition("?")[0]
    if not Path(name).is_file():
        raise BadRequest(f"there is no database file {name}", "name the right one with --dsn")


def _ssl_as_asyncpg_says(url: URL) -> URL:
    """libpq's `sslmode` is asyncpg's `ssl`."""
    if "sslmode" not in url.query:
        return url
    query = dict(url.query)
    query["ssl"] = query.pop("sslmode")
    return url.set(query=query)
