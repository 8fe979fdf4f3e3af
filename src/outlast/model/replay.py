"""What a replay needs to know, and what it answers: one letter's result, a bulk run's.

Made by the desk and its gates, shown by CLI, REST and pages in the one shape of `as_json`. The
exit code belongs to the result, so that no door can differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

Gate = Literal["replay_limit", "unchanged", "poison", "lifetime"]

BodyCheck = Literal["not_asked", "accepted", "refused", "unknown"]
"""What today's model says of the body: `unknown` when it was asked and nobody could say."""

ReplayOutcome = Literal["replayed", "would_replay", "skipped", "refused", "failed"]
"""`skipped`: somebody else took it meanwhile. `refused`: by a gate. `failed`: by the data."""

WaitedOutcome = Literal["succeeded", "failed_again", "waiting"]
"""What became of a replayed letter, as its state tells."""

DONE, FAILED, REFUSED = 0, 1, 3
"""Exit codes; 2 is for usage and environment."""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A row of the worker table, on the database's clock."""

    instance: str
    version: str | None
    queues: frozenset[str]
    """Those it claims from: none once it stops."""
    started_at: datetime
    seen_at: datetime
    stopped: bool = False
    """It said that it stops."""
    silent_for: timedelta | None = None
    """Since it was seen last."""
    report: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What else it told; nobody has looked at the values."""


@dataclass(frozen=True, slots=True)
class ReplayFacts:
    """What the gates go by beside the letter. `workers` None: there is no worker table. `queue` is
    that of this pass, which may be another than the letter's.

    `sent_revision_at` is when the revision that would be sent was made, None for the original;
    `changes_now` says that this replay itself changes body or headers.
    """

    now: datetime
    queue: str
    workers: tuple[WorkerSeen, ...] | None = None
    sent_revision_at: datetime | None = None
    changes_now: bool = False
    body: BodyCheck = "not_asked"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A gate that is shut: why, and what would open it."""

    gate: Gate
    reason: str
    remedy: str
    escalates: bool = False


@dataclass(frozen=True, slots=True)
class Denial:
    """Refused by the data: the letter is in no state for it. `state` None: not recorded."""

    state: str | None
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Admission:
    """The letter may go. `forced` are the gates that were passed by force, for the history."""

    warnings: tuple[str, ...] = ()
    forced: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class LetterReplay:
    """The result for one letter. `revision` and `diff` tell of an edit on the way: the first once
    it is written, the second where nothing is.
    """

    dlq_id: int
    outcome: ReplayOutcome
    queue: str | None = None
    row_id: int | None = None
    gate: Gate | None = None
    reason: str | None = None
    remedy: str | None = None
    warnings: tuple[str, ...] = ()
    waited: WaitedOutcome | None = None
    revision: int | None = None
    diff: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        if self.outcome == "refused":
            return REFUSED
        is_bad = self.outcome == "failed" or self.waited in {"failed_again", "waiting"}
        return FAILED if is_bad else DONE

    def as_json(self) -> dict[str, Any]:
        """Only what is known: no member is null."""
        shown: dict[str, Any] = {"dlq_id": self.dlq_id, "outcome": self.outcome}
        for name in ("queue", "row_id", "revision", "gate", "reason", "remedy", "waited"):
            value = getattr(self, name)
            if value is not None:
                shown[name] = value
        if self.diff:
            shown["diff"] = list(self.diff)
        if self.warnings:
            shown["warnings"] = list(self.warnings)
        return shown


@dataclass(frozen=True, slots=True)
class RefusedKind:
    """Letters that one gate refused, and the filter that selects them."""

    gate: Gate
    count: int
    filter: str
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {
            "gate": self.gate,
            "count": self.count,
            "filter": self.filter,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Letters that a bulk run does not take by rule: told, and no refusal."""

    kind: str
    count: int
    filter: str

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "filter": self.filter}


@dataclass(frozen=True, slots=True)
class BulkReplay:
    """The result of a replay by filter, or of several letters. `by_queue` counts what was sent."""

    replayed: int = 0
    skipped: int = 0
    failed: int = 0
    refused: tuple[RefusedKind, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    results: tuple[LetterReplay, ...] = ()
    by_queue: Mapping[str, int] = field(default_factory=dict)
    dry_run: bool = False
    more: bool = False
    cursor: str | None = None

    @property
    def exit_code(self) -> int:
        """A refusal by a gate first, then a failure; what was skipped or left out is neither."""
        if any(kind.count for kind in self.refused):
            return REFUSED
        codes = {result.exit_code for result in self.results}
        return FAILED if self.failed or FAILED in codes else DONE

    def as_json(self) -> dict[str, Any]:
        """The document of `--json` and REST."""
        shown: dict[str, Any] = {
            "replayed": self.replayed,
            "skipped": self.skipped,
            "refused": [kind.as_json() for kind in self.refused],
            "failed": self.failed,
            "results": [result.as_json() for result in self.results],
        }
        if self.left_out:
            shown["left_out"] = [kind.as_json() for kind in self.left_out]
        if self.by_queue:
            shown["by_queue"] = dict(self.by_queue)
        if self.dry_run:
            shown["dry_run"] = True
        if self.more:
            shown |= {"more": True, "cursor": self.cursor}
        return shown
