"""T12: SQLite through the engine with a `deliver` that does nothing, against `sqlite3`."""

import asyncio
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench.contenders import OURS_DEFAULT
from bench.contenders.contract import HEADERS, PAYLOAD, QUEUE
from bench.crew import ask
from bench.gates import Finding
from bench.measures.cells import Cells, interleaved, median

_BATCH = 100


def _fill(path: Path, count: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("delete from outbox")
        connection.executemany(
            "insert into outbox (queue, payload, headers) values (?, ?, ?)",
            ((QUEUE, PAYLOAD, HEADERS) for _ in range(count)),
        )
    connection.close()


def _with_the_standard_library(path: Path, count: int) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma synchronous = normal")
    began, done = time.monotonic(), 0
    while True:
        token = uuid4().hex
        connection.execute("begin immediate")
        rows = connection.execute(
            "update outbox set acquired_token = ?, acquired_at = "
            "strftime('%Y-%m-%d %H:%M:%f000', 'now'), deliveries_count = deliveries_count + 1 "
            "where id in (select id from outbox where queue = ? and acquired_token is null and "
            "next_attempt_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') "
            "order by next_attempt_at, id limit ?) returning id, payload, headers",
            (token, QUEUE, _BATCH),
        ).fetchall()
        connection.execute("commit")
        if not rows:
            break
        connection.execute("begin immediate")
        connection.executemany(
            "delete from outbox where id = ? and acquired_token = ?",
            ((row[0], token) for row in rows),
        )
        connection.execute("commit")
        done += len(rows)
    connection.close()
    assert done == count, done
    return count / (time.monotonic() - began)


async def _with_the_engine(engine: Any, table: Any, count: int) -> float:
    from outlast.engine.engine import Engine
    from outlast.engine.options import EngineOptions, SubscriptionOptions
    from outlast.model.outcome import ACK
    from outlast.policy.retry import NoRetry
    from outlast.policy.verdict import Verdicts
    from outlast.stores.sqlite.store import SqliteStore

    store = SqliteStore(engine, table, None)
    left, began = count, 0.0
    settled = asyncio.Event()

    def heard(name: str, _tags: object) -> None:
        nonlocal left
        if name == "acked":
            left -= 1
            if not left:
                settled.set()

    async def deliver(_delivery: Any) -> Any:
        nonlocal began
        began = began or time.monotonic()
        return ACK

    room = Engine(store, EngineOptions(consumer_instance="bench:1"), emit=heard)
    options = SubscriptionOptions(queues=[QUEUE], fetch_batch_size=_BATCH)
    room.subscribe("bench", options, deliver, Verdicts(NoRetry(), "bench"))
    await room.start()
    await asyncio.wait_for(settled.wait(), 120)
    seconds = time.monotonic() - began
    await room.stop()
    return count / seconds


async def embedded(request: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own: rows a second of both on one file."""
    from sqlalchemy import MetaData
    from sqlalchemy.ext.asyncio import create_async_engine

    from outlast import make_outbox_table

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.sqlite"
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        metadata = MetaData()
        table = make_outbox_table(metadata, "outbox")
        async with engine.begin() as connection:
            await connection.exec_driver_sql("pragma journal_mode = wal")
            await connection.run_sync(metadata.create_all)
        count = request["messages"]
        found = {}
        _fill(path, count)
        found["stdlib"] = _with_the_standard_library(path, count)
        _fill(path, count)
        found["engine"] = await _with_the_engine(engine, table, count)
        await engine.dispose()
    return found


def measure(rounds: int, messages: int) -> Cells:
    """Once a round."""
    request = {"call": "bench.measures.embedded:embedded", "messages": messages}
    return interleaved("SQLite", (OURS_DEFAULT,), rounds, lambda entry: ask(request, entry))


def findings(cells: Cells) -> list[Finding]:
    """Reported; gated later."""
    done = [cell for cell in cells[OURS_DEFAULT.name] if cell is not None]
    value = median([cell["engine"] / cell["stdlib"] for cell in done]) if done else None
    what = "SQLite, claim and ack of 100 through the engine / sqlite3"
    return [Finding("T12", what, value, ">=", 0.5, gates=False)]
