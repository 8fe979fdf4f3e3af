"""Memory of a worker, idle and on a deep backlog; and how long the command takes to start."""

import subprocess
import sys
import tempfile
import time
from typing import Any

from bench.contenders import FSO_DEFAULT, OURS_DEFAULT, Entry
from bench.crew import ask
from bench.gates import Finding
from bench.measures.cells import Cells, interleaved, median

LIST = "outlast dlq list"
_HEAVY = ("asyncpg", "aiosqlite", "sqlalchemy", "faststream", "pydantic", "typer")


def measure(dsn: str, rounds: int, rows: int) -> Cells:
    """Resident memory of ours and of the peer, each a fresh process."""
    request = {"do": "footprint", "dsn": dsn, "messages": rows, "handled": min(20_000, rows)}

    def run(entry: Entry) -> dict[str, Any]:
        return ask(request | ({"handled": 2_000} if entry.slow else {}), entry)

    return interleaved("memory", (OURS_DEFAULT, FSO_DEFAULT), rounds, run)


def start_up(rounds: int) -> dict[str, Any]:
    """Seconds of short commands and of an empty interpreter; what `import outlast` loads."""
    ours = [sys.executable, "-m", "outlast"]
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        dsn = f"--dsn={folder}/start.db"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([*ours, "db", "create", dsn], check=True, **quiet)
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "outlast version": [*ours, "version"],
            LIST: [*ours, "dlq", "list", dsn],
        }
        # the first time of each writes compiled files
        for _ in range(rounds + 1):
            for name, command in commands.items():
                began = time.monotonic()
                subprocess.run(command, check=True, **quiet)
                taken.setdefault(name, []).append(time.monotonic() - began)
    code = f"import sys, outlast; print(*[n for n in {_HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return {
        "seconds": {name: median(seconds[1:]) for name, seconds in taken.items()},
        "import_loads": done.stdout.split(),
    }


def start_findings(start: dict[str, Any]) -> list[Finding]:
    """Reported: seconds are this machine's."""
    seconds = start["seconds"]
    return [
        Finding(
            "M",
            "start of `outlast version` / of an empty interpreter",
            seconds["outlast version"] / seconds["python -c pass"],
            gates=False,
            note=f"{seconds['outlast version'] * 1e3:.0f} ms; `import outlast` loads "
            + (", ".join(start["import_loads"]) or "no driver and no framework"),
        ),
        Finding("M", f"`{LIST}`, whole, ms", seconds[LIST] * 1e3, "<=", 400.0, gates=False),
    ]


def findings(cells: Cells, rows: int) -> list[Finding]:
    """Reported."""
    done = [cell for cell in cells[OURS_DEFAULT.name] if cell is not None]
    idle = median([cell["idle_mb"] for cell in done]) if done else None
    more = median([cell["backlog_mb"] - cell["idle_mb"] for cell in done]) if done else None
    return [
        Finding("M", "memory of an idle worker, MB", idle, "<=", 90.0, gates=False),
        Finding("M", f"more of it with {rows:,} rows ready, MB", more, "<=", 40.0, gates=False),
    ]
