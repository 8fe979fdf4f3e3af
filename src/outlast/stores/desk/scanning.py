"""The words that need a letter's own content: `header.NAME:` and `body.a.b:`.

In: a query. Out: a test of headers and payload, in Python, the same on every database. Never
raises for what a stranger wrote: bytes that are no JSON have no values.
"""

import json
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from outlast.model.query import Query, Word
from outlast.policy.exact_json import NotJson, loads_shown, number_of

Matches = Callable[[Mapping[str, Any] | None, bytes | None], bool]

_ABSENT = object()


def asks_bodies(query: Query) -> bool:
    """Whether the test needs the payload, which may be large."""
    return any(word.name == "body" for word in query.words)


def matcher(query: Query) -> Matches | None:
    """The test, or None when the columns tell all."""
    words = [word for word in query.words if word.name in {"header", "body"}]
    if not words:
        return None
    has_body = asks_bodies(query)

    def matches(headers: Mapping[str, Any] | None, payload: bytes | None) -> bool:
        body = _json(payload) if has_body else _ABSENT
        return all(_holds(word, headers, body) is not word.negated for word in words)

    return matches


def _holds(word: Word, headers: Mapping[str, Any] | None, body: Any) -> bool:
    if word.name == "body":
        found = _at(body, word.path)
        return found is not _ABSENT and _is_any(word, found)
    wanted = word.path[0].casefold()
    return any(
        name.casefold() == wanted and _is_any(word, value)
        for name, value in (headers or {}).items()
    )


def _is_any(word: Word, value: Any) -> bool:
    return any(_equal(value, str(condition.value)) for condition in word.alternatives)


def _equal(value: Any, wanted: str) -> bool:
    match value:
        case str():
            return value == wanted
        case None | bool():
            return json.dumps(value) == wanted
        case int() | float():
            try:
                return number_of(value) == Decimal(wanted)
            except (InvalidOperation, ValueError):
                return False
    return False


def _at(body: Any, path: tuple[str, ...]) -> Any:
    found = body
    for step in path:
        if isinstance(found, dict):
            found = found.get(step, _ABSENT)
        elif isinstance(found, list) and step.isascii() and step.isdecimal() and len(step) < 10:  # noqa: PLR2004
            found = found[int(step)] if int(step) < len(found) else _ABSENT
        else:
            return _ABSENT
    return found


def _json(payload: bytes | None) -> Any:
    try:
        return loads_shown(payload or b"")
    except NotJson:
        return _ABSENT
