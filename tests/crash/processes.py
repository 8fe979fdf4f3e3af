"""The processes of a run. Only what was started here is ever signalled, by its own handle."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.crash.scene import Scene

ROOT = Path(__file__).resolve().parents[2]


class Processes:
    """Workers and producers of one scene; a context that leaves none behind."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._all: list[subprocess.Popen[bytes]] = []
        self._number = 0

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self._all:
            process.wait()

    def start(self, module: str, **role: Any) -> subprocess.Popen[bytes]:
        """`python -m tests.crash.<module>` in this scene."""
        self._number += 1
        name = f"{module}-{self._number}"
        told = self.scene.save(self.scene.folder / f"{name}.json", **role)
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "OUTLAST_CRASH_MARKER": str(self.scene.folder / "marker"),
        }
        with (self.scene.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"tests.crash.{module}", str(told)],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment,
            )
        self._all.append(process)
        return process

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
