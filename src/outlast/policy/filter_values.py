"""The values of filter words: times, numbers, states, versions, plain text, each with its limit.

In: a word's name, the text of its value, `now`. Out: a condition, or a `FilterError` that says what
would have been understood. Reads no clock.
"""

import difflib
import math
import re
from datetime import UTC, datetime, timedelta

from outlast.model.query import ANY_STATE, STATES, Condition, FilterError, Name, Operator
from outlast.policy.filter_scan import check_storable, shown
from outlast.policy.versions import version_key

VALUE_CHARS_MAX = 1024
ID_MAX = 2**63 - 1
COUNT_MAX = 2**31 - 1
SPAN_MAX = timedelta(days=36525)
"""A century: further back there is no letter."""

_OPERATOR = re.compile(r"[<>=!~]{1,8}")
_KNOWN_OPERATORS: dict[str, Operator] = {
    ">=": ">=",
    ">": ">",
    "<=": "<=",
    "<": "<",
    "=": "=",
    "==": "=",
}
_SPAN = re.compile(r"(?:[0-9]{1,9}[wdhms])+")
_SPAN_PART = re.compile(r"([0-9]+)([wdhms])")
_UNITS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
    r"(?: ?(?:[Zz]|UTC|[+-][0-9]{2}(?::?[0-9]{2})?))?)?"
)
_TIME_SHAPES = "a span before now (90s, 15m, 2h, 3d, 1w) or a time (2026-11-19T10:00:00Z)"


class _Value:
    """One value with its place, so that every refusal can point to it."""

    def __init__(self, name: Name, text: str, position: int | None) -> None:
        self.name = name
        self.text = text
        self.position = position

    def refused(self, why: str, nearest: str | None = None) -> FilterError:
        hint = f'; did you mean "{nearest}"?' if nearest else ""
        return FilterError(
            f"{self.name}: {why}{hint}",
            position=self.position,
            piece=shown(self.text),
            nearest=nearest,
        )


def read_value(
    name: Name,
    text: str,
    *,
    now: datetime,
    position: int | None,
    literal: bool = False,
    states: tuple[str, ...] = STATES,
) -> Condition:
    """What the value of a word means. `literal`: it was quoted, so it begins with no operator."""
    value = _Value(name, text, position)
    if len(text) > VALUE_CHARS_MAX:
        raise value.refused(f"the value has {len(text)} characters; {VALUE_CHARS_MAX} are read")
    check_storable(text, position)
    match name:
        case "state":
            if not literal:
                _refuse_operator(value)
            return Condition("=", _state(value, states))
        case "since" | "until":
            return Condition(">=" if name == "since" else "<", _instant(value, now))
        case "replays":
            operator = _take_operator(value)
            return Condition(operator, _number(value, COUNT_MAX))
        case "version":
            return _version(value, literal=literal)
    if not literal and name != "error":
        _refuse_operator(value)
    return Condition("=", _plain(value))


def _plain(value: _Value) -> str | int:
    match value.name:
        case "id":
            return _number(value, ID_MAX)
        case "category":
            return value.text.upper()
    return value.text


def _take_operator(value: _Value) -> Operator:
    found = _OPERATOR.match(value.text)
    if found is None:
        return "="
    operator = _KNOWN_OPERATORS.get(found.group())
    if operator is None:
        raise value.refused(f'"{found.group()}" is no operator; there are >=, >, <=, < and =')
    value.text = value.text[found.end() :].strip()
    if value.position is not None:
        value.position += found.end()
    if not value.text:
        raise value.refused(f"a value is missing after {operator}")
    return operator


def _refuse_operator(value: _Value) -> None:
    found = _OPERATOR.match(value.text)
    if found is not None and found.group() != "=":
        raise value.refused(
            f'it takes no operator such as "{found.group()}" (replays: and version: do); '
            f"quote the value if that is how it begins"
        )


def _number(value: _Value, most: int) -> int:
    if re.fullmatch(r"[0-9]{1,19}", value.text) is None or int(value.text) > most:
        raise value.refused(f'"{shown(value.text)}" is not a number from 0 to {most}')
    return int(value.text)


def _state(value: _Value, states: tuple[str, ...]) -> str:
    choices = (*states, ANY_STATE)
    state = value.text.lower().replace("-", "_")
    if state not in choices:
        near = difflib.get_close_matches(state[:64], choices, 1)
        raise value.refused(
            f'there is no state "{shown(value.text)}"; there are {", ".join(choices)}',
            near[0] if near else None,
        )
    return state


def _version(value: _Value, *, literal: bool) -> Condition:
    if literal:
        return Condition("=", value.text)
    operator = _take_operator(value)
    if operator != "=" and version_key(value.text) is None:
        raise value.refused(
            f'"{shown(value.text)}" has no order, so {operator} cannot be asked of it; '
            f"1.4.0 has one, a commit hash does not"
        )
    return Condition(operator, value.text)


def _instant(value: _Value, now: datetime) -> datetime:
    if now.tzinfo is None:
        raise ValueError(f"now must be timezone-aware, got {now!r}")
    text = value.text.strip()
    if _SPAN.fullmatch(text):
        return _before(value, text, now)
    if _TIME.fullmatch(text) is None:
        raise value.refused(f'"{shown(text)}" is no time; {_TIME_SHAPES} is')
    try:
        # every version of Python reads this spelling alike
        spelled = re.sub(r" ([Z+-])", r"\1", text.upper().replace("UTC", "Z"))
        read = datetime.fromisoformat(spelled)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise value.refused(f'"{shown(text)}" is an impossible time') from None


def _before(value: _Value, text: str, now: datetime) -> datetime:
    seconds: float = sum(int(number) * _UNITS[unit] for number, unit in _SPAN_PART.findall(text))
    try:
        instant = (now - timedelta(seconds=seconds)).astimezone(UTC)
    except OverflowError:
        seconds = math.inf
    if seconds > SPAN_MAX.total_seconds():
        raise value.refused(f'"{shown(text)}" is longer than {SPAN_MAX.days} days')
    return instant


def written_time(instant: datetime) -> str:
    """An instant as a filter shows it, in UTC."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
