"""A query as conditions over the dead-letter table: bound values only, whatever was asked.

In: words and the table that was found. Out: conditions. What a letter does not record matches
nothing, and therefore every negation. States are constants of ours, written as literals, because
a bound one keeps planners from the partial indexes.
"""

from collections.abc import Iterable, Mapping
from operator import ge, gt, le, lt
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Text,
    and_,
    cast,
    false,
    func,
    literal,
    or_,
    true,
)
from sqlalchemy import literal_column as constant

from outlast.model import headers as envelope
from outlast.model.query import LISTED_STATES, OPEN, STATES, Condition, Name, Query, Word

NOT_RECORDED = "not recorded"
"""As a value: the letters where this is NULL."""

_COLUMNS: Mapping[Name, str] = {
    "queue": "queue",
    "subscriber": "subscriber",
    "id": "id",
    "event": "event_type",
    "category": "failure_category",
    "reason": "failure_reason",
    "triage": "triage",
    "owner": "owner",
    "group": "fingerprint",
}
_COMPARED = {">=": ge, ">": gt, "<=": le, "<": lt}
_ERROR_COLUMNS = ("error_type", "error_message", "last_exception")

Where = ColumnElement[bool]


def latest_failure(dlq: FromClause, *, always_recorded: bool) -> ColumnElement[Any]:
    """What lists, ages and times go by. The plain column has an index."""
    if "last_failure_at" not in dlq.c:
        return dlq.c.failed_at
    if always_recorded:
        return dlq.c.last_failure_at
    return func.coalesce(dlq.c.last_failure_at, dlq.c.failed_at)


def in_states(dlq: FromClause, states: Iterable[str]) -> list[Where]:
    """The letters in these states; a table without states holds open letters only."""
    wanted = set(states)
    if "state" not in dlq.c:
        return [] if OPEN in wanted else [false()]
    if wanted >= set(STATES):
        return []
    found = [_one_of(dlq, [state for state in STATES if state in wanted])]
    if wanted < set(LISTED_STATES):
        # spelled as in the indexes, so that they are found
        found.append(_one_of(dlq, LISTED_STATES))
    return found


def _one_of(dlq: FromClause, states: Iterable[str]) -> Where:
    return dlq.c.state.in_([constant(f"'{state}'") for state in states])


def conditions(
    words: Iterable[Word],
    dlq: FromClause,
    latest: ColumnElement[Any],
    versions: Mapping[Word, tuple[str, ...]],
) -> list[Where]:
    """All words but states, and those that need the bytes of a letter."""
    return [
        _of_word(word, dlq, latest, versions)
        for word in words
        if word.name not in {"state", "header", "body"}
    ]


def columns_of(words: Iterable[Word], dlq: FromClause) -> list[ColumnElement[Any]]:
    """The columns that these words are asked of."""
    names: set[str] = set()
    for word in words:
        match word.name:
            case "error":
                names |= set(_ERROR_COLUMNS)
            case "message":
                names |= {"message_id", "headers", "original_id"}
            case "version":
                names.add("consumer_version")
            case "replays":
                names.add("replay_count")
            case name if name in _COLUMNS:
                names.add(_COLUMNS[name])
    return [column for column in dlq.c if column.name in names]


def unrecorded(query: Query, dlq: FromClause) -> tuple[str, ...]:
    """The words that this table has no column for."""
    columns: dict[Name, str] = {
        **_COLUMNS,
        "version": "consumer_version",
        "replays": "replay_count",
    }
    return tuple(
        word.name
        for word in query.words
        if word.name in columns and columns[word.name] not in dlq.c
    )


def _of_word(
    word: Word,
    dlq: FromClause,
    latest: ColumnElement[Any],
    versions: Mapping[Word, tuple[str, ...]],
) -> Where:
    match word.name:
        case "since" | "until":
            found = or_(*(_COMPARED[c.operator](latest, c.value) for c in word.alternatives))
        case "error":
            found = or_(*(_error(dlq, str(c.value)) for c in word.alternatives))
        case "message":
            found = or_(*(_message(dlq, str(c.value)) for c in word.alternatives))
        case "replays":
            found = or_(*(_replays(dlq, c) for c in word.alternatives))
        case "version":
            found = _version(dlq, word, versions)
        case _:
            found = _equals(dlq, word)
    # NULL is no answer: it would keep a letter from both a word and its negation
    return ~func.coalesce(found, false()) if word.negated else found


def _equals(dlq: FromClause, word: Word) -> Where:
    name = _COLUMNS[word.name]
    values = [condition.value for condition in word.alternatives]
    asks_missing = NOT_RECORDED in values or NOT_RECORDED.upper() in values
    if name not in dlq.c:
        return true() if asks_missing else false()
    column = dlq.c[name]
    found = column.in_(values)
    return or_(found, column.is_(None)) if asks_missing else found


def _version(dlq: FromClause, word: Word, versions: Mapping[Word, tuple[str, ...]]) -> Where:
    asks_missing = any(c.operator == "=" and c.value == NOT_RECORDED for c in word.alternatives)
    if "consumer_version" not in dlq.c:
        return true() if asks_missing else false()
    column = dlq.c.consumer_version
    found = column.in_(versions.get(word, ()))
    return or_(found, column.is_(None)) if asks_missing else found


def _error(dlq: FromClause, wanted: str) -> Where:
    return or_(
        *(
            func.coalesce(dlq.c[name].icontains(wanted, autoescape=True), false())
            for name in _ERROR_COLUMNS
            if name in dlq.c
        )
    )


def _message(dlq: FromClause, wanted: str) -> Where:
    """The recorded id, else the header's, else that of the row the letter came from."""
    header = cast(dlq.c.headers[envelope.MESSAGE_ID].as_string(), Text)
    implied = [header == wanted]
    if wanted.isascii() and wanted.isdecimal() and int(wanted) < 2**63:
        implied.append(and_(header.is_(None), dlq.c.original_id == literal(int(wanted))))
    if "message_id" not in dlq.c:
        return or_(*implied)
    return or_(dlq.c.message_id == wanted, and_(dlq.c.message_id.is_(None), or_(*implied)))


def _replays(dlq: FromClause, condition: Condition) -> Where:
    if "replay_count" not in dlq.c:
        return false()
    if condition.operator == "=":
        return dlq.c.replay_count == condition.value
    found: Where = _COMPARED[condition.operator](dlq.c.replay_count, condition.value)
    return found
