"""Results of many letters, summed up in the shapes of `model.replay`.

In: one result after the other. Out: what every door prints. Bounded: of a very large run the
results that need somebody are kept, the others counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from outlast.model.query import Condition, Query, Word
from outlast.model.replay import (
    DONE,
    FAILED,
    BulkReplay,
    Gate,
    LeftOut,
    LetterReplay,
    RefusedKind,
)
from outlast.policy.filter_text import render
from outlast.stores.desk.changing import LetterChange

RESULTS_MAX = 10_000
IDS_IN_FILTER_MAX = 50


Result = TypeVar("Result")


@dataclass(slots=True)
class Kept(Generic[Result]):
    """The first results; when they are too many, those that went well make room for the others."""

    _by_number: dict[int, Result] = field(default_factory=dict)
    _good: list[int] = field(default_factory=list)
    _seen: int = 0

    def add(self, result: Result, *, is_good: bool) -> None:
        """Keep it, if there is room."""
        self._seen += 1
        if len(self._by_number) == RESULTS_MAX:
            if is_good or not self._good:
                return
            del self._by_number[self._good.pop()]
        self._by_number[self._seen] = result
        if is_good:
            self._good.append(self._seen)

    def all(self) -> tuple[Result, ...]:
        """In the order in which they came."""
        return tuple(self._by_number.values())


@dataclass(slots=True)
class ReplayTally:
    """Of one replay of several letters."""

    counts: Counter[str] = field(default_factory=Counter)
    by_queue: Counter[str] = field(default_factory=Counter)
    kept: Kept[LetterReplay] = field(default_factory=Kept)
    refused: dict[Gate, list[LetterReplay]] = field(default_factory=dict)
    gates: Counter[Gate] = field(default_factory=Counter)

    def add(self, results: Sequence[LetterReplay]) -> None:
        """Count these."""
        for result in results:
            self.counts[result.outcome] += 1
            if result.outcome in {"replayed", "would_replay"} and result.queue is not None:
                self.by_queue[result.queue] += 1
            if result.gate is not None:
                self.gates[result.gate] += 1
                some = self.refused.setdefault(result.gate, [])
                if len(some) <= IDS_IN_FILTER_MAX:
                    some.append(result)
            self.kept.add(result, is_good=result.outcome not in {"refused", "failed"})

    @property
    def handled(self) -> int:
        """Letters that got a result."""
        return self.counts.total()

    def result(
        self,
        query: Query | None,
        *,
        dry_run: bool = False,
        left_out: tuple[LeftOut, ...] = (),
        cursor: str | None = None,
    ) -> BulkReplay:
        """What became of them so far. A dry run counts under `replayed` what would be."""
        return BulkReplay(
            replayed=self.counts["would_replay" if dry_run else "replayed"],
            skipped=self.counts["skipped"],
            failed=self.counts["failed"],
            refused=tuple(
                RefusedKind(gate, self.gates[gate], _filter(some, query), _reason(some))
                for gate, some in self.refused.items()
            ),
            left_out=left_out,
            results=self.kept.all(),
            by_queue=dict(self.by_queue),
            dry_run=dry_run,
            more=cursor is not None,
            cursor=cursor,
        )


_REASONS: dict[str, str] = {
    "replay_limit": "replayed as often as the limit allows, and here again",
    "unchanged": "nothing has changed since they failed",
    "poison": "they ended deliveries without an outcome and may kill their worker",
    "lifetime": "not for a rule to replay",
}


def _reason(some: Sequence[LetterReplay]) -> str:
    only = some[0]
    return only.reason or "" if len(some) == 1 else _REASONS[only.gate or ""]


def _filter(some: Sequence[LetterReplay], query: Query | None) -> str:
    """Few letters by their ids; of many, the words that come nearest."""
    gate = some[0].gate
    if query is None or len(some) <= IDS_IN_FILTER_MAX:
        ids = tuple(Condition("=", result.dlq_id) for result in some[:IDS_IN_FILTER_MAX])
        words = [Word("id", ids)]
        if gate == "replay_limit":
            words.append(Word("state", (Condition("=", "escalated"),)))
        return render(Query(tuple(words)))
    if gate == "replay_limit":
        return render(with_word(query, "state", "escalated"))
    if gate == "poison":
        return render(with_word(query, "category", "POISON"))
    return render(query)


def with_word(query: Query, name: Any, value: str) -> Query:
    """The query with this word in place of its own ones of that name."""
    kept = tuple(word for word in query.words if word.name != name or word.negated)
    return Query((*kept, Word(name, (Condition("=", value),))))


@dataclass(frozen=True, slots=True)
class BulkChange:
    """The result of a verb that changes letters besides a replay. `done` counts the changed."""

    verb: str
    done: int = 0
    skipped: int = 0
    failed: int = 0
    results: tuple[LetterChange, ...] = ()
    dry_run: bool = False
    more: bool = False
    cursor: str | None = None

    @property
    def exit_code(self) -> int:
        """What was skipped is no failure."""
        return FAILED if self.failed else DONE

    def as_json(self) -> dict[str, Any]:
        """The document of `--json` and REST; the count has the name of the verb."""
        shown: dict[str, Any] = {
            self.verb: self.done,
            "skipped": self.skipped,
            "failed": self.failed,
            "results": [result.as_json() for result in self.results],
        }
        if self.dry_run:
            shown["dry_run"] = True
        if self.more:
            shown |= {"more": True, "cursor": self.cursor}
        return shown


@dataclass(slots=True)
class ChangeTally:
    """Of one change of several letters."""

    verb: str
    counts: Counter[str] = field(default_factory=Counter)
    kept: Kept[LetterChange] = field(default_factory=Kept)

    def add(self, results: Sequence[LetterChange]) -> None:
        """Count these."""
        for result in results:
            self.counts[result.outcome] += 1
            self.kept.add(result, is_good=result.outcome != "failed")

    @property
    def handled(self) -> int:
        """Letters that got a result."""
        return self.counts.total()

    def result(self, *, dry_run: bool = False, cursor: str | None = None) -> BulkChange:
        """What became of them so far."""
        return BulkChange(
            self.verb,
            self.counts["would_change" if dry_run else "changed"],
            self.counts["skipped"],
            self.counts["failed"],
            self.kept.all(),
            dry_run,
            cursor is not None,
            cursor,
        )
