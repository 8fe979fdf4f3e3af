"""The processes of a run. Only what was started here is ever signalled, by its own handle.

They are forked from a server that has imported everything already, and die with it.
"""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from tests.crash.scene import Scene, load

ROOT = Path(__file__).resolve().parents[2]

_nursery = multiprocessing.get_context("forkserver")
_nursery.set_forkserver_preload(["tests.crash.door_worker", "tests.crash.producer"])


class Started:
    """One of our processes."""

    def __init__(self, process: Any) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it lives."""
        code: int | None = self._process.exitcode
        return code

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        code = self.poll()
        assert code is not None, f"process {self.pid} did not end within {seconds} s"
        return code

    def send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def terminate(self) -> None:
        self.send(signal.SIGTERM)


def _live(module: str, told: str, log: str) -> None:
    """What a process does: its output into the log, then its role."""
    # no process outlives the test that started it
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    role = import_module(f"tests.crash.{module}").main
    asyncio.run(role(*load(told)))


class Processes:
    """Workers and producers of one scene; a context that leaves none behind."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._all: list[Started] = []
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
        for process in self._all:
            process.wait(20.0)

    def start(self, module: str, **role: Any) -> Started:
        """Run `main(scene, role)` of a module of this folder."""
        self._number += 1
        name = f"{module}-{self._number}"
        told = self.scene.save(self.scene.folder / f"{name}.json", **role)
        log = self.scene.folder / f"{name}.log"
        process = _nursery.Process(target=_live, args=(module, str(told), str(log)), name=name)
        process.start()
        started = Started(process)
        self._all.append(started)
        return started

    def check_logs(self) -> None:
        """A defect that the engine survived is still a defect."""
        for path in self.scene.folder.glob("*.log"):
            text = path.read_text()
            for word in ("unexpectedly", "never awaited", "never retrieved"):
                assert word not in text, f"{path.name}:\n{text[-3000:]}"

    def logs(self) -> str:
        """The ends of what the processes said, for a failed run."""
        ends = [
            f"--- {path.name}\n{path.read_text()[-1500:]}"
            for path in sorted(self.scene.folder.glob("*.log"))[-8:]
            if path.stat().st_size
        ]
        return "\n".join(ends)


def until(done: Any, seconds: float, what: str, pause: float = 0.02) -> float:
    """Poll until it holds; how long it took. Bounded."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(pause)
    return time.monotonic() - began
