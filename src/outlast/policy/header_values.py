"""Headers of users: what may be stored with a message.

In: headers as somebody gave them. Out: JSON values, or an error that names the header. What is let
through here comes back unchanged on every database.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from outlast.model.headers import RESERVED_PREFIX

HEADERS_BYTES_MAX = 1024 * 1024
"""Of the headers as JSON text: they are read with every claim."""

NESTING_MAX = 64
"""Levels of lists and dicts in one header."""


def user_headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of the headers; the reserved names are refused."""
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping or None, got {type(headers).__name__}")
    merged = {}
    for name, value in headers.items():
        if not isinstance(name, str):
            raise TypeError(
                f"header names must be str, got {name!r} ({type(name).__name__}); "
                f"write it as {str(name)!r}",
            )
        check_text(f"header name {name!r}", name)
        if name.lower().startswith(RESERVED_PREFIX):
            raise ValueError(
                f"header {name!r} is reserved: names that begin with {RESERVED_PREFIX!r} belong to "
                "outlast; use the keywords message_id and event_type, or another name",
            )
        merged[name] = _json_value(f"header {name!r}", value, 0)
    return merged


def _json_value(where: str, value: Any, level: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        check_text(where, value)
        return str(value)
    if isinstance(value, int):
        return _whole_number(where, value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value!r}, which JSON cannot hold; pass None or a string")
        return float(value)
    if level == NESTING_MAX:
        raise ValueError(f"{where} is nested deeper than {NESTING_MAX} levels; flatten it")
    if isinstance(value, list):
        return [_json_value(where, item, level + 1) for item in value]
    if isinstance(value, dict):
        return {
            _inner_name(where, key): _json_value(where, inner, level + 1)
            for key, inner in value.items()
        }
    raise TypeError(
        f"{where} has a value of type {type(value).__name__}, which JSON does not keep; use str, "
        "int, float, bool, None, or a list or dict of them",
    )


def _whole_number(where: str, value: int) -> int:
    try:
        return int(str(int(value)))
    except ValueError:
        raise ValueError(f"{where} is an int of too many digits; pass it as a string") from None


def _inner_name(where: str, key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(
            f"{where} has the key {key!r} ({type(key).__name__}), which JSON does not keep; "
            f"write it as {str(key)!r}",
        )
    check_text(f"{where}, key {key!r}", key)
    return str(key)


def check_text(where: str, text: str) -> None:
    """Refuse a text that a database cannot store."""
    if "\x00" in text:
        raise ValueError(f"{where} contains a NUL character, which databases cannot store")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{where} contains the lone surrogate {text[error.start]!r}, which is no text; "
                "decode it with errors='replace'",
            ) from None


def check_size(headers: dict[str, Any]) -> None:
    """Refuse headers that are too large together."""
    length = 0
    for name, value in headers.items():
        if value.__class__ is not str:
            break
        length += len(name) + len(value)
    else:
        # a character takes at most six as JSON, twelve outside of the basic plane
        if length * 12 < HEADERS_BYTES_MAX // 2:
            return
    size = len(json.dumps(headers, allow_nan=False))
    if size > HEADERS_BYTES_MAX:
        largest = max(headers, key=lambda name: len(json.dumps(headers[name])))
        raise ValueError(
            f"headers take {size} bytes as JSON and may take {HEADERS_BYTES_MAX}; the largest is "
            f"{largest!r}: put it into the body",
        )
