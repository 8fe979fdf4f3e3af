"""What a letter's state, place among the living, and notes may become, besides a replay.

In: locked letters and a verb. Out: one result each. Which state leads where is decided by
`policy.letter_states` alone; erasing leaves no byte of a payload behind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import delete, literal, null, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.letter_view import LetterView
from outlast.model.query import DISCARDED
from outlast.model.replay import Denial
from outlast.policy.letter_states import Transition, Verb, transition
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import SECONDS, clock, clock_plus

ChangeOutcome = Literal["changed", "would_change", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be done to each letter. `values` are columns that are set besides the state's."""

    verb: Verb
    act: Act
    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] | None = None
    kept_seconds: float = 0.0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class LetterChange:
    """The result for one letter; `state` is what it is now, None when it is gone."""

    dlq_id: int
    outcome: ChangeOutcome
    queue: str | None = None
    state: str | None = None
    reason: str | None = None
    remedy: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Only what is known: no member is null."""
        names = ("dlq_id", "outcome", "queue", "state", "reason", "remedy")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


async def change(
    connection: AsyncConnection, tables: DeskTables, letters: Sequence[LetterView], wanted: Change
) -> list[LetterChange]:
    """Do it to these letters, which the transaction has locked."""
    results: list[LetterChange] = []
    entries: list[Entry] = []
    legal: dict[tuple[str | None, bool, bool], list[LetterView]] = {}
    for letter in letters:
        allowed = transition(wanted.verb, letter)
        if isinstance(allowed, Denial):
            results.append(_denied(letter, allowed))
            continue
        key = (allowed.after, allowed.clears_purge, allowed.lifts_limit)
        legal.setdefault(key, []).append(letter)
        outcome: ChangeOutcome = "would_change" if wanted.dry_run else "changed"
        results.append(LetterChange(letter.id, outcome, letter.queue, allowed.after))
        if not wanted.dry_run:
            entries.append(_told(letter, allowed, wanted))
    if not wanted.dry_run:
        await tell(connection, tables, wanted.act, entries)
        for (after, clears_purge, lifts_limit), some in legal.items():
            ids = [letter.id for letter in some]
            if after is None:
                await erase(connection, tables, ids)
            else:
                values = _values(tables, after, wanted, clears_purge, lifts_limit)
                if values:
                    dlq = tables.dlq
                    await connection.execute(update(dlq).where(dlq.c.id.in_(ids)).values(values))
    return sorted(results, key=lambda result: result.dlq_id)


def _values(
    tables: DeskTables, after: str, wanted: Change, clears_purge: bool, lifts_limit: bool
) -> dict[str, Any]:
    values: dict[str, Any] = dict(wanted.values)
    if wanted.verb not in {"annotate", "edit"}:
        values |= {"state": after, "state_changed_at": clock(), "resolution": null()}
    if after == DISCARDED:
        values["purge_after"] = clock_plus(literal(wanted.kept_seconds, SECONDS))
    if clears_purge:
        values["purge_after"] = null()
    if lifts_limit:
        values["replays_at_reopen"] = tables.dlq.c.replay_count
    return values


def _told(letter: LetterView, allowed: Transition, wanted: Change) -> Entry:
    detail: dict[str, Any] = dict(wanted.detail or {})
    if allowed.after is None:
        # the tombstone: what it was, and nothing of what it said
        detail |= {"queue": letter.queue, "message_id": letter.message_id, "state": letter.state}
    elif allowed.changes_state:
        detail["before"] = allowed.before
    return Entry(letter.id, wanted.kind, detail or None)


async def erase(connection: AsyncConnection, tables: DeskTables, ids: Sequence[int]) -> None:
    """Delete letters and their revisions: nothing of the messages is left."""
    if tables.revision is not None:
        revision = tables.revision
        await connection.execute(delete(revision).where(revision.c.dlq_id.in_(ids)))
    await connection.execute(delete(tables.dlq).where(tables.dlq.c.id.in_(ids)))


def _denied(letter: LetterView, denial: Denial) -> LetterChange:
    return LetterChange(
        letter.id, "failed", letter.queue, letter.state, denial.reason, denial.remedy
    )
