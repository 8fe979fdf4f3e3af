"""JSON of documents: numbers stay as they were written, and the one line moves no cursor.

In: bytes or text of strangers. Out: values, or a `ValueError` for what is not strict JSON: no NaN,
no key twice, no nesting without end. `write_json` gives `1.10` back as `1.10`.
"""

import json
from collections.abc import Mapping
from typing import Any

from outlast.policy.exact_json import DEPTH_MAX, ExactFloat

_DIGITS_MAX = 4000


def read_json(data: bytes | str) -> Any:
    """The value; a `ValueError` says why there is none."""
    value, end = read_json_at(_text(data), 0)
    if _text(data)[end:].strip(" \t\r\n"):
        raise ValueError("something follows the JSON value")
    return value


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at or after this place, and where it ends."""
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if is_deep(value):
        raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
    return value, end


def write_json(value: Any) -> str:
    """One line; what is not printable is spelled as JSON spells it."""
    text = _written(value)
    return text if text.isprintable() else "".join(map(_harmless, text))


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode()


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # whoever reads such an object sees only a part of what it says
        raise ValueError("an object has the same key twice")
    return found


def _whole(digits: str) -> int | ExactFloat:
    if len(digits) > _DIGITS_MAX:
        # most readers would stumble over it
        raise ValueError(f"a number has {len(digits)} digits; {_DIGITS_MAX} are read")
    return ExactFloat(digits) if digits == "-0" else int(digits)


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(
    parse_float=ExactFloat,
    parse_int=_whole,
    parse_constant=_refused,
    object_pairs_hook=_pairs,
)


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


def _written(value: Any) -> str:
    if isinstance(value, ExactFloat):
        return value.written
    if isinstance(value, Mapping):
        items = (
            f"{json.dumps(str(k), ensure_ascii=False)}: {_written(v)}" for k, v in value.items()
        )
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _harmless(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
