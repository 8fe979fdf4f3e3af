"""Conservation: nothing is lost and nothing doubled while people work the desk and workers die.

In: a scene and how many snapshots. Out: a `Balance`. Workers and operators are killed at random;
each snapshot adds up where every published message is.
"""

import asyncio
import dataclasses
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from tests.crash.ledger import read
from tests.crash.places import Snapshot, lose_one, misplaced, prepare, snapshot
from tests.crash.processes import Processes, Started
from tests.crash.scene import Scene

EVERY_SECONDS = 0.1
QUIET_SECONDS = 60.0

WEIGHTS = (40, 10, 40, 10)
"""Half of what is published cannot be delivered as it is."""


@dataclass
class Balance:
    """What was seen."""

    snapshots: list[Snapshot] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    acts: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    caught: bool = False
    """Whether a letter that was made to vanish was noticed."""

    def __str__(self) -> str:
        last = self.snapshots[-1]
        acts = ", ".join(f"{name} {count}" for name, count in sorted(self.acts.items()))
        return (
            f"{len(self.snapshots)} snapshots, {len(self.wrong)} wrong; at the end {last}; "
            f"killed {dict(self.kills)}; {acts}"
        )


@dataclass(kw_only=True)
class Conservation:
    """How much of what."""

    scene: Scene
    snapshots: int
    messages: int
    pace: float = 0.03
    """Seconds between two transactions of the producer."""
    workers: int = 2
    operators: int = 2
    kill_every: tuple[float, float] = (0.5, 1.5)
    kept: float = 2.0
    """Seconds until a discarded letter is deleted: sweeps find something."""
    seed: int = 1

    def run(self) -> Balance:
        asyncio.run(prepare(self.scene))
        desk, work = (self._as(part) for part in ("operator", "worker"))
        with Processes(work) as workers, Processes(desk) as operators:
            try:
                balance = asyncio.run(_Watch(self, workers, operators).run())
            except AssertionError as error:
                raise AssertionError(f"{error}\n{workers.logs()}") from error
            workers.check_logs()
        return balance

    def _as(self, part: str) -> Scene:
        return dataclasses.replace(self.scene, part=part)


class _Watch:
    """The run, from its first process to quiet."""

    def __init__(self, told: Conservation, workers: Processes, operators: Processes) -> None:
        self._told = told
        self._workers, self._operators = workers, operators
        self._random = random.Random(told.seed)
        self._balance = Balance()
        self._ledger = told.scene.ledger()
        self._crew: dict[str, list[Started]] = {"worker": [], "operator": []}

    async def run(self) -> Balance:
        told = self._told
        engine = told.scene.engine(**self._isolation())
        producer = self._workers.start(
            "producer", name="p", messages=told.messages, pause=told.pace, weights=WEIGHTS
        )
        for _ in range(told.workers):
            self._hire("worker")
        for _ in range(told.operators):
            self._hire("operator")
        await self._look(engine, told.snapshots)
        assert producer.poll() in {None, 0}, "the producer died"
        await self._calm(engine, producer)
        await self._check(engine)
        await engine.dispose()
        return self._balance

    def _isolation(self) -> dict[str, Any]:
        if self._told.scene.is_postgres:
            return {"isolation_level": "REPEATABLE READ"}
        return {}

    def _hire(self, kind: str) -> None:
        if kind == "worker":
            started = self._workers.start("worker")
        else:
            started = self._operators.start("operator_", kept=self._told.kept)
        self._crew[kind].append(started)

    async def _look(self, engine: AsyncEngine, number: int) -> None:
        """Snapshots at their pace, and deaths between them."""
        next_kill = time.monotonic() + 1.0
        for _ in range(number):
            began = time.monotonic()
            await self._take(engine)
            if began >= next_kill:
                self._kill(self._random.choice(["worker", "operator"]))
                next_kill = began + self._random.uniform(*self._told.kill_every)
            await asyncio.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))

    async def _take(self, engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            taken = await snapshot(connection)
        self._balance.snapshots.append(taken)
        if taken.missing:
            self._balance.wrong.append(f"{taken.missing} missing: {taken}")

    def _kill(self, kind: str) -> None:
        crew = self._crew[kind]
        victim = crew.pop(self._random.randrange(len(crew)))
        assert victim.poll() is None, f"a {kind} ended by itself with {victim.poll()}"
        victim.kill()
        self._balance.kills[kind] += 1
        self._hire(kind)

    async def _calm(self, engine: AsyncEngine, producer: Started) -> None:
        """Operators leave; what is live ends."""
        for operator in self._crew["operator"]:
            operator.terminate()
        for operator in self._crew["operator"]:
            code = operator.wait(20.0)
            assert code in {0, -15}, f"an operator ended with {code}"
        until = time.monotonic() + QUIET_SECONDS
        while producer.poll() is None or self._balance.snapshots[-1].live:
            assert time.monotonic() < until, f"not quiet: {self._balance.snapshots[-1]}"
            await asyncio.sleep(EVERY_SECONDS)
            await self._take(engine)
        for worker in self._crew["worker"]:
            worker.terminate()
        for worker in self._crew["worker"]:
            worker.wait(20.0)
        await self._take(engine)

    async def _check(self, engine: AsyncEngine) -> None:
        balance = self._balance
        async with engine.connect() as connection:
            balance.wrong += await misplaced(connection)
        for line in read(self._told.scene.ledger_path):
            if line["e"] == "act":
                balance.acts[line["act"]] += 1
        async with engine.begin() as connection:
            await lose_one(connection)
        async with engine.connect() as connection:
            balance.caught = (await snapshot(connection)).missing == 1
