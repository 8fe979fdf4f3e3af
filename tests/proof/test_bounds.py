"""The stated bounds, measured on the real databases. The value is printed; a test fails only when
three rounds were each beyond three times the bound: machines do other things, too.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from outlast.engine.engine import Engine
from outlast.engine.options import EngineOptions, SubscriptionOptions
from outlast.model.delivery import Claim, Delivery
from outlast.model.outcome import ACK, Outcome
from outlast.policy.retry import ConstantRetry
from outlast.policy.verdict import Verdicts
from outlast.publish.run import OutboxWriter
from tests.crash.post import lines, post, until_written
from tests.crash.processes import Processes
from tests.crash.scene import QUEUE, Scene, outbox

SLACK = 3.0
ROUNDS = 3
ON_TIME = 0.05
"""p99 of timers and of own retries."""
WAKE_UP = 0.05
"""p50 from a commit to its handler, on an idle worker."""
SECOND_PROCESS = 0.2
"""SQLite: from a commit to the handler in another process."""

RECONNECTED = 2.0
"""From the end of every backend to the settled message."""

Body = Callable[["Bench"], Any]


class Bench:
    """An engine in this process, and what its handler and its claims saw."""

    def __init__(self, scene: Scene, **options: Any) -> None:
        self.scene = scene
        self.database = scene.engine()
        self.store: Any = scene.store(self.database)
        self.claims: list[tuple[float, set[int]]] = []
        self.runs: list[tuple[float, Delivery]] = []
        self.fail_first = False
        self._watch_claims()
        self.engine = Engine(
            self.store, EngineOptions(consumer_instance="bench"), logger=logging.getLogger("bench")
        )
        settings = {
            "queues": QUEUE,
            "max_workers": 4,
            "min_fetch_interval": 1.0,
            "max_fetch_interval": 4.0,
            "retry_strategy": ConstantRetry(delay_seconds=0.5),
        } | options
        self.options = SubscriptionOptions(**settings)
        verdicts = Verdicts(self.options.retry_strategy, "bench")
        self.engine.subscribe("bench", self.options, self._deliver, verdicts)

    def _watch_claims(self) -> None:
        claim = self.store.claim

        async def watched(*arguments: Any) -> Claim:
            sent = time.monotonic()
            answer: Claim = await claim(*arguments)
            self.claims.append((sent, {row.id for row in answer.rows}))
            return answer

        self.store.claim = watched

    async def _deliver(self, delivery: Delivery) -> Outcome:
        self.runs.append((time.monotonic(), delivery))
        if self.fail_first and delivery.attempts_count == 0:
            raise ValueError("the first attempt fails")
        return ACK

    async def post(self, *, notify: bool = True, delay: float = 0.0) -> float:
        """Commit one message; when the commit had returned."""
        async with self.database.begin() as connection:
            await self.insert(connection, notify=notify, delay=delay)
        return time.monotonic()

    async def insert(self, connection: Any, *, notify: bool = True, delay: float = 0.0) -> int:
        found = await OutboxWriter(outbox, notify=notify).insert(
            connection,
            queue=QUEUE,
            payload=b"{}",
            headers=None,
            activate_in=timedelta(seconds=delay) if delay else None,
        )
        assert found is not None
        return found

    async def rows(self) -> int:
        async with self.database.connect() as connection:
            found = await connection.execute(select(func.count()).select_from(outbox))
            return int(found.scalar_one())

    async def until_runs(self, count: int, seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while len(self.runs) < count:
                await asyncio.sleep(0.001)

    def lateness(self) -> list[float]:
        """From when each run was due to its claim, by the database's clock."""
        return sorted((d.acquired_at - d.next_attempt_at).total_seconds() for _, d in self.runs)


def measured(scene: Scene, body: Body, **options: Any) -> Any:
    async def main() -> Any:
        await scene.prepare()
        bench = Bench(scene, **options)
        try:
            await bench.engine.start()
            return await body(bench)
        finally:
            await bench.engine.stop(0.5)
            await bench.database.dispose()

    return asyncio.run(main())


def check(
    what: str, make: Callable[..., Scene], measure: Callable[[Scene], float], bound: float
) -> None:
    """Measure, tell, and again if the machine was too busy to say."""
    for _ in range(ROUNDS):
        scene = make()
        value = measure(scene)
        kind = "PostgreSQL" if scene.is_postgres else "SQLite"
        print(f"\n{what}, {kind}: {value * 1000:.1f} ms (stated: {bound * 1000:.0f} ms)")
        if value <= bound * SLACK:
            return
    pytest.fail(f"{what}: beyond {SLACK:g} times {bound} s in {ROUNDS} rounds")


def latest(late: list[float]) -> float:
    assert min(late) >= 0.0, "early"
    return quantile(late, 0.99)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"{request.param}_scene")


def test_wake_up(postgres_scene: Callable[..., Scene]) -> None:
    """After a wake-up one claim."""

    async def body(bench: Bench) -> list[float]:
        took: list[float] = []
        for number in range(40):
            # idle in between, at any point of its interval
            await asyncio.sleep(random.uniform(0.05, 0.15))
            before = len(bench.claims)
            committed = await bench.post()
            await bench.until_runs(number + 1)
            took.append(bench.runs[-1][0] - committed)
            found = [bool(ids) for _, ids in bench.claims[before:]]
            assert found.index(True) <= 1, "a claim under way, and the one after the wake-up"
        return took

    check(
        "commit to handler, idle, p50",
        postgres_scene,
        lambda here: quantile(measured(here, body), 0.5),
        WAKE_UP,
    )


def test_late_commit_under_backlog(postgres_scene: Callable[..., Scene]) -> None:
    """F-A08, F-B07: a message whose transaction stayed open while later ones were claimed is in
    the next claim after its commit.
    """
    claims_until: list[int] = []

    async def body(bench: Bench) -> None:
        for _ in range(5):
            before = len(bench.runs)
            async with bench.database.connect() as late:
                waiting = await bench.insert(late)
                async with bench.database.begin() as connection:
                    rows = [(b"{}", None)] * 2_000
                    await OutboxWriter(outbox).insert_batch(connection, queue=QUEUE, rows=rows)
                await bench.until_runs(before + 300)
                await late.commit()
            committed = time.monotonic()
            await bench.until_runs(before + 2_001)
            after = [ids for sent, ids in bench.claims if sent > committed]
            place = next((n for n, ids in enumerate(after, start=1) if waiting in ids), 0)
            claims_until.append(place)

    here = postgres_scene()
    measured(here, body, fetch_batch_size=20)
    print(
        f"\nlate commit under backlog, PostgreSQL: in claim number {claims_until} after its commit"
    )
    # 0: a claim that was under way already found it
    assert max(claims_until) <= 1


def test_lost_wake_up(postgres_scene: Callable[..., Scene]) -> None:
    """F-B13, L3: without a NOTIFY at most max_fetch_interval."""

    async def body(bench: Bench) -> float:
        # until the poll interval is at its longest
        await asyncio.sleep(8.0)
        committed = await bench.post(notify=False)
        await bench.until_runs(1)
        return bench.runs[0][0] - committed

    check("without a NOTIFY", postgres_scene, lambda here: measured(here, body), 4.0)


def test_timers_are_on_time(scene: Callable[..., Scene]) -> None:
    """A timer set at least min_fetch_interval ahead."""

    async def body(bench: Bench) -> list[float]:
        async with bench.database.begin() as connection:
            for _ in range(150):
                await bench.insert(connection, delay=random.uniform(1.3, 5.0))
        await bench.until_runs(150)
        return bench.lateness()

    check("timers, p99 late", scene, lambda here: latest(measured(here, body)), ON_TIME)


def test_own_retries_are_on_time(scene: Callable[..., Scene]) -> None:
    """Every retry of the own process."""

    async def body(bench: Bench) -> list[float]:
        bench.fail_first = True
        for _ in range(100):
            await bench.post()
            await asyncio.sleep(0.01)
        await bench.until_runs(200)
        bench.runs = [run for run in bench.runs if run[1].attempts_count == 1]
        return bench.lateness()

    check("own retries, p99 late", scene, lambda here: latest(measured(here, body)), ON_TIME)


def test_rows_of_a_dead_worker(scene: Callable[..., Scene]) -> None:
    """Lease + max_fetch_interval + one walk."""

    def killed(here: Scene) -> float:
        asyncio.run(here.prepare())
        post(here, *["ok"] * 4, seconds=30.0)
        with Processes(here) as processes:
            first = processes.start("worker")
            until_written(here, 4, "start", pid=first.pid)
            second = processes.start("worker")
            until_written(here, 1, "ready", pid=second.pid)
            first.kill()
            killed = time.monotonic()
            until_written(here, 4, "start", pid=second.pid)
            return max(x["at"] for x in lines(here, "start", pid=second.pid)) - killed

    check(
        "rows of a killed worker",
        lambda: scene(lease=2.0, min_fetch=0.5, max_fetch=1.0, workers=4),
        killed,
        2.0 + 1.0,
    )


def test_second_process_on_sqlite(sqlite_scene: Callable[..., Scene]) -> None:
    """Another process sees a message within 200 ms."""

    def seen(here: Scene) -> float:
        asyncio.run(here.prepare())
        took: list[float] = []
        with Processes(here) as processes:
            worker = processes.start("worker")
            until_written(here, 1, "ready", pid=worker.pid)
            # until its poll interval is long
            time.sleep(4.0)
            for number in range(20):
                post(here, "ok", seconds=0.0)
                committed = time.monotonic()
                runs = until_written(here, number + 1, "start", pid=worker.pid)
                took.append(runs[-1]["at"] - committed)
                time.sleep(random.uniform(0.2, 0.5))
        return quantile(took, 0.99)

    check(
        "commit to handler in another process, p99",
        lambda: sqlite_scene(min_fetch=1.0, max_fetch=10.0),
        seen,
        SECOND_PROCESS,
    )


def test_terminated_backends_come_back(postgres_scene: Callable[..., Scene]) -> None:
    """F-D01: all three lines terminated at once; the next message is delivered and settled."""

    async def body(bench: Bench) -> float:
        took: list[float] = []
        for number in range(10):
            async with bench.database.begin() as connection:
                gone = await connection.exec_driver_sql(
                    "select pg_terminate_backend(pid) from pg_stat_activity where "
                    "datname = current_database() and application_name like 'outlast %%'"
                )
                # a line that has nothing to write comes back when it has
                assert len(gone.all()) >= 2
            await bench.post()
            began = time.monotonic()
            await bench.until_runs(number + 1)
            while await bench.rows():
                assert time.monotonic() - began < 30.0
                await asyncio.sleep(0.005)
            took.append(time.monotonic() - began)
        return max(took)

    check(
        "after the backends were terminated",
        postgres_scene,
        lambda here: measured(here, body),
        RECONNECTED,
    )
