"""`python -m bench`: peers beside us, interleaved in one run; the exit status is the gate."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import report
from bench.cluster import private_cluster
from bench.crew import PEERS, ROOT, install_peers, versions
from bench.gates import Finding, failed
from bench.measures import (
    desk,
    draining,
    embedded,
    failing,
    footprint,
    latency,
    plans,
    publishing,
    snapshot,
)
from bench.measures.cells import Cells

_LOAD_OF_A_BUSY_MACHINE = 1.5


@dataclass(frozen=True)
class Sizes:
    """How much a run does."""

    rounds: int
    messages: int
    samples: int
    rows: int
    ahead: int
    snapshot_rounds: int
    snapshot_messages: int
    embedded_messages: int


FULL = Sizes(5, 20_000, 1_000, 1_000_000, 300_000, 1, 100_000, 20_000)
QUICK = Sizes(2, 5_000, 150, 100_000, 30_000, 1, 20_000, 5_000)


@dataclass
class Run:
    """What came out so far."""

    dsn: str
    sizes: Sizes
    findings: list[Finding] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, cells: Cells, found: list[Finding], *tables: Any) -> None:
        self.figures[name] = cells
        self.findings += found
        self.tables += tables


def _drain(run: Run) -> None:
    cells = draining.measure(run.dsn, draining.Sizes(run.sizes.rounds, run.sizes.messages))
    columns = {
        "rate": ("msg/s", 0),
        "cpu_us": ("client CPU us/msg", 1),
        "cpu_share": ("CPU of a core", 2),
        "waited_share": ("waited for a core", 2),
        "wal_bytes": ("WAL B/msg", 0),
        "rss_mb": ("RSS MB", 0),
    }
    against = [entry.name for entry in (*draining.FSO_BEST, *draining.PGQUEUER_BEST)]
    run.add(
        "drain",
        cells,
        draining.findings(cells),
        report.rounds_table("Drain (asyncio)", cells, columns, every="rate"),
        report.ratio_table("Drain, as multiples of", cells, [*against, draining.FLOOR.name]),
        report.ratio_table("Drain, as multiples of", cells, [e.name for e in draining.DEFAULTS]),
    )


def _latency(run: Run) -> None:
    cells = latency.measure(run.dsn, run.sizes.rounds, run.sizes.samples)
    columns = {"p50_ms": ("p50 ms", 2), "p99_ms": ("p99 ms", 2), "lost": ("lost", 0)}
    table = report.rounds_table(f"Latency at {latency.RATE}/s", cells, columns, every="p50_ms")
    run.add("latency", cells, latency.findings(cells), table)


def _plans(run: Run) -> None:
    found = plans.measure(run.dsn, run.sizes.rows, run.sizes.ahead)
    run.figures["plans"] = found
    run.findings += plans.findings(found)


def _publish(run: Run) -> None:
    cells = publishing.measure(run.dsn, run.sizes.rounds)
    columns = {
        "plain_us": ("text us", 0),
        "publish_us": ("publish us", 0),
        "batch_rate": ("batch msg/s", 0),
        "batch_us": ("batch us/msg", 1),
    }
    table = report.rounds_table("Publish, client CPU", cells, columns, every="publish_us")
    run.add("publish", cells, publishing.findings(cells), table)


def _snapshot(run: Run) -> None:
    sizes = run.sizes
    cells = snapshot.measure(run.dsn, sizes.snapshot_rounds, sizes.snapshot_messages)
    columns = {"last_to_first": ("last/first", 2), "last_rate": ("last chunk msg/s", 0)}
    table = report.rounds_table("Held snapshot", cells, columns, every="last_rate")
    run.add("snapshot", cells, snapshot.findings(cells), table)


def _letters(run: Run) -> None:
    cells = failing.measure(run.dsn, run.sizes.rounds)
    columns = {
        "letters_one": ("letters/s, one", 0),
        "letters_together": ("letters/s, 100", 0),
        "retries_one": ("retries/s, one", 0),
        "retries_together": ("retries/s, 100", 0),
    }
    table = report.rounds_table("Dead letters, retries", cells, columns, every="letters_together")
    run.add("letters", cells, failing.findings(cells), table)


def _sqlite(run: Run) -> None:
    cells = embedded.measure(run.sizes.rounds, run.sizes.embedded_messages)
    columns = {"engine": ("engine rows/s", 0), "stdlib": ("sqlite3 rows/s", 0)}
    table = report.rounds_table("SQLite, batch 100", cells, columns, every="engine")
    run.add("sqlite", cells, embedded.findings(cells), table)


def _memory(run: Run) -> None:
    cells = footprint.measure(run.dsn, 1, run.sizes.rows)
    columns = {"idle_mb": ("idle MB", 1), "backlog_mb": ("most on a backlog, MB", 1)}
    table = report.rounds_table("Memory", cells, columns, every="idle_mb")
    run.add("memory", cells, footprint.findings(cells, run.sizes.rows), table)


def _start(run: Run) -> None:
    found = footprint.start_up(run.sizes.rounds)
    run.figures["start"] = found
    run.findings += footprint.start_findings(found)


def _desk(run: Run) -> None:
    sizes = run.sizes
    found = desk.measure(run.dsn, sizes.rounds, sizes.rows, sizes.rows // 10)
    run.figures["desk"] = found
    run.findings += desk.findings(found)


MEASURES = {
    "drain": _drain,
    "latency": _latency,
    "plans": _plans,
    "publish": _publish,
    "letters": _letters,
    "sqlite": _sqlite,
    "memory": _memory,
    "snapshot": _snapshot,
    "start": _start,
    "desk": _desk,
}
GATES = {"A": tuple(name for name in MEASURES if name != "desk"), "B": ("start", "desk")}
"""Which measures a choice of gates runs."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--gates", choices=sorted(GATES), default="A", help="which gates")
    parser.add_argument("--only", default="", help="measures, by comma: " + ", ".join(MEASURES))
    parser.add_argument("--quick", action="store_true", help="small sizes: a look, not for quoting")
    parser.add_argument("--rounds", type=int, help="rounds of what is interleaved")
    return parser.parse_args()


def _machine(dsn_version: str) -> dict[str, Any]:
    ours = ("outlast", "faststream", "sqlalchemy", "asyncpg", "pydantic")
    theirs = ("faststream-outbox", "pgqueuer", "faststream", "sqlalchemy", "asyncpg", "pydantic")
    return {
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "postgresql": dsn_version,
        "loop": "asyncio",
        "ours": versions(sys.executable, *ours),
        "peers": versions(str(PEERS / "bin" / "python"), *theirs),
    }


def _commit() -> str:
    """What was measured; a plus for changes that are in no commit."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "src")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _server(dsn: str) -> str:
    code = (
        "import asyncio, asyncpg, sys\n"
        "async def main():\n"
        " c = await asyncpg.connect(sys.argv[1]); print(await c.fetchval('show server_version'))\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, dsn], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def main() -> int:
    """Run, show, keep, judge."""
    arguments = _arguments()
    sizes = QUICK if arguments.quick else FULL
    if arguments.rounds:
        sizes = Sizes(**{**sizes.__dict__, "rounds": arguments.rounds})
    names = [n for n in arguments.only.split(",") if n] or list(GATES[arguments.gates])
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise SystemExit(f"bench: no such measure: {', '.join(unknown)}")
    install_peers()
    began, load = time.monotonic(), os.getloadavg()
    if load[0] > _LOAD_OF_A_BUSY_MACHINE:
        print(f"bench: the machine is busy (load {load[0]:.1f}): do not quote this run")
    with private_cluster() as dsn:
        run = Run(dsn, sizes)
        for name in names:
            MEASURES[name](run)
        machine = _machine(_server(dsn))
    report.show([*run.tables, report.findings_table(run.findings)])
    short = failed(run.findings)
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began),
        "load_before": load,
        "load_after": os.getloadavg(),
        "commit": _commit(),
        "machine": machine,
        "sizes": sizes.__dict__,
        "measures": names,
        "figures": run.figures,
        "findings": [finding.as_json() for finding in run.findings],
        "holds": not short,
    }
    whole = not arguments.quick and set(names) == set(GATES[arguments.gates])
    path = report.keep(arguments.gates if whole else f"{arguments.gates}.quick", record)
    print(f"bench: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    for finding in short:
        print(f"bench: short: {finding.id} {finding.what}: {json.dumps(finding.value)}")
    return 1 if short else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
