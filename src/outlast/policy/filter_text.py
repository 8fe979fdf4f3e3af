"""The filter, one text form for every door: `queue:orders error:"timed out" since:2h state:open`.

`parse` makes a `Query` of a text, `render` the text of a query, `with_options` adds what options
such as `--queue` say. `now` is passed in. The only exception is `FilterError`; work is linear in
the length of the text, which is bounded.
"""

import difflib
import itertools
from collections.abc import Iterable
from datetime import datetime
from typing import get_args

from outlast.model.query import (
    ROW_NAMES,
    ROW_STATES,
    STATES,
    Condition,
    FilterError,
    Name,
    Query,
    Term,
    Word,
)
from outlast.policy.filter_scan import FILTER_CHARS_MAX, Piece, escaped, quoted, scan, shown
from outlast.policy.filter_values import VALUE_CHARS_MAX, read_value, written_time
from outlast.policy.versions import version_key

__all__ = [
    "FILTER_CHARS_MAX",
    "PATH_STEPS_MAX",
    "STEP_CHARS_MAX",
    "VALUE_CHARS_MAX",
    "WORDS_MAX",
    "parse",
    "pointer",
    "render",
    "with_options",
]

WORDS_MAX = 100
PATH_STEPS_MAX = 20
STEP_CHARS_MAX = 255

_NAMES: dict[str, Name] = {
    **{name: name for name in get_args(Name)},
    "stream": "queue",
    "subscription": "queue",
}
_WITH_PATH: dict[str, str] = {"header": "header.tenant:", "body": "body.order.id:"}
_MAY_BE_EMPTY = frozenset({"header", "body"})
_SUGGESTED = tuple(f"{name}." if name in _WITH_PATH else f"{name}:" for name in _NAMES)
_JOINTS = {"AND": "words are ANDed as they stand", "OR": "the same word again is OR"}
_OF_LETTERS = "is asked of dead letters; live messages have " + ", ".join(
    f"{name}." if name in _WITH_PATH else f"{name}:" for name in sorted(ROW_NAMES)
)
_LOWER, _UPPER = (">", ">="), ("<", "<=")


def parse(text: str, *, now: datetime, rows: bool = False) -> Query:
    """The query a text asks. Spans such as `2h` are counted back from `now`.

    `rows`: it is asked of live messages, which have fewer words and other states.
    """
    pieces = scan(text)
    if len(pieces) > WORDS_MAX:
        raise FilterError(
            f"the filter has {len(pieces)} words; {WORDS_MAX} are read",
            position=pieces[WORDS_MAX].position,
        )
    return _gathered((_term(piece, now, rows=rows) for piece in pieces), rows=rows)


def render(query: Query) -> str:
    """The text of a query; parsed again, at any time, it is the same query."""
    return " ".join(_written(*term) for term in query.terms())


def with_options(
    query: Query,
    *,
    now: datetime,
    queue: Iterable[str] = (),
    subscription: Iterable[str] = (),
    subscriber: Iterable[str] = (),
    category: Iterable[str] = (),
    state: Iterable[str] = (),
    since: str | None = None,
    until: str | None = None,
    rows: bool = False,
) -> Query:
    """The query with the words that the options of the same names stand for."""
    given: tuple[tuple[Name, Iterable[str]], ...] = (
        ("queue", (*queue, *subscription)),
        ("subscriber", subscriber),
        ("category", category),
        ("state", state),
        ("since", () if since is None else (since,)),
        ("until", () if until is None else (until,)),
    )
    added: list[Term] = []
    for name, texts in given:
        for text in texts:
            if not text:
                raise FilterError(f"--{name} needs a value")
            if rows and name not in ROW_NAMES:
                raise FilterError(f"--{name} {_OF_LETTERS}", piece=name)
            # an option's value comes as it is: the shell has taken the quotes
            states = ROW_STATES if rows else STATES
            condition = read_value(name, text, now=now, position=None, literal=True, states=states)
            added.append((name, (), False, condition))
    found = _gathered(itertools.chain(query.terms(), added), rows=rows)
    count = len(found.terms())
    if count > WORDS_MAX:
        raise FilterError(f"filter and options have {count} words; {WORDS_MAX} are read")
    return found


def pointer(text: str, error: FilterError) -> str:
    """Two lines that show where a filter is wrong, harmless on a terminal; empty for options."""
    if error.position is None:
        return ""
    start = max(0, error.position - 40)
    before = ("…" if start else "") + shown(text[start : error.position])
    return f"{before}{shown(text[error.position : error.position + 40])}\n{' ' * len(before)}^"


def _gathered(terms: Iterable[Term], *, rows: bool) -> Query:
    query = Query.gather(terms)
    for word in query.words:
        _refuse_everything(word)
    if not (query.row_states if rows else query.states):
        raise FilterError("no state is left: the filter excludes every state it asks for")
    return query


def _term(piece: Piece, now: datetime, *, rows: bool) -> Term:
    name = _NAMES.get(piece.steps[0].lower())
    if name is None or piece.value is None:
        raise _unknown(piece, name)
    if rows and name not in ROW_NAMES:
        raise FilterError(
            f'"{name}:" {_OF_LETTERS}', position=piece.position, piece=shown(name), nearest=None
        )
    path = _path(piece, name)
    if not piece.value and not (piece.was_quoted and name in _MAY_BE_EMPTY):
        raise FilterError(
            f"{piece.steps[0]}: needs a value", position=piece.value_position, piece=shown(name)
        )
    condition = read_value(
        name,
        piece.value,
        now=now,
        position=piece.value_position,
        literal=piece.is_literal,
        states=ROW_STATES if rows else STATES,
    )
    return name, path, piece.negated, condition


def _path(piece: Piece, name: Name) -> tuple[str, ...]:
    steps = piece.steps[1:]
    whole = shown(".".join(piece.steps))
    if name not in _WITH_PATH:
        if steps:
            raise FilterError(
                f'"{whole}:" is not a word: {name}: takes no path; did you mean "{name}:"?',
                position=piece.position,
                piece=whole,
                nearest=f"{name}:",
            )
        return ()
    if name == "header":
        steps = [".".join(steps)]
    if not steps or not all(steps):
        raise FilterError(
            f'"{whole}:" needs a name after each dot, as in {_WITH_PATH[name]}',
            position=piece.position,
            piece=whole,
        )
    if len(steps) > PATH_STEPS_MAX or max(map(len, steps)) > STEP_CHARS_MAX:
        raise FilterError(
            f"{name}. has a path of at most {PATH_STEPS_MAX} names of {STEP_CHARS_MAX} characters",
            position=piece.position,
            piece=whole,
        )
    return tuple(steps)


def _unknown(piece: Piece, name: Name | None) -> FilterError:
    whole = shown(".".join(piece.steps))
    if piece.value is None:
        joint = _JOINTS.get(whole)
        if name is not None:
            why = f'"{whole}" needs a colon and a value, as in {_WITH_PATH.get(name, f"{name}:…")}'
            nearest: str | None = f"{name}:"
        elif joint:
            why, nearest = f'"{whole}" is not needed: {joint}', None
        else:
            nearest = "id:" if whole.isdecimal() else "error:"
            why = f'"{whole}" has no word before it; did you mean {nearest}{quoted(whole)}?'
        return FilterError(why, position=piece.position, piece=whole, nearest=nearest)
    near = difflib.get_close_matches(f"{piece.steps[0].lower()[:32]}:", _SUGGESTED, 1)
    nearest = near[0] if near else None
    names = ", ".join(_WITH_PATH.get(name.rstrip("."), name) for name in _SUGGESTED)
    hint = f'did you mean "{nearest}"?' if nearest else f"there are {names}"
    return FilterError(
        f'there is no word "{whole}:" (character {piece.position + 1}); {hint}',
        position=piece.position,
        piece=whole,
        nearest=nearest,
    )


def _refuse_everything(word: Word) -> None:
    """Bounds of one word are ORed: a pair that was meant as a range would take all there is."""
    for low, high in itertools.product(word.alternatives, repeat=2):
        if low.operator in _LOWER and high.operator in _UPPER and _overlap(low, high):
            a, b = (f"{word.name}:{c.operator}{shown(str(c.value))}" for c in (low, high))
            if word.negated:
                raise FilterError(f"-{a} and -{b} leave nothing", piece=b)
            turned = {"<": ">=", "<=": ">"}[high.operator]
            raise FilterError(
                f"{a} or {b} takes everything: the same word again is OR; "
                f"for a range write {a} -{word.name}:{turned}{shown(str(high.value))}",
                piece=b,
            )


def _overlap(low: Condition, high: Condition) -> bool:
    """Whether every value is above the one or below the other."""
    if isinstance(low.value, int) and isinstance(high.value, int):
        first = low.value + (low.operator == ">")
        last = high.value - (high.operator == "<")
        return first <= last + 1
    bottom, top = version_key(str(low.value)), version_key(str(high.value))
    if bottom is None or top is None:
        return False
    return bottom < top or (bottom == top and (low.operator, high.operator) != (">", "<"))


def _written(name: Name, path: tuple[str, ...], negated: bool, condition: Condition) -> str:
    sign = "-" if negated else ""
    # only the body's path is cut at dots
    steps = "".join(f".{escaped(step, dots=name == 'body')}" for step in path)
    operator, value = condition
    prefix = "" if name in {"since", "until"} or operator == "=" else operator
    text = written_time(value) if not isinstance(value, str | int) else str(value)
    return f"{sign}{name}{steps}:{prefix}{quoted(text)}"
