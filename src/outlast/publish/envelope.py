"""The envelope: the headers a row is stored with.

In: the user's headers, what the encoder says, the keywords. Out: one dict of JSON values, or an
error that names the header. Pure. What is let through here comes back unchanged on every database.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from outlast.model.headers import (
    CONTENT_TYPE,
    CORRELATION_ID,
    EVENT_TYPE,
    MESSAGE_ID,
    RESERVED_PREFIX,
)

HEADERS_BYTES_MAX = 1024 * 1024
"""Of the headers as JSON text: they are read with every claim."""

NESTING_MAX = 64
"""Levels of lists and dicts in one header."""

ID_CHARS_MAX = 255


def envelope(
    headers: Mapping[str, Any] | None,
    *,
    content_type: str | None,
    correlation_id: str | None,
    new_correlation_id: Callable[[], str],
    message_id: str | None = None,
    event_type: str | None = None,
) -> dict[str, Any]:
    """The user's headers, the encoder's content type, a correlation id and the reserved headers."""
    merged = _user_headers(headers)
    if content_type:
        given = merged.get(CONTENT_TYPE, content_type)
        if given != content_type:
            raise ValueError(
                f"headers[{CONTENT_TYPE!r}] is {given!r}, but the body is encoded as "
                f"{content_type!r}; leave the header out, or pass the body as bytes",
            )
        merged[CONTENT_TYPE] = content_type
    merged[CORRELATION_ID] = _correlation(
        merged.get(CORRELATION_ID), correlation_id, new_correlation_id
    )
    for name, keyword, value in (
        (MESSAGE_ID, "message_id", message_id),
        (EVENT_TYPE, "event_type", event_type),
    ):
        if value is not None:
            merged[name] = check_id(keyword, value)
    _check_size(merged)
    return merged


def _user_headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
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
        _check_text(f"header name {name!r}", name)
        if name.lower().startswith(RESERVED_PREFIX):
            raise ValueError(
                f"header {name!r} is reserved: names that begin with {RESERVED_PREFIX!r} belong to "
                "outlast; use the keywords message_id and event_type, or another name",
            )
        merged[name] = _json_value(f"header {name!r}", value, 0)
    return merged


def _correlation(header: Any, keyword: str | None, new: Callable[[], str]) -> Any:
    if keyword is None:
        return new() if header is None else header
    if not isinstance(keyword, str):
        raise TypeError(
            f"correlation_id must be a str, got {keyword!r} ({type(keyword).__name__}); "
            "pass str(...) of it",
        )
    _check_text("correlation_id", keyword)
    if header is not None and header != keyword:
        raise ValueError(
            f"headers[{CORRELATION_ID!r}] is {header!r}, but the keyword correlation_id is "
            f"{keyword!r}; pass one of them",
        )
    return keyword


def check_id(keyword: str, value: object) -> str:
    """The value of `message_id` or `event_type`."""
    if not isinstance(value, str):
        raise TypeError(f"{keyword} must be a str, got {value!r} ({type(value).__name__})")
    if not value:
        raise ValueError(f"{keyword} must be non-empty; leave it out to have none")
    if len(value) > ID_CHARS_MAX:
        raise ValueError(f"{keyword} must have at most {ID_CHARS_MAX} characters, got {len(value)}")
    _check_text(keyword, value)
    return value


def _json_value(where: str, value: Any, level: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        _check_text(where, value)
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
    _check_text(f"{where}, key {key!r}", key)
    return str(key)


def _check_text(where: str, text: str) -> None:
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


def _check_size(headers: dict[str, Any]) -> None:
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
