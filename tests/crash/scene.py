"""A scene: where the database is, how workers are built, where the ledgers lie.

Handed to each process as a JSON file. Tables: outbox, outbox_dlq and the witness, which a producer
writes in the same transaction as the message.
"""

import dataclasses
import json
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Column, Float, MetaData, String, Table, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outlast.ports.store import Store
from outlast.stores.connect import store_for
from outlast.tables import make_dlq_table, make_outbox_table
from outlast.tables.instant import Instant, clock
from tests.crash.ledger import Ledger

QUEUE = "orders"
RETRY_SECONDS = 0.1
"""The delay of every retry; an attempt that comes sooner is early."""

metadata = MetaData()
outbox: Table = make_outbox_table(metadata, "outbox")
dlq: Table = make_dlq_table(metadata, "outbox_dlq")
witness = Table(
    "witness",
    metadata,
    Column("message", String(64), primary_key=True),
    # written before the message, by the database's clock: never later than its own beginning
    Column("at", Instant, nullable=False, server_default=clock()),
    Column("delay", Float, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("checksum", BigInteger, nullable=False),
)


@dataclass(kw_only=True)
class Scene:
    """One run."""

    url: str
    folder: Path
    connect_args: dict[str, Any] = field(default_factory=dict)
    lease: float = 3.0
    min_fetch: float = 0.1
    max_fetch: float = 0.5
    workers: int = 4
    """Handlers at a time in one process."""
    batch: int = 20
    max_deliveries: int | None = None
    grace: float = 5.0
    hooked: bool = True
    """Whether the store is wrapped; else nothing of the harness is between it and the engine."""
    part: str | None = None
    """Who its connections say they are, to triggers of a test."""

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    @property
    def dsn(self) -> str:
        return self.url.replace("+asyncpg", "")

    def ledger(self) -> Ledger:
        return Ledger(self.ledger_path)

    @property
    def ledger_path(self) -> Path:
        return self.folder / "ledger"

    def engine(self, **options: Any) -> AsyncEngine:
        arguments = dict(self.connect_args)
        if self.part and self.is_postgres:
            arguments["server_settings"] = {"test.part": self.part}
        engine = create_async_engine(self.url, connect_args=arguments, **options)
        if not self.is_postgres:
            event.listen(engine.sync_engine, "connect", _wait_for_the_lock)
            if self.part:
                event.listen(engine.sync_engine, "connect", partial(_say, self.part))
        return engine

    def store(self, engine: AsyncEngine) -> Store:
        return store_for(engine, outbox, dlq)

    def save(self, path: Path, **role: Any) -> Path:
        """For a process: the scene and what it is to do in it."""
        values = dataclasses.asdict(self) | {"folder": str(self.folder)}
        path.write_text(json.dumps({"scene": values, "role": role}))
        return path

    async def prepare(self) -> None:
        """The tables."""
        engine = self.engine()
        async with engine.begin() as connection:
            if not self.is_postgres:
                await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            await connection.run_sync(metadata.create_all)
        await engine.dispose()


def load(path: str) -> tuple[Scene, dict[str, Any]]:
    """The scene and the role of a process."""
    told = json.loads(Path(path).read_text())
    values = told["scene"]
    return Scene(**values | {"folder": Path(values["folder"])}), told["role"]


def body(message: str, kind: str, padding: str = "", **more: Any) -> bytes:
    """What a message says: who it is and what its handler is to do."""
    return json.dumps({"m": message, "k": kind, "p": padding} | more).encode()


def checksum(payload: bytes) -> int:
    return zlib.crc32(payload)


def _say(part: str, connection: Any, _record: Any) -> None:
    connection.create_function("part", 0, lambda: part)


def _wait_for_the_lock(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    # producers of several processes take turns at SQLite's one write lock
    cursor.execute("PRAGMA busy_timeout=20000")
    cursor.close()
