"""The audit: the ledger against what the database holds, once everything is quiet.

Each class of error is a list of sentences; a good run has none. Duplicates and faults are counted.
"""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import select

from tests.crash import ledger
from tests.crash.scene import RETRY_SECONDS, Scene, checksum, dlq, outbox, witness

UNFLUSHED_SECONDS = 1.0
"""What a server crash may undo of commits that did not wait: three times wal_writer_delay, and a
loaded machine's tardiness."""

DEAD_KINDS = {"always", "reject"}

CLASSES = (
    "lost",
    "phantom",
    "double dead",
    "dead and acked",
    "wrongly dead",
    "early",
    "overlapping leases",
    "stale settle",
    "double terminal",
    "body changed",
    "acknowledged commit lost",
    "rolled back but there",
    "left over",
)


@dataclass
class Report:
    """What the audit found."""

    committed: int = 0
    duplicates: int = 0
    dead: int = 0
    rejected_settles: int = 0
    cut_short: int = 0
    """Handlers that began and never ended: their process was killed."""
    faults: Counter[str] = field(default_factory=Counter)
    errors: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in CLASSES})

    @property
    def is_clean(self) -> bool:
        return not any(self.errors.values())

    @property
    def found(self) -> set[str]:
        return {name for name, errors in self.errors.items() if errors}

    def line(self) -> str:
        """One line for people."""
        count = {name: len(errors) for name, errors in self.errors.items()}
        others = sum(count.values()) - sum(
            count[n] for n in ("lost", "phantom", "double dead", "early")
        )
        share = 100.0 * self.duplicates / max(1, self.committed)
        return (
            f"{self.committed} committed, {self.faults.total()} faults, lost {count['lost']}, "
            f"phantom {count['phantom']}, double-dead {count['double dead']}, "
            f"early {count['early']}, other errors {others}, dup {share:.2f} % "
            f"({self.dead} dead letters, {self.cut_short} handlers cut short, "
            f"{self.rejected_settles} settles fenced)"
        )

    def __str__(self) -> str:
        lines = [self.line(), "faults: " + ", ".join(f"{k} {n}" for k, n in self.faults.items())]
        for name, errors in self.errors.items():
            if errors:
                lines.append(f"{name}: {len(errors)}")
                lines.extend(f"    {error}" for error in errors[:8])
        return "\n".join(lines)


@dataclass
class Run:
    """One handler run, from its start to its end, if it had one."""

    message: str
    row: int
    token: str
    acquired: float
    due: float
    attempts: int
    checksum: int
    at: float
    how: str | None = None


class Audit:
    """Reads once, then checks class by class."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.report = Report()
        self._runs: dict[str, list[Run]] = defaultdict(list)
        self._outcomes: dict[str, str] = {}
        self._intents: list[dict[str, Any]] = []
        self._settled: list[dict[str, Any]] = []
        self._claimed: dict[int, list[tuple[float, str]]] = defaultdict(list)
        self._crashes: list[tuple[float, float]] = []
        self._witness: dict[str, Any] = {}
        self._dead: list[tuple[str, int, int]] = []
        self._live: list[str] = []

    async def run(self) -> Report:
        self._read_ledger()
        await self._read_database()
        self._publishing()
        self._conservation()
        self._time()
        self._leases()
        self._settles()
        self.report.committed = len(self._witness)
        return self.report

    # -- reading

    def _read_ledger(self) -> None:
        runs: dict[tuple[str, int], Run] = {}
        for line in ledger.read(self._scene.ledger_path):
            what = line["e"]
            if what == "start":
                run = Run(
                    line["m"],
                    line["row"],
                    line["token"],
                    line["acquired"],
                    line["due"],
                    line["attempts"],
                    line["sum"],
                    line["at"],
                )
                runs[line["token"], line["row"]] = run
                self._runs[run.message].append(run)
            elif what == "end":
                runs[line["token"], line["row"]].how = line["how"]
            elif what == "claimed":
                for row_id, token in line["rows"]:
                    self._claimed[row_id].append((line["at"], token))
            elif what == "settled":
                self._settled.append(line)
                self.report.rejected_settles += len(line["lost"])
            elif what == "intent":
                self._intents.append(line)
            elif what == "outcome":
                self._outcomes[line["tx"]] = line["how"]
            elif what == "fault":
                self.report.faults[line["kind"]] += 1
            elif what == "server down":
                self._crashes.append((line["began"], line["at"]))

    async def _read_database(self) -> None:
        engine = self._scene.engine()
        async with engine.connect() as connection:
            for row in await connection.execute(select(witness)):
                self._witness[row.message] = row
            for row in await connection.execute(select(dlq.c.payload, dlq.c.original_id)):
                self._dead.append((_name(row.payload), row.original_id, checksum(row.payload)))
            self._live = [
                _name(p) for p in (await connection.execute(select(outbox.c.payload))).scalars()
            ]
        await engine.dispose()

    # -- checks

    def _add(self, name: str, text: str) -> None:
        self.report.errors[name].append(text)

    def _publishing(self) -> None:
        for intent in self._intents:
            outcome = self._outcomes.get(intent["tx"], "unknown")
            for message in intent["messages"]:
                there = message in self._witness
                if outcome == "committed" and not there:
                    self._add("acknowledged commit lost", message)
                if outcome == "rolled back" and there:
                    self._add("rolled back but there", message)
            for message in intent["undone"]:
                if message in self._witness:
                    self._add("rolled back but there", f"{message} (savepoint)")

    def _conservation(self) -> None:
        dead = Counter(name for name, _, _ in self._dead)
        self.report.dead = len(self._dead)
        runs = [run for each in self._runs.values() for run in each]
        self.report.cut_short = sum(run.how is None for run in runs)
        live = set(self._live)
        for message in self._live:
            self._add("left over", message)
        for message in {*self._runs, *dead, *live} - set(self._witness):
            self._add("phantom", f"{message}: delivered, dead or live, and never committed")
        for message, row in self._witness.items():
            done = sum(run.how == "ok" for run in self._runs[message])
            self.report.duplicates += max(0, done - 1)
            if not done and not dead[message] and message not in live:
                self._add("lost", f"{message} ({row.kind}): {_story(self._runs[message])}")
            if dead[message] > 1:
                self._add("double dead", f"{message}: {dead[message]} letters")
            if dead[message] and done:
                self._add("dead and acked", message)
            if dead[message] and row.kind not in DEAD_KINDS:
                self._add("wrongly dead", f"{message} ({row.kind})")
            sums = [run.checksum for run in self._runs[message]]
            if any(found != row.checksum for found in sums):
                self._add("body changed", message)
        for message, _, found in self._dead:
            if message in self._witness and found != self._witness[message].checksum:
                self._add("body changed", f"{message} (dead letter)")
        for original, count in Counter(original for _, original, _ in self._dead).items():
            if count > 1:
                self._add("double dead", f"row {original}: {count} letters")

    def _time(self) -> None:
        """By the database's clock alone."""
        for message, runs in self._runs.items():
            row = self._witness.get(message)
            for run in runs:
                if run.acquired < run.due:
                    self._add("early", f"{message}: claimed {run.due - run.acquired:.3f} s early")
                if row is not None and run.acquired < _instant(row.at) + row.delay - 0.001:
                    self._add("early", f"{message}: before its delay of {row.delay:.3f} s was over")
            for before, after in pairwise(sorted(runs, key=lambda run: run.acquired)):
                soonest = before.acquired + RETRY_SECONDS
                if after.attempts > before.attempts and after.acquired < soonest:
                    self._add("early", f"{message}: retried before its delay was over")

    def _leases(self) -> None:
        """A lease that nobody gave back lasts its TTL."""
        for message, runs in self._runs.items():
            for before, after in pairwise(sorted(runs, key=lambda run: run.acquired)):
                if before.how in {"fail", "cancelled"} or before.token == after.token:
                    continue
                rest = before.acquired + self._scene.lease - after.acquired
                if rest > 0.001 and not self._crashed_between(before.at, after.at):
                    self._add("overlapping leases", f"{message}: {rest:.3f} s too soon")

    def _settles(self) -> None:
        """Only the newest lease settles, and it settles once."""
        ended: Counter[int] = Counter()
        for line in self._settled:
            for row_id, token in line["rows"]:
                if line["what"] in {"ack", "bury"}:
                    durable = line["what"] == "bury" or not self._crashed_between(
                        line["at"], line["at"]
                    )
                    ended[row_id] += durable
                for at, other in self._claimed[row_id]:
                    later = at < line["sent"] and other != token
                    mine = [when for when, own in self._claimed[row_id] if own == token]
                    if (
                        later
                        and mine
                        and max(mine) < at
                        and not self._crashed_between(max(mine), line["at"])
                    ):
                        self._add(
                            "stale settle", f"row {row_id}: {line['what']} under an old token"
                        )
        for row_id, count in ended.items():
            if count > 1:
                self._add("double terminal", f"row {row_id}: left the queue {count} times")

    def _crashed_between(self, start: float, end: float) -> bool:
        return any(start <= up and end >= down - UNFLUSHED_SECONDS for down, up in self._crashes)


def _name(payload: bytes) -> str:
    return str(json.loads(payload)["m"])


def _instant(at: datetime) -> float:
    return at.timestamp()


def _story(runs: list[Run]) -> str:
    return ", ".join(f"{run.how or 'no end'} (attempt {run.attempts})" for run in runs) or "no run"
