"""JSON that comes back as it was written, but for what was changed: `1.10` stays `1.10`.

In: the bytes of a body, or values. Out: values with exact numbers, or text. What JSON text cannot
give back exactly (a name twice in one object) or safely (bottomless nesting) is refused.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring, encode_basestring_ascii
from operator import attrgetter
from typing import Any

DEPTH_MAX = 200
"""Levels of lists and objects in a body that is edited."""

_DIGITS_MAX = 4000
_HALVES = re.compile("[\ud800-\udfff]")


class NotJson(ValueError):  # noqa: N818 - it reads as what it says
    """These bytes are no JSON text in UTF-8."""


class Unkept(ValueError):  # noqa: N818
    """JSON text could not be given back, or a value could not be written. `path` is where."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.path: list[str] = []

    def __str__(self) -> str:
        where = "".join(f"/{token[:100]}" for token in reversed(self.path[-20:]))
        return f"{self.args[0]} at {where}" if where else str(self.args[0])


class ExactFloat(float):
    """A number that is written as it was read: `1.10` stays `1.10`."""

    __slots__ = ("written",)
    written: str

    def __init__(self, written: str) -> None:
        self.written = written


def loads(payload: bytes) -> Any:
    """The value of a body."""
    try:
        return json.loads(
            payload.decode(),
            parse_float=ExactFloat,
            parse_int=_whole,
            parse_constant=_refuse_constant,
            object_pairs_hook=_once_each,
        )
    except UnicodeDecodeError:
        raise NotJson("it is no text in UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at line {error.lineno} column {error.colno}") from None


def _whole(digits: str) -> int | ExactFloat:
    if digits == "-0" or len(digits) > _DIGITS_MAX:
        return ExactFloat(digits)
    return int(digits)


def _refuse_constant(name: str) -> Any:
    raise NotJson(f"JSON has no {name}")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Unkept(f"an object has the name {name[:100]!r} twice")
            seen.add(name)
    return found


def dumps(value: Any, *, sort_names: bool = False) -> str:
    """One line of JSON."""
    parts: list[str] = []
    _write(value, parts, 0, sort_names=sort_names)
    return "".join(parts)


def _write(value: Any, parts: list[str], level: int, *, sort_names: bool) -> None:
    if (plain := _PLAIN.get(type(value))) is not None:
        parts.append(plain(value))
    elif isinstance(value, Mapping):
        _write_object(value, parts, level, sort_names=sort_names)
    elif isinstance(value, list | tuple):
        _write_array(value, parts, level, sort_names=sort_names)
    else:
        parts.append(_scalar(value))


def _write_array(value: Sequence[Any], parts: list[str], level: int, *, sort_names: bool) -> None:
    if level >= DEPTH_MAX:
        raise _too_deep()
    opening = "["
    for place, item in enumerate(value):
        parts.append(opening)
        opening = ","
        try:
            _write(item, parts, level + 1, sort_names=sort_names)
        except Unkept as error:
            error.path.append(str(place))
            raise
    parts.append("]" if value else "[]")


def _write_object(
    value: Mapping[Any, Any], parts: list[str], level: int, *, sort_names: bool
) -> None:
    if level >= DEPTH_MAX:
        raise _too_deep()
    for name in value:
        if not isinstance(name, str):
            raise Unkept(f"a name in an object is a {type(name).__name__}, not text")
    opening = "{"
    for name in sorted(value) if sort_names else value:
        parts += (opening, _quoted(name), ":")
        opening = ","
        try:
            _write(value[name], parts, level + 1, sort_names=sort_names)
        except Unkept as error:
            error.path.append(name)
            raise
    parts.append("}" if value else "{}")


def _too_deep() -> Unkept:
    return Unkept(f"it is nested deeper than {DEPTH_MAX} levels")


def _quoted(text: str) -> str:
    # half a character has no UTF-8: it stays the escape that it was
    if not text.isascii() and _HALVES.search(text):
        return encode_basestring_ascii(text)
    return encode_basestring(text)


def _digits(number: int) -> str:
    try:
        return str(int(number))
    except ValueError:
        raise Unkept("a number has too many digits") from None


_PLAIN: dict[type, Callable[[Any], str]] = {
    str: _quoted,
    ExactFloat: attrgetter("written"),
    int: _digits,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _: "null",
}


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int):
        return _digits(value)
    if isinstance(value, float | Decimal):
        if not math.isfinite(value):
            raise Unkept(f"JSON has no {value}")
        return repr(float(value)) if isinstance(value, float) else str(value)
    raise Unkept(f"JSON has nothing for a {type(value).__name__}")
