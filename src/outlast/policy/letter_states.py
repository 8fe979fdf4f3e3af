"""Which verb may do what to a letter in which state, and where that leads. The only such table.

In: a verb and a letter. Out: the transition, or why not and what would help. Whoever writes a
state takes it from a `Transition`; nothing here writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Literal, NamedTuple

from outlast.model.letter_view import LetterView
from outlast.model.query import (
    DISCARDED,
    ESCALATED,
    LISTED_STATES,
    NEEDS_REVIEW,
    OPEN,
    REPLAYING,
    RESOLVED,
    STATES,
)
from outlast.model.replay import Denial

Verb = Literal[
    "replay",
    "discard",
    "erase",
    "restore",
    "edit",
    "open",
    "review",
    "escalate",
    "resolve",
    "return",
    "recall",
    "annotate",
]
"""`discard` and `erase` are purge without and with `--hard`; `open` and `review` are marks, and
`annotate` those that change no state (owner, triage, note). `resolve` and `return` are the two ends
of a replay, `recall` takes it back before.
"""


@dataclass(frozen=True, slots=True)
class Transition:
    """A legal change; `after` None: the letter is gone. Equal states: only bytes or notes change.

    `clears_purge`: the letter is no longer to be deleted. `lifts_limit`: replays count from here.
    """

    verb: Verb
    before: str
    after: str | None
    clears_purge: bool = False
    lifts_limit: bool = False

    @property
    def changes_state(self) -> bool:
        return self.before != self.after


class _Rule(NamedTuple):
    accepts: tuple[str, ...]
    becomes: str | None
    stays: bool = False


_AT_REST = tuple(state for state in STATES if state != REPLAYING)

_RULES: Mapping[Verb, _Rule] = {
    "replay": _Rule(LISTED_STATES, REPLAYING),
    # also resolved ones: an unconfirmed letter is ended by a person
    "discard": _Rule((*LISTED_STATES, RESOLVED), DISCARDED),
    "erase": _Rule(_AT_REST, None),
    "restore": _Rule((DISCARDED,), OPEN),
    "edit": _Rule(LISTED_STATES, None, stays=True),
    "open": _Rule((*LISTED_STATES, RESOLVED), OPEN),
    "review": _Rule(LISTED_STATES, NEEDS_REVIEW),
    "escalate": _Rule(LISTED_STATES, ESCALATED),
    "resolve": _Rule((REPLAYING,), RESOLVED),
    "return": _Rule((REPLAYING,), OPEN),
    "recall": _Rule((REPLAYING,), OPEN),
    "annotate": _Rule(STATES, None, stays=True),
}

_DONE: Mapping[Verb, str] = {
    "replay": "be replayed",
    "discard": "be purged",
    "erase": "be purged",
    "restore": "be restored",
    "edit": "be edited",
    "open": "be opened",
    "review": "be marked for review",
    "escalate": "be escalated",
    "resolve": "be resolved",
    "return": "be opened",
    "recall": "be recalled",
    "annotate": "be annotated",
}


def states_for(verb: Verb) -> tuple[str, ...]:
    """The states a verb accepts, for the filter of a statement that acts on many."""
    return _RULES[verb].accepts


def transition(verb: Verb, letter: LetterView) -> Transition | Denial:
    """What the verb does to this letter, or why it cannot."""
    rule = _RULES[verb]
    if letter.state is None:
        return Denial(
            None,
            f"dead letter {letter.id} cannot {_DONE[verb]}: its table records no state",
            "outlast db print prints the SQL that adds the columns",
        )
    if letter.state not in rule.accepts:
        return _denied(verb, letter)
    after = letter.state if rule.stays else rule.becomes
    is_listed = after in LISTED_STATES
    return Transition(
        verb,
        letter.state,
        after,
        clears_purge=is_listed and not rule.stays,
        lifts_limit=verb == "open",
    )


def _denied(verb: Verb, letter: LetterView) -> Denial:
    changed = letter.state_changed_at
    since = f" at {changed.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if changed else ""
    who = f"dead letter {letter.id}"
    match letter.state:
        case "replaying":
            row = letter.replayed_as
            recall = f"outlast outbox cancel {row}" if row is not None else "outlast outbox cancel"
            why = f"{who} is being replayed: it was sent{since}"
            seen = f"outlast dlq inspect {letter.id}"
            remedy = f"wait for its outcome ({seen} shows it), or take it back with {recall}"
        case "resolved":
            how = f" ({letter.resolution})" if letter.resolution else ""
            why = f"{who} was already replayed{since}{how}"
            remedy = f"outlast dlq mark {letter.id} --open opens it again"
        case "discarded":
            why = f"{who} was purged{since}"
            remedy = f"outlast dlq restore {letter.id} brings it back"
        case _:
            why = f"{who} is {letter.state} and cannot {_DONE[verb]}"
            remedy = f"only letters that are {' or '.join(states_for(verb))} can"
    return Denial(letter.state, why, remedy)
