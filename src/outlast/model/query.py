"""A question about dead letters: words, as values. Made by `policy.filter_text`, read by the desk.

Words are ANDed; the alternatives of one word are ORed; a negated word takes none of them. Times
are instants already: a query means the same an hour later.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from outlast.model.errors import OutlastError

OPEN = "open"
NEEDS_REVIEW = "needs_review"
ESCALATED = "escalated"
REPLAYING = "replaying"
RESOLVED = "resolved"
DISCARDED = "discarded"

LISTED_STATES = (OPEN, NEEDS_REVIEW, ESCALATED)
"""What is listed and counted unless the filter says otherwise."""

STATES = (*LISTED_STATES, REPLAYING, RESOLVED, DISCARDED)
ANY_STATE = "any"

ROW_STATES = ("pending", "in_flight", "retrying", "replaying")
"""What the filter calls a live message, derived from its row."""

ROW_NAMES: frozenset[str] = frozenset(
    {"queue", "id", "message", "event", "since", "until", "state", "replays", "header", "body"}
)
"""The words that mean something for live messages; the times are those of the publish."""

Operator = Literal["=", ">=", ">", "<=", "<"]

Name = Literal[
    "queue",
    "subscriber",
    "id",
    "message",
    "event",
    "category",
    "reason",
    "triage",
    "owner",
    "state",
    "error",
    "group",
    "version",
    "since",
    "until",
    "replays",
    "header",
    "body",
]


class FilterError(OutlastError, ValueError):
    """A filter that cannot be read. `position` counts characters from 0; None for an option."""

    def __init__(
        self,
        message: str,
        *,
        position: int | None = None,
        piece: str = "",
        nearest: str | None = None,
    ) -> None:
        super().__init__(message)
        self.position = position
        self.piece = piece
        self.nearest = nearest


class Condition(NamedTuple):
    """One alternative of a word. `error` compares by substring, all others as the operator says."""

    operator: Operator
    value: str | int | datetime


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a filter. `path` is the header's name, or the steps into the body.

    A letter that does not record the value matches no plain word, and every negated one.
    """

    name: Name
    alternatives: tuple[Condition, ...]
    path: tuple[str, ...] = ()
    negated: bool = False


Term = tuple[Name, tuple[str, ...], bool, Condition]
"""One word as it was written: name, path, negated, condition."""


@dataclass(frozen=True, slots=True)
class Query:
    """Each word appears at most once plain and once negated; `gather` sees to that."""

    words: tuple[Word, ...] = ()

    @classmethod
    def gather(cls, terms: Iterable[Term]) -> "Query":
        """The same word again becomes one more alternative, at its first place."""
        found: dict[tuple[Name, tuple[str, ...], bool], dict[Condition, None]] = {}
        for name, path, negated, condition in terms:
            found.setdefault((name, path, negated), {})[condition] = None
        return cls(
            tuple(
                Word(name, tuple(alternatives), path, negated)
                for (name, path, negated), alternatives in found.items()
            )
        )

    def terms(self) -> tuple[Term, ...]:
        """The words as they would be written one by one."""
        return tuple(
            (word.name, word.path, word.negated, condition)
            for word in self.words
            for condition in word.alternatives
        )

    @property
    def is_empty(self) -> bool:
        """Nothing was asked: a verb that changes something wants to hear "all" instead."""
        return not self.words

    @property
    def names_states(self) -> bool:
        """Whether the filter says by itself which states it wants."""
        return any(word.name == "state" and not word.negated for word in self.words)

    @property
    def states(self) -> tuple[str, ...]:
        """The states that are looked at, the default and negations worked in."""
        wanted = self._states_said(negated=False) or set(LISTED_STATES)
        wanted -= self._states_said(negated=True)
        return tuple(state for state in STATES if state in wanted)

    @property
    def row_states(self) -> frozenset[str]:
        """The states of live messages that are looked at."""
        wanted = self._states_said(negated=False, known=ROW_STATES) or set(ROW_STATES)
        return frozenset(wanted - self._states_said(negated=True, known=ROW_STATES))

    def _states_said(self, *, negated: bool, known: Iterable[str] = STATES) -> set[str]:
        said = {
            str(condition.value)
            for word in self.words
            if word.name == "state" and word.negated is negated
            for condition in word.alternatives
        }
        return set(known) if ANY_STATE in said else said
