"""PgBouncer in transaction mode: found out, worked with, and nobody else notices."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from outlast.model.errors import UnsupportedDatabase
from tests.crash.cluster import Cluster, pgbouncer
from tests.crash.scene import Scene
from tests.crash.torture import Torture, interleaved

POOL_SIZE = 3
UNCACHED = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
SHOWN = (
    "jit",
    "enable_seqscan",
    "enable_bitmapscan",
    "synchronous_commit",
    "lock_timeout",
    "default_transaction_isolation",
    "application_name",
)


@pytest.fixture(scope="module")
def port(cluster: Cluster) -> Iterator[int]:
    with pgbouncer(cluster, pool_size=POOL_SIZE) as listening:
        yield listening


@pytest.fixture
def pooled_scene(cluster: Cluster, port: int, tmp_path: Path) -> Callable[..., Scene]:
    def scene(**options: Any) -> Scene:
        url = cluster.database().replace(f":{cluster.port}/", f":{port}/")
        return Scene(**{"url": url, "folder": tmp_path, "connect_args": UNCACHED} | options)

    return scene


async def settings(scene: Scene) -> list[tuple[str, ...]]:
    """What strangers see on every server connection of the pool, all held at once."""
    strangers = [await asyncpg.connect(scene.dsn, statement_cache_size=0) for _ in range(POOL_SIZE)]
    seen: list[tuple[str, ...]] = []
    try:
        for connection in strangers:
            await connection.execute("BEGIN")
        for connection in strangers:
            seen.append(tuple([await connection.fetchval(f"SHOW {name}") for name in SHOWN]))
        for connection in strangers:
            await connection.execute("COMMIT")
    finally:
        for connection in strangers:
            await connection.close()
    return seen


def test_found_out(pooled_scene: Callable[..., Scene], caplog: pytest.LogCaptureFixture) -> None:
    """F-E04: the store knows, and says so once."""
    scene = pooled_scene()

    async def main() -> bool:
        await scene.prepare()
        engine = scene.engine()
        store: Any = scene.store(engine)
        await store.open(lambda _queue: None)
        pooled = bool(store.is_pooled)
        await store.close()
        await engine.dispose()
        return pooled

    with caplog.at_level(logging.WARNING, logger="outlast"):
        assert asyncio.run(main())
    assert len([r for r in caplog.records if "pooler" in r.getMessage()]) == 1


def test_a_direct_connection_is_none(postgres_scene: Callable[..., Scene]) -> None:
    """F-E04: without a pooler nothing is found."""
    scene = postgres_scene()

    async def main() -> bool:
        await scene.prepare()
        engine = scene.engine()
        store: Any = scene.store(engine)
        await store.open(lambda _queue: None)
        pooled = bool(store.is_pooled)
        await store.close()
        await engine.dispose()
        return pooled

    assert not asyncio.run(main())


def test_a_statement_cache_is_refused(pooled_scene: Callable[..., Scene]) -> None:
    """F-E04: at start, naming the argument."""
    scene = pooled_scene()
    asyncio.run(scene.prepare())
    scene.connect_args = {}

    async def main() -> None:
        engine = scene.engine()
        store = scene.store(engine)
        try:
            await store.open(lambda _queue: None)
        finally:
            await store.close()
            await engine.dispose()

    for _ in range(3):
        with pytest.raises(UnsupportedDatabase, match="statement_cache_size"):
            asyncio.run(main())


def test_delivers_and_leaks_nothing(pooled_scene: Callable[..., Scene]) -> None:
    """F-E04, S1: by polling, through kills; strangers on the pool see the server's own settings."""
    scene = pooled_scene(lease=3.0, hooked=False)
    before = asyncio.run(settings(scene))
    report = Torture(
        scene=scene,
        messages=1_000,
        workers=3,
        nemesis=interleaved("kill worker", "term worker", count=8),
        pace=0.05,
        seconds_max=90.0,
    ).run()
    print(f"\nPgBouncer: {report}")
    assert report.is_clean, report
    after = asyncio.run(settings(scene))
    names = SHOWN.index("application_name")
    assert [row[:names] for row in after] == [row[:names] for row in before]
    assert not any("outlast" in row[names] for row in after)


def test_a_leak_would_be_seen(pooled_scene: Callable[..., Scene]) -> None:
    """Positive control: what one client sets there, a stranger finds."""
    scene = pooled_scene()

    async def main() -> list[tuple[str, ...]]:
        rude = await asyncpg.connect(scene.dsn, statement_cache_size=0)
        await rude.execute("SET enable_seqscan = off")
        await rude.close()
        return await settings(scene)

    seen = asyncio.run(main())
    assert "off" in {row[SHOWN.index("enable_seqscan")] for row in seen}
