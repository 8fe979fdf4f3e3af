"""Torture: producers, workers and a nemesis, then quiet, then the audit.

In: a scene and how much of what. Out: a `Report`. Bounded in faults and in time; a run that does
not come to rest is an error with the workers' last words.
"""

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from sqlalchemy import func, select

from tests.crash.audit import Audit, Report
from tests.crash.hooks import LINES, STAGES
from tests.crash.ledger import Ledger, read
from tests.crash.processes import Processes, Started
from tests.crash.scene import Scene, outbox


@dataclass(kw_only=True)
class Torture:
    """How much of what."""

    scene: Scene
    messages: int
    workers: int = 4
    producers: int = 2
    stages: Sequence[str] = ()
    """Traps for workers, one for each new worker process, in this order, then none."""
    strikes: int = 1
    """Strikes of a trap that terminates backends; SIGKILL strikes once."""
    nemesis: Sequence[str] = ()
    """Faults from outside, in this order, one each `pause` seconds."""
    pause: tuple[float, float] = (0.3, 1.0)
    pace: float = 0.0
    """Seconds between two transactions of a producer."""
    worker: str = "worker"
    """The module of the worker: on the engine, or on the FastStream door."""
    mutant: str | None = None
    producer_mutant: str | None = None
    handler_seconds: float | None = None
    """How long every handler takes; None: mostly no time at all."""
    restart_server: Callable[[], None] | None = None
    seconds_max: float = 60.0
    seed: int = 1
    _random: random.Random = field(init=False)

    def run(self) -> Report:
        self._random = random.Random(self.seed)
        asyncio.run(self.scene.prepare())
        began = time.monotonic()
        ledger = self.scene.ledger()
        with Processes(self.scene) as processes:
            try:
                crew = _Crew(self, processes)
                crew.run(began + self.seconds_max, ledger)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{processes.logs()}") from error
            processes.check_logs()
        ledger.close()
        return asyncio.run(Audit(self.scene).run())


class _Crew:
    """The processes of a torture while it runs."""

    def __init__(self, torture: Torture, processes: Processes) -> None:
        self._torture = torture
        self._processes = processes
        self._random = torture._random
        self._traps = iter(torture.stages)
        self._workers: list[Started] = []
        self._producers: dict[str, tuple[Started, int]] = {}
        self._stopped: list[tuple[float, Started]] = []
        self._count_at = 0.0
        self._asked_to_stop: list[Started] = []

    def run(self, deadline: float, ledger: Ledger) -> None:
        torture = self._torture
        self._ledger = ledger
        for number in range(torture.producers):
            self._produce(f"p{number}", torture.messages // torture.producers)
        for _ in range(torture.workers):
            self._hire()
        next_fault = float("inf")
        faults = iter(torture.nemesis)
        left = True
        while left or not self._at_rest():
            assert time.monotonic() < deadline, (
                f"not at rest after {torture.seconds_max} s; {self._count()} rows left"
            )
            self._replace_the_dead()
            self._wake_the_stopped()
            if next_fault == float("inf") and self._all_began():
                next_fault = time.monotonic()
            if left and time.monotonic() >= next_fault:
                fault = next(faults, None)
                left = fault is not None
                if fault is not None:
                    self._strike(fault)
                next_fault = time.monotonic() + self._random.uniform(*torture.pause)
            time.sleep(0.05)
        self._dismiss()

    # -- processes

    def _produce(self, name: str, messages: int) -> None:
        process = self._processes.start(
            "producer",
            name=name,
            messages=messages,
            pause=self._torture.pace,
            mutant=self._torture.producer_mutant,
            handler_seconds=self._torture.handler_seconds,
        )
        self._producers[name] = (process, messages)

    def _hire(self) -> None:
        role: dict[str, Any] = {"mutant": self._torture.mutant}
        stage = next(self._traps, None)
        if stage is not None:
            role["stage"] = stage
            if stage == "listen":
                # the first is the start's; the next ones follow a lost connection
                role["at"] = [2, 3]
            elif stage in LINES:
                role["at"] = self._random.sample(range(2, 12), self._torture.strikes)
            else:
                role["at"] = [self._random.randint(1, 12 if stage.startswith("h") else 6)]
        self._workers.append(self._processes.start(self._torture.worker, **role))

    def _replace_the_dead(self) -> None:
        for worker in list(self._workers):
            if (code := worker.poll()) is not None:
                asked = worker in self._asked_to_stop
                # SIGTERM ends one that has not begun yet; one that drains may be killed, too
                expected = {-signal.SIGKILL, *([0, -signal.SIGTERM] if asked else [])}
                assert code in expected, f"a worker ended with {code}"
                self._workers.remove(worker)
                self._hire()
        for name, (producer, messages) in list(self._producers.items()):
            code = producer.poll()
            if code == -signal.SIGKILL:
                # the next incarnation has a name of its own: ids are never used twice
                del self._producers[name]
                left = messages - self._committed_by(name)
                self._produce(f"{name}+", max(1, left))
            else:
                assert code in {None, 0}, f"producer {name} ended with {code}"

    def _wake_the_stopped(self) -> None:
        for at, worker in list(self._stopped):
            if time.monotonic() >= at:
                worker.send(signal.SIGCONT)
                self._stopped.remove((at, worker))

    def _committed_by(self, name: str) -> int:
        lines = read(self._torture.scene.ledger_path)
        return sum(x.get("count", 0) for x in lines if x.get("tx", "").startswith(f"{name}/"))

    def _all_began(self) -> bool:
        """A fault that finds nobody at work is none."""
        lines = read(self._torture.scene.ledger_path)
        at_work = {line["pid"] for line in lines if line["e"] == "start"}
        return len(at_work) >= self._torture.workers

    def _at_rest(self) -> bool:
        if any(p.poll() is None for p, _ in self._producers.values()) or self._stopped:
            return False
        if time.monotonic() < self._count_at:
            return False
        self._count_at = time.monotonic() + 0.2
        return self._count() == 0

    def _count(self) -> int:
        async def count() -> int:
            engine = self._torture.scene.engine()
            async with engine.connect() as connection:
                found = await connection.execute(select(func.count()).select_from(outbox))
            await engine.dispose()
            return int(found.scalar_one())

        return asyncio.run(count())

    def _dismiss(self) -> None:
        """What is still in hand is settled or given back; a stop that hangs is an error."""
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        for worker in self._workers:
            code = worker.wait(self._torture.scene.grace + 10.0)
            # a trap may still strike while it drains
            assert code in {0, -signal.SIGKILL, -signal.SIGTERM}, f"a worker stopped with {code}"

    # -- faults

    def _strike(self, fault: str) -> None:
        self._ledger.write("fault", kind=fault)
        if fault == "kill worker":
            # a stopped one, too: a zombie that never wakes
            self._random.choice(self._workers).kill()
        elif fault == "term worker":
            worker = self._random.choice(self._workers)
            worker.send(signal.SIGTERM)
            self._asked_to_stop.append(worker)
        elif fault == "kill producer":
            alive = [p for p, _ in self._producers.values() if p.poll() is None]
            if alive:
                self._random.choice(alive).kill()
        elif fault == "stop worker":
            awake = [w for w in self._workers if all(w is not s for _, s in self._stopped)]
            worker = self._random.choice(awake)
            worker.send(signal.SIGSTOP)
            self._stopped.append((time.monotonic() + 2 * self._torture.scene.lease, worker))
        elif fault == "crash server":
            assert self._torture.restart_server is not None
            began = time.monotonic()
            self._torture.restart_server()
            self._ledger.write("server down", began=began)
        else:
            _, _, line = fault.partition(" ")
            terminate_backends(self._torture.scene.dsn, line)


def terminate_backends(dsn: str, line: str) -> int:
    """Every backend of this kind in this database, which is the scene's own."""

    async def terminate() -> int:
        connection = await asyncpg.connect(dsn, timeout=5)
        try:
            return len(
                await connection.fetch(
                    "select pg_terminate_backend(pid) from pg_stat_activity where "
                    "datname = current_database() and application_name = $1",
                    f"outlast {line}",
                )
            )
        finally:
            await connection.close()

    return asyncio.run(terminate())


def interleaved(*kinds: str, count: int) -> list[str]:
    """So many faults, the kinds in turn."""
    return list(itertools.islice(itertools.cycle(kinds), count))


def every_stage(rounds: int = 1, *, backends: bool = False) -> list[str]:
    """A trap at each stage, so many times."""
    return [*STAGES, *(LINES if backends else ())] * rounds
