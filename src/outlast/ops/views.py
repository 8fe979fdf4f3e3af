"""Letters as every door shows them: the one shape of `--json` and REST.

In: letters, masked already. Out: documents. Control characters are the doors' business: a terminal
needs another spelling than a page.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.model.letter_view import LetterView
from outlast.model.query import Condition, Query, Word
from outlast.model.replay import WorkerSeen
from outlast.ops.redaction import ShownPayload
from outlast.policy.edit_rules import etag_of
from outlast.policy.filter_text import render
from outlast.policy.gates import LIVE_SECONDS
from outlast.stores.desk.conditions import NOT_RECORDED
from outlast.stores.desk.numbers import Group, Stats
from outlast.stores.desk.reading import Causes, HistoryEntry
from outlast.stores.desk.windows import Looked

_PLAIN = (
    *("queue", "dlq_stream", "failure_reason", "failure", "failure_category", "error_type"),
    *("error_message", "message_id", "event_type", "subscriber", "consumer_instance"),
    *("consumer_version", "fingerprint", "owner", "triage", "http_status", "state", "resolution"),
    *("retry_count", "replay_count", "total_deliveries", "deliveries_count", "revision"),
    *("replayed_as", "workers_died", "timer_id"),
)


def letter_json(letter: LetterView) -> dict[str, Any]:
    """One letter of a list. `failed_at` is the last failure; null is "not recorded"."""
    keymate = letter.keymate
    return {
        "dlq_id": letter.id,
        "original_id": letter.original_id,
        "stream": letter.queue,
        "consumer_group": letter.subscriber,
        **{name: getattr(letter, name) for name in _PLAIN},
        "created_at": iso(letter.created_at),
        "dead_since": iso(letter.failed_at),
        "failed_at": iso(letter.latest_failure_at),
        "first_failure_at": iso(letter.first_failure_at),
        "last_failure_at": iso(letter.last_failure_at),
        "state_changed_at": iso(letter.state_changed_at),
        "purge_after": iso(letter.purge_after),
        "status": keymate.status,
        "processed_at": iso(keymate.processed_at) if keymate.status == "PROCESSED" else None,
    }


def iso(instant: datetime | None) -> str | None:
    """An instant of a document."""
    return None if instant is None else instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


@dataclass(frozen=True, slots=True)
class LetterPage:
    """`total` is exact unless `at_least`; `cursor` goes on after the last letter, if there is more.

    `looked_at` of `looked_of`: what was looked at, if not all; None: more than is counted.
    """

    letters: tuple[LetterView, ...]
    total: int
    at_least: bool
    more: bool
    cursor: str | None
    causes: Causes | None = None
    looked_at: int | None = None
    looked_of: int | None = None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The document of a list."""
        shown: dict[str, Any] = {
            "items": [letter_json(letter) for letter in self.letters],
            "total": self.total,
            "total_is": "at least" if self.at_least else "exact",
            "more": self.more,
        }
        if self.cursor is not None:
            shown["cursor"] = self.cursor
        if self.causes is not None:
            shown["causes"] = self.causes._asdict()
        if self.looked_at is not None:
            shown["looked_at"], shown["looked_of"] = self.looked_at, self.looked_of
        if self.notes:
            shown["notes"] = list(self.notes)
        return shown


@dataclass(frozen=True, slots=True)
class RevisionShown:
    """A revision, its body masked like the letter's."""

    revision: int
    at: datetime
    actor: str | None
    transform: str | None
    digest: str | None
    reason: str | None
    headers: Any
    payload: ShownPayload

    def as_json(self) -> dict[str, Any]:
        """One revision of a document."""
        names = ("revision", "actor", "transform", "digest", "reason", "headers")
        shown = {name: getattr(self, name) for name in names}
        return shown | {"at": iso(self.at), "payload": self.payload.as_json()}


@dataclass(frozen=True, slots=True)
class LetterDetail:
    """Everything about one letter. `history` and `revisions` None: not recorded.

    `body` holds what is stored, only when it was revealed. `outcome_unknown`: the
    row of its replay is gone and nobody said how it ended.
    """

    letter: LetterView
    payload: ShownPayload
    headers_masked: bool
    history: tuple[HistoryEntry, ...] | None
    revisions: tuple[RevisionShown, ...] | None
    revealed: bool
    outcome_unknown: bool = False
    body: bytes | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def etag(self) -> str:
        """What an edit names as the letter it saw; it changes with revision, state and failure."""
        return etag_of(self.letter)

    @property
    def masked(self) -> bool:
        """Whether anything of payload or headers is hidden."""
        return self.payload.masked or self.headers_masked

    @property
    def next_step(self) -> str | None:
        """What an operator would do now."""
        number = self.letter.id
        steps = {
            None: "to add the columns a replay needs: outlast db print",
            "open": f"to replay: outlast dlq replay {number}",
            "needs_review": f"to replay: outlast dlq replay {number}",
            "escalated": f"to open it again: outlast dlq mark {number} --open",
            "replaying": f"to take it back: outlast outbox cancel {self.letter.replayed_as}",
            "resolved": f"to open it again: outlast dlq mark {number} --open",
            "discarded": f"to bring it back: outlast dlq restore {number}",
        }
        return steps.get(self.letter.state)

    def as_json(self) -> dict[str, Any]:
        """The document of one letter."""
        letter = self.letter
        return {
            **letter_json(letter),
            "last_exception": letter.last_exception,
            "stack_trace": letter.stack_trace,
            "headers": letter.headers,
            "payload": self.payload.as_json(),
            "masked": self.masked,
            "revealed": self.revealed,
            "bouncing_for_seconds": _seconds(letter.bouncing_for),
            "time_to_terminal_failure_seconds": _seconds(letter.time_to_terminal_failure),
            "outcome_unknown": self.outcome_unknown,
            "etag": self.etag,
            "history": None if self.history is None else [history_json(e) for e in self.history],
            "revisions": None if self.revisions is None else [r.as_json() for r in self.revisions],
            "next_step": self.next_step,
            "notes": list(self.notes),
        }


def history_json(entry: HistoryEntry) -> dict[str, Any]:
    """One act of a document."""
    names = ("id", "dlq_id", "actor", "kind", "reason", "request_id", "detail")
    return {name: getattr(entry, name) for name in names} | {"at": iso(entry.at)}


_REPORTED = (*("lease", "max_workers", "retry_horizon", "p50", "p99"),)


def worker_json(worker: WorkerSeen) -> dict[str, Any]:
    """One worker of a document. Spans are seconds; null is "not told"."""
    silent = _seconds(worker.silent_for)
    told = {name: worker.report.get(name) for name in _REPORTED}
    return {
        "instance": worker.instance,
        "version": worker.version,
        "queues": sorted(worker.queues),
        "started_at": iso(worker.started_at),
        "seen_at": iso(worker.seen_at),
        "silent_for_seconds": silent,
        "live": not worker.stopped and silent is not None and silent <= LIVE_SECONDS,
        "stopped": worker.stopped,
        **{n: v if isinstance(v, int | float) else None for n, v in told.items()},
    }


@dataclass(frozen=True, slots=True)
class GroupPage:
    """The largest groups first. `looked`: not every letter was looked at."""

    groups: tuple[Group, ...]
    total: int
    looked: Looked | None = None

    @property
    def more(self) -> bool:
        """Whether there are groups that are not shown."""
        return self.total > len(self.groups)

    def as_json(self) -> dict[str, Any]:
        """The document of `dlq groups`."""
        shown = {
            "items": [_group_json(group) for group in self.groups],
            "total": self.total,
            "total_is": "exact" if self.looked is None else "at least",
            "more": self.more,
        }
        return shown | _looked_json(self.looked)


def looked_note(looked_at: int, looked_of: int | None) -> str:
    """What a bounded look says of itself."""
    whole = f"of {looked_of:,}" if looked_of is not None else "of many more"
    return f"looked at the newest {looked_at:,} {whole}"


def _looked_json(looked: Looked | None) -> dict[str, Any]:
    if looked is None:
        return {}
    note = looked_note(*looked)
    return {"looked_at": looked.at, "looked_of": looked.of, "notes": [note]}


def _group_json(group: Group) -> dict[str, Any]:
    names = (
        *("fingerprint", "count", "failure_category", "error_type", "example", "example_id"),
        *("queues", "subscribers", "versions"),
    )
    shown = {name: getattr(group, name) for name in names}
    return shown | {
        "first_seen": iso(group.first_seen),
        "last_seen": iso(group.last_seen),
        "filter": render(Query((_of_group(group),))),
        "why": "the same subscriber, exception types and first application frame"
        if group.fingerprint
        else "no fingerprint is recorded",
    }


def _of_group(group: Group) -> Word:
    return Word("group", (Condition("=", group.fingerprint or NOT_RECORDED),))


def stats_json(stats: Stats) -> dict[str, Any]:
    """The document of `dlq stats`, and what metrics are made of."""

    def age(since: datetime | None) -> float | None:
        return None if since is None else max(0.0, (stats.now - since).total_seconds())

    return {
        "now": iso(stats.now),
        "depth": stats.depth,
        "oldest_at": iso(stats.oldest_at),
        "oldest_age_seconds": age(stats.oldest_at),
        "queues": [
            {
                "queue": queue.queue,
                "failure_category": queue.category,
                "depth": queue.depth,
                "oldest_age_seconds": age(queue.oldest_at),
                "arrivals_hour": queue.arrivals_hour,
                "arrivals_day": queue.arrivals_day,
            }
            for queue in stats.queues
        ],
        "states": stats.states,
        "causes": [{"fingerprint": name, "count": count} for name, count in stats.causes],
        **_looked_json(stats.looked),
    }
