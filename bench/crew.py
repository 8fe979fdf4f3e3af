"""Starting contenders: one process for one cell, each with its own interpreter."""

import json
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.contenders import Entry

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(__file__).resolve().parent / ".venv"
PACKAGES = ("faststream-outbox==0.19.*", "pgqueuer", "asyncpg", "uvloop", "psutil")
_STAMP = PEERS / ".installed"


class ContenderError(Exception):
    """A contender's process ended without an answer."""


def install_peers() -> None:
    """Make `bench/.venv` with the peers in it, once."""
    if _STAMP.exists() and _STAMP.read_text() == "\n".join(PACKAGES):
        return
    print("bench: installing the peers into bench/.venv (once)")
    if not (PEERS / "bin" / "python").exists():
        venv.create(PEERS, with_pip=True)
    # the same framework under both, or the ratio would compare FastStream's releases
    framework = f"faststream=={metadata.version('faststream')}"
    subprocess.run(
        [
            PEERS / "bin" / "python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "install",
            *PACKAGES,
            framework,
        ],
        check=True,
    )
    _STAMP.write_text("\n".join(PACKAGES))


def interpreter(entry: Entry | None) -> str:
    """The Python a contender runs in."""
    if entry is not None and entry.interpreter == "peers":
        return str(PEERS / "bin" / "python")
    return sys.executable


def versions(python: str, *names: str) -> dict[str, str]:
    """The releases installed beside an interpreter."""
    code = (
        "import json, sys, importlib.metadata as m\n"
        "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *names], capture_output=True, check=True, text=True)
    return dict(json.loads(done.stdout))


def _python_path() -> list[str]:
    given = os.environ.get("PYTHONPATH")
    return [str(ROOT), *([given] if given else [])]


class Child:
    """One running contender."""

    def __init__(self, request: dict[str, Any], entry: Entry | None = None) -> None:
        if entry is not None:
            request = {"home": entry.home, "settings": entry.settings, **request}
        self.name = entry.name if entry is not None else request["call"]
        self._process = subprocess.Popen(
            [interpreter(entry), "-m", "bench.child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())},
        )
        self.say(json.dumps(request))

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next line of the child."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise ContenderError(f"{self.name}: {errors.strip()[-2000:]}")
        return dict(json.loads(line))

    def end(self) -> None:
        """Wait for it; end it if it does not."""
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def ask(request: dict[str, Any], entry: Entry | None = None) -> dict[str, Any]:
    """One request, one answer, one process."""
    child = Child(request, entry)
    try:
        return child.answer()
    finally:
        child.end()
