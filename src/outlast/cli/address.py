"""Where the database is: what `--dsn` says, as an engine. A file is made by `make_file` alone.

In: a URL or the path of a SQLite file. Out: an async engine that has not connected yet. A password
never leaves here in a message.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, NullPool, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outlast.model.errors import UnsupportedDatabase
from outlast.ops import BadRequest

CONNECT_SECONDS = 10

_POSTGRES = {"postgres", "postgresql", "postgresql+psycopg2", "postgresql+pg8000"}
_SQLITE = {"sqlite", "sqlite+pysqlite"}
_WAL_AT, _WAL = 18, 2
"""Where a SQLite file says how it is written, and how it says write-ahead log."""


def engine_at(dsn: str) -> AsyncEngine:
    """The engine of this address."""
    url = _url(dsn)
    family = url.drivername.partition("+")[0]
    if family not in {"postgresql", "sqlite"}:
        raise UnsupportedDatabase(f"the desk works on PostgreSQL and SQLite, not on {family}")
    arguments: dict[str, object] = {}
    if family == "sqlite":
        _need_file(url)
        is_uri = str(url.database).startswith("file:")
        if not is_uri and not _is_mine_to_write(_file_of(url)):
            return _reader_of(url)
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


def _reader_of(url: URL) -> AsyncEngine:
    """An engine on a file that we may not write.

    SQLite makes two files beside one with a write-ahead log, even to read it: it fails where the
    folder is not ours, and elsewhere leaves files that the owner cannot write.
    """
    path = _file_of(url)
    # asked for each connection: somebody may begin to write between two
    engine = create_async_engine(url, poolclass=NullPool)

    @event.listens_for(engine.sync_engine, "do_connect")
    def connect(_dialect: Any, _record: Any, given: list[Any], options: dict[str, Any]) -> None:
        if _is_at_rest(path):
            given[0], options["uri"] = f"file:{quote(str(path))}?immutable=1", True

    return engine


def _is_mine_to_write(path: Path) -> bool:
    by_effect = os.access in os.supports_effective_ids
    return os.access(path, os.W_OK, effective_ids=by_effect)


def _is_at_rest(path: Path) -> bool:
    """Written through a log, and nobody has it open: all there is stands in the file itself."""
    try:
        with path.open("rb") as file:
            head = file.read(_WAL_AT + 1)
    except OSError:
        return False
    return head[_WAL_AT:] == bytes([_WAL]) and not Path(f"{path}-wal").exists()


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


def make_file(dsn: str | None) -> Path | None:
    """A new, empty SQLite file, where the address names one that does not exist."""
    if not dsn:
        return None
    url = _url(dsn)
    if not url.drivername.startswith("sqlite") or (url.database or "").startswith("file:"):
        return None
    path = _file_of(url)
    if path.exists():
        return None
    try:
        # bodies of messages come in here
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise BadRequest(
            f"the database file {path} cannot be made: {error.strerror}",
            "its folder must exist, and be yours to write to",
        ) from None
    return path


def _need_file(url: URL) -> None:
    path = _file_of(url)
    if not path.is_file():
        raise BadRequest(
            f"there is no database file {path}",
            "name the right one with --dsn; a new one is made by outlast db create",
        )


def _file_of(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise BadRequest("a database in memory is seen by nobody else", "name a file with --dsn")
    if url.database.startswith("file:"):
        return Path(url.database.removeprefix("file:").partition("?")[0])
    return Path(url.database)


def _ssl_as_asyncpg_says(url: URL) -> URL:
    """libpq's `sslmode` is asyncpg's `ssl`."""
    if "sslmode" not in url.query:
        return url
    query = dict(url.query)
    query["ssl"] = query.pop("sslmode")
    return url.set(query=query)
