"""The desk over many dead letters: pages, numbers, and both again right after a large replay."""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.gates import Finding
from bench.letters import fill
from bench.measures.cells import median
from outlast.ops import SCOPES, Actor, Desk
from outlast.policy.filter_text import parse

_ANN = Actor("ann", SCOPES)
_FILTERS = (
    *("", "queue:q7", "category:EXTERNAL", "category:POISON", "error:nothing", "since:2h"),
    *("subscriber:shop.handler3", "version:>=1.1", "queue:q7 category:EXTERNAL", "message:777"),
    *("state:any", "-queue:q1", "owner:ann"),
)
_SAMPLE_SECONDS = 0.02


def measure(dsn: str, rounds: int, rows: int, embedded_rows: int) -> dict[str, Any]:
    """Seconds by question, on PostgreSQL and on SQLite."""
    url = dsn.replace("postgresql://", "postgresql+asyncpg://")
    found = {"postgresql": asyncio.run(_run(url, rounds, rows))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "letters.db"
        found["sqlite"] = asyncio.run(_run(f"sqlite+aiosqlite:///{path}", rounds, embedded_rows))
    return found


async def _run(url: str, rounds: int, rows: int) -> dict[str, Any]:
    engine = create_async_engine(url)
    await fill(engine, rows)
    desk = Desk(engine)
    memory = psutil.Process(os.getpid()).memory_info
    try:
        before = await _ask(desk, rounds)
        idle = memory().rss
        longest, replayed, seconds = await _replay(engine, desk, rows // 10)
        after = await _ask(desk, rounds)
        return {
            "rows": rows,
            "before": before,
            "after": after,
            "replayed": replayed,
            "replay_seconds": seconds,
            "longest_transaction_seconds": longest,
            "more_memory_mb": (memory().rss - idle) / 1e6,
        }
    finally:
        await engine.dispose()


async def _ask(desk: Desk, rounds: int) -> dict[str, float]:
    questions: dict[str, Callable[[], Awaitable[Any]]] = {
        "groups": lambda: desk.groups(_ANN),
        "stats": lambda: desk.stats(_ANN),
    }
    for words in _FILTERS:
        query = parse(words, now=datetime.now(UTC))
        questions[f"list {words}".strip()] = lambda query=query: desk.list(_ANN, query)
    return {name: await _seconds(ask, rounds) for name, ask in questions.items()}


async def _seconds(ask: Callable[[], Awaitable[Any]], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        await ask()
        taken.append(time.perf_counter() - began)
    return median(taken)


async def _replay(engine: AsyncEngine, desk: Desk, number: int) -> tuple[float, int, float]:
    """A tenth of the letters; the longest transaction that was seen meanwhile."""
    over = asyncio.Event()
    watch = asyncio.create_task(_longest(engine, over))
    began = time.perf_counter()
    bulk = await desk.replay_all(_ANN, everything=True, most=number)
    seconds = time.perf_counter() - began
    over.set()
    return await watch, bulk.replayed, seconds


async def _longest(engine: AsyncEngine, over: asyncio.Event) -> float:
    if engine.dialect.name != "postgresql":
        return float("nan")
    asked = text(
        "select coalesce(extract(epoch from max(clock_timestamp() - xact_start)), 0) "
        "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
        "and backend_type = 'client backend'"
    )
    longest = 0.0
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        while not over.is_set():
            longest = max(longest, float((await connection.execute(asked)).scalar_one()))
            await asyncio.sleep(_SAMPLE_SECONDS)
    return longest


def findings(found: dict[str, Any]) -> list[Finding]:
    """Reported: seconds are this machine's."""
    lines = []
    for database, seen in found.items():
        for when in ("before", "after"):
            asked = seen[when]
            lists = {name: s for name, s in asked.items() if name.startswith("list")}
            slowest = max(lists, key=lambda name: lists[name])
            title = f"{database}, {seen['rows']:,} letters, {when} a replay of a tenth"
            lines += [
                _line(f"{title}: slowest of {len(lists)} lists, ms", lists[slowest], 100, slowest),
                _line(f"{title}: groups, ms", asked["groups"], 500),
                _line(f"{title}: stats, ms", asked["stats"], 500),
            ]
        lines.append(
            Finding(
                "B",
                f"{database}: memory more after a replay of {seen['replayed']:,}, MB",
                seen["more_memory_mb"],
                "<=",
                50.0,
                gates=False,
            )
        )
    longest = found["postgresql"]["longest_transaction_seconds"]
    return [*lines, _line("postgresql: longest transaction of that replay, ms", longest, 1000)]


def _line(what: str, seconds: float, most_ms: float, note: str = "") -> Finding:
    return Finding("B", what, seconds * 1e3, "<=", most_ms, gates=False, note=note)
