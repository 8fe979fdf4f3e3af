"""JSON that comes back as it was written, but for what was changed: `1.10` stays `1.10`.

In: bytes and texts of strangers, or values. Out: values with exact numbers, or text. What JSON text
cannot give back exactly (a name twice in one object) or safely (bottomless nesting) is refused by
`loads`, `read_json` and `dumps`; `loads_shown`, for looking only, takes whatever can be shown.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from json.encoder import encode_basestring, encode_basestring_ascii
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, NoReturn

DEPTH_MAX = 200
"""Levels of lists and objects in what is edited, exported or imported."""

_DIGITS_MAX = 4000
_BLANKS = " \t\r\n"
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
        return _BODY.decode(payload.decode())
    except UnicodeDecodeError:
        raise NotJson("it is no text in UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise NotJson(f"{error.msg} at line {error.lineno} column {error.colno}") from None


def read_json(data: bytes | str) -> Any:
    """The value of a document; a `ValueError` says why there is none."""
    text = data if isinstance(data, str) else data.decode()
    value, end = read_json_at(text, 0)
    if text[end:].strip(_BLANKS):
        raise NotJson("something follows the JSON value")
    return value


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at or after this place, and where it ends."""
    while start < len(text) and text[start] in _BLANKS:
        start += 1
    try:
        value, end = _DOCUMENT.raw_decode(text, start)
    except RecursionError:
        raise _too_deep() from None
    if is_deep(value):
        raise _too_deep()
    return value, end


def loads_shown(payload: bytes) -> Any:
    """The value of a body that is only looked at: what has no number is the text it was."""
    try:
        return json.loads(
            payload, parse_float=_finite, parse_int=_short_or_text, parse_constant=str
        )
    except (ValueError, RecursionError):
        raise NotJson("it is no JSON") from None


def is_deep(value: Any) -> bool:
    """Whether a value has more levels than are written."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def number_of(value: float) -> Decimal:
    """A number that was read, exactly."""
    return Decimal(value.written if isinstance(value, ExactFloat) else str(value))


def _whole(digits: str) -> int | ExactFloat:
    if digits == "-0" or len(digits) > _DIGITS_MAX:
        return ExactFloat(digits)
    return int(digits)


def _short(digits: str) -> int | ExactFloat:
    if len(digits) > _DIGITS_MAX:
        # most readers would stumble over it
        raise NotJson(f"a number has {len(digits)} digits; {_DIGITS_MAX} are read")
    return _whole(digits)


def _short_or_text(digits: str) -> int | str:
    return int(digits) if len(digits) <= _DIGITS_MAX else digits


def _finite(digits: str) -> ExactFloat | str:
    number = ExactFloat(digits)
    return number if math.isfinite(number) else digits


def _refuse_constant(name: str) -> NoReturn:
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


def _decoder(whole: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_float=ExactFloat,
        parse_int=whole,
        parse_constant=_refuse_constant,
        object_pairs_hook=_once_each,
    )


_BODY, _DOCUMENT = _decoder(_whole), _decoder(_short)


class _Form(NamedTuple):
    """How a value is laid out. `strict`: refuse what would not be read back as it is."""

    comma: str = ","
    colon: str = ":"
    indent: str = ""
    strict: bool = True
    sort_names: bool = False


def dumps(value: Any, *, sort_names: bool = False) -> str:
    """One line of JSON, as short as it can be."""
    return _written(value, _Form(sort_names=sort_names))


def write_json(value: Any) -> str:
    """One line of a document; what is not printable is spelled as JSON spells it."""
    text = _written(value, _Form(", ", ": ", strict=False))
    return text if text.isprintable() else "".join(map(_harmless, text))


def pretty(value: Any) -> str:
    """JSON over several lines; a RecursionError where no depth was bounded before."""
    return _written(value, _Form(colon=": ", indent="  ", strict=False))


def _written(value: Any, form: _Form) -> str:
    parts: list[str] = []
    _write(value, parts, 0, form)
    return "".join(parts)


def _write(value: Any, parts: list[str], level: int, form: _Form) -> None:
    if (plain := _PLAIN.get(type(value))) is not None:
        parts.append(plain(value))
    elif isinstance(value, Mapping):
        named = [(_name(name, form), item) for name, item in value.items()]
        if form.sort_names:
            named.sort(key=itemgetter(0))
        _write_items(named, "{}", parts, level, form)
    elif isinstance(value, list | tuple):
        _write_items(((None, item) for item in value), "[]", parts, level, form)
    else:
        parts.append(_scalar(value, form))


def _write_items(
    items: Iterable[tuple[str | None, Any]],
    brackets: str,
    parts: list[str],
    level: int,
    form: _Form,
) -> None:
    if form.strict and level >= DEPTH_MAX:
        raise _too_deep()
    line = "\n" + form.indent * level if form.indent else ""
    before = brackets[0] + line + form.indent
    place = None
    for place, (name, item) in enumerate(items):
        parts.append(before)
        before = form.comma + line + form.indent
        if name is not None:
            parts += (_quoted(name), form.colon)
        try:
            _write(item, parts, level + 1, form)
        except Unkept as error:
            error.path.append(str(place) if name is None else name)
            raise
    parts.append(brackets if place is None else line + brackets[1])


def _name(name: Any, form: _Form) -> str:
    if isinstance(name, str):
        return name
    if form.strict:
        raise Unkept(f"a name in an object is a {type(name).__name__}, not text")
    return str(name)


def _too_deep() -> Unkept:
    return Unkept(f"it is nested deeper than {DEPTH_MAX} levels")


def _quoted(text: str) -> str:
    # half a character has no UTF-8: it stays the escape that it was
    if not text.isascii() and _HALVES.search(text):
        return encode_basestring_ascii(text)
    return encode_basestring(text)


def _harmless(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


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


def _scalar(value: Any, form: _Form) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int):
        return _digits(value)
    if isinstance(value, float | Decimal):
        if math.isfinite(value):
            return repr(float(value)) if isinstance(value, float) else str(value)
        if form.strict:
            raise Unkept(f"JSON has no {value}")
        return _quoted(str(value))
    raise Unkept(f"JSON has nothing for a {type(value).__name__}")
