"""How a replay ends: the row is settled and its letter moved in one statement (one CTE).

In: passes. Out: answers. The letter moves only if the statement's outbox part matched its token and
letter, row and state still belong together; otherwise the row is an ordinary one. Lock order: row,
then letter. SKIP LOCKED passes over rows only: a locked letter is waited for.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from outlast.model.dead_letter import COUNT_MAX
from outlast.model.delivery import Answer, Pair
from outlast.model.replay_pass import KEPT_SECONDS, Delivered, Failed, Retried
from outlast.stores.postgres.settles import settle
from outlast.stores.postgres.statements import (
    ANSWER,
    LETTER_PARAMETERS,
    LOCKED,
    Statements,
    known,
    lock_rows,
    owned,
    skipping_answer,
    token_of,
)
from outlast.stores.postgres.wire import Wire

_FAILURE = (
    ("last_exception", "text", "last_exception"),
    ("fingerprint", "text", "fingerprint"),
    ("failure_category", "text", "category"),
    ("error_type", "text", "error_type"),
    ("error_message", "text", "error_message"),
    ("stack_trace", "text", "stack_trace"),
    ("http_status", "int", "http_status"),
)
_ENTRY = (
    ("letter", "bigint", "letter_id"),
    ("delay", "float8", "delay_seconds"),
    ("n", "int", "attempt.count"),
    ("first_at", "timestamptz", "attempt.first_at"),
    ("last_at", "timestamptz", "attempt.last_at"),
    *((name, kind, f"failure.{path}") for name, kind, path in _FAILURE),
)
_DELIVERED = (("letter", "bigint", "letter_id"), ("actor", "text", "actor"))
_FAILED = (
    ("letter", "bigint", "letter_id"),
    *((name, kind, f"letter.{path}") for name, kind, path in LETTER_PARAMETERS),
)
_KEPT = {"message_id", "event_type", "first_failure_at"}
"""What a letter keeps of its first failure."""
_TOTAL = (
    f"total_deliveries = least(coalesce(q.total_deliveries, 0) + d.deliveries_count, {COUNT_MAX})"
)

_Columns = Sequence[tuple[str, str, str]]


def _given(columns: _Columns) -> str:
    arrays = ", ".join(f"${n}::{kind}[]" for n, (_, kind, _) in enumerate(columns, start=3))
    names = ", ".join(name for name, _, _ in columns)
    return f"unnest($1::bigint[], $2::uuid[], {arrays}) a(id, tok, {names})"


class ReplayStatements:
    """The statements of one outbox, its dead letters and, if there is one, their history."""

    def __init__(self, base: Statements, dlq: str, history: str | None) -> None:
        self._t, self._dlq, self._history = base.table, dlq, history
        self.resolve = self._both(f"delete from {self._t} t", "", self._resolve())
        self.refresh = self._both(self._reschedule(), f" from {_given(_ENTRY)}", self._refresh())
        self.reopen = self._both(f"delete from {self._t} t", "", self._reopen(base.letter_insert))

    def _both(self, write: str, source: str, rest: str) -> tuple[str, str]:
        """The statement, and the form that passes over locked rows."""
        row = (
            "returning t.id, t.queue, t.payload, t.headers, t.deliveries_count, t.created_at, "
            "t.timer_id"
        )
        if source:
            same = f" and t.id = a.id and {token_of('t')} = a.tok"
            row = f"{row}, a.tok"
        else:
            same, row = "", f"{row}, t.acquired_token tok"
        plain = f"with d as ({write}{source} where {owned('t')}{same} {row})"
        skipping = f"{lock_rows(self._t)}, d as ({write}{source} where {LOCKED}{same} {row})"
        return f"{plain}, {rest} {ANSWER}", f"{skipping}, {rest} {skipping_answer(self._t)}"

    def _linked(self, columns: _Columns) -> str:
        return (
            f"from d join {_given(columns)} on a.id = d.id and a.tok = d.tok "
            "where q.id = a.letter and q.id = any($3::bigint[]) and q.replayed_as = d.id "
            "and q.state = 'replaying'"
        )

    def _told(self, actor: str, kind: str) -> str:
        if self._history is None:
            return ""
        return (
            f", h as (insert into {self._history} (dlq_id, actor, kind, detail) "
            f"select u.id, {actor}, '{kind}', jsonb_build_object('row', u.row_id) from u)"
        )

    def _resolve(self) -> str:
        return (
            f"u as (update {self._dlq} q set state = 'resolved', resolution = 'delivered', "
            "state_changed_at = now(), replayed_as = null, "
            f"purge_after = now() + make_interval(secs => {KEPT_SECONDS}), "
            f"{_TOTAL} {self._linked(_DELIVERED)} returning q.id, d.id row_id, a.actor)"
            f"{self._told('u.actor', 'resolved')}"
        )

    def _reschedule(self) -> str:
        return (
            f"update {self._t} t set acquired_token = null, acquired_at = null, "
            "next_attempt_at = now() + make_interval(secs => a.delay), attempts_count = a.n, "
            "first_attempt_at = a.first_at, last_attempt_at = a.last_at"
        )

    def _refresh(self) -> str:
        failure = ", ".join(f"{name} = a.{name}" for name, _, _ in _FAILURE)
        return (
            f"u as (update {self._dlq} q set {failure}, last_failure_at = a.last_at, "
            "attempts_count = a.n, deliveries_count = d.deliveries_count "
            f"{self._linked(_ENTRY)} returning q.id)"
        )

    def _reopen(self, insert: str) -> str:
        columns = [name for name, _, _ in LETTER_PARAMETERS if name not in _KEPT]
        failure = ", ".join(f"{name} = {known(name)}" for name in columns)
        return (
            f"u as (update {self._dlq} q set {failure}, state = 'open', state_changed_at = now(), "
            "replayed_as = null, resolution = null, purge_after = null, "
            f"deliveries_count = d.deliveries_count, {_TOTAL} "
            f"{self._linked(_FAILED)} returning q.id, d.id row_id, a.consumer_instance actor), "
            f"i as ({insert} from d join {_given(_FAILED)} on a.id = d.id and a.tok = d.tok "
            "where not exists (select from u where u.row_id = d.id))"
            f"{self._told('u.actor', 'replay_failed')}"
        )


async def _end(
    wire: Wire,
    sql: tuple[str, str],
    columns: _Columns,
    passes: Sequence[Any],
    timeout: float,
    *,
    skip: bool,
) -> Answer:
    group: list[Pair] = [(ended.id, ended.token) for ended in passes]
    values = [[attrgetter(path)(ended) for ended in passes] for _, _, path in columns]
    return await settle(wire, sql[skip], group, values, timeout, skip=skip)


async def resolve(
    wire: Wire, sql: ReplayStatements, passes: Sequence[Delivered], timeout: float, *, skip: bool
) -> Answer:
    """Acknowledged replays."""
    return await _end(wire, sql.resolve, _DELIVERED, passes, timeout, skip=skip)


async def refresh(
    wire: Wire, sql: ReplayStatements, passes: Sequence[Retried], timeout: float, *, skip: bool
) -> Answer:
    """Replays that are tried again."""
    return await _end(wire, sql.refresh, _ENTRY, passes, timeout, skip=skip)


async def reopen(
    wire: Wire, sql: ReplayStatements, passes: Sequence[Failed], timeout: float, *, skip: bool
) -> Answer:
    """Replays that failed for good."""
    return await _end(wire, sql.reopen, _FAILED, passes, timeout, skip=skip)
