"""The values of a document that comes in, each checked before anything is made of it.

In: members of JSON objects that a stranger wrote. Out: values that every database stores, or a
`NotImportable` that names the member.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from outlast.policy.describe import bounded_bytes, bounded_chars
from outlast.policy.exact_json import write_json
from outlast.policy.header_values import check_text
from outlast.policy.names import check_name

AHEAD_MAX = timedelta(days=1)
"""How far a clock may be ahead of the database's."""

_ORIGIN_CHARS_MAX = 8192
_SHOWN_CHARS_MAX = 60

_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?"
    r" ?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})?"
)
_CATEGORY = re.compile(r"[A-Z][A-Z0-9_]{0,63}")


class NotImportable(ValueError):  # noqa: N818 - it reads as what it says
    """Why a document is refused. `remedy` is the next step."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


def member(holder: Mapping[str, Any], name: str, kind: type) -> Any:
    """A member that must be there, of this kind."""
    if name not in holder:
        raise NotImportable(f"{name} is missing")
    if not isinstance(holder[name], kind):
        raise NotImportable(f"{name} is {kind_of(holder[name])}")
    return holder[name]


def name_of(name: str, value: Any, most: int, *, needed: bool = False) -> str | None:
    """A text with a length."""
    if value is None and not needed:
        return None
    if not isinstance(value, str):
        raise NotImportable(f"{name} is {kind_of(value)}, not text")
    if not value or len(value) > most:
        raise NotImportable(f"{name} has {len(value)} characters; it has 1 to {most}")
    return check_name(name, value)


def category_of(value: Any) -> str | None:
    """The kind of an error."""
    found = name_of("failure_category", value, 64)
    if found is not None and _CATEGORY.fullmatch(found) is None:
        raise NotImportable(f"failure_category is {shown(found)}; it is a word such as EXTERNAL")
    return found


def number_of(
    holder: Mapping[str, Any], name: str, most: int, *, needed: bool = False
) -> int | None:
    """A number that is no truth value."""
    value = holder.get(name)
    if value is None and not needed:
        return None
    if type(value) is not int or not 0 <= value <= most:
        raise NotImportable(f"{name} is {shown(value)}; it is a number from 0 to {most}")
    return value


def time_of(
    holder: Mapping[str, Any], name: str, now: datetime, *, needed: bool = False
) -> datetime | None:
    """An instant in UTC that is not still to come."""
    value = holder.get(name)
    if value is None and not needed:
        return None
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        raise NotImportable(f"{name} is {shown(value)}; a time is 2026-11-19T10:00:00Z")
    try:
        read = datetime.fromisoformat(re.sub(r" ([Zz+-])", r"\1", value).upper())
        found = (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise NotImportable(f"{name} is {shown(value)}, an impossible time") from None
    if found > now + AHEAD_MAX:
        raise NotImportable(f"{name} is {shown(value)}, which is still to come")
    return found


def text_of(holder: Mapping[str, Any], name: str, *, in_bytes: bool = True) -> str | None:
    """A text of strangers, cut where ours are."""
    value = holder.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise NotImportable(f"{name} is {kind_of(value)}, not text")
    return bounded_bytes(value) if in_bytes else bounded_chars(value)


def origin_of(value: Any) -> str | None:
    """Where a letter of another broker was."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _ORIGIN_CHARS_MAX:
        raise NotImportable(f"origin is no text of at most {_ORIGIN_CHARS_MAX} characters")
    check_text("origin", value)
    return value


_KINDS = {dict: "an object", list: "an array", str: "text", bool: "true or false"}


def kind_of(value: Any) -> str:
    """What a value is, for people."""
    return "missing" if value is None else _KINDS.get(type(value), "a number")


def shown(value: Any) -> str:
    """A value as it may stand in a message."""
    text = ascii(value) if isinstance(value, str) else write_json(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"


def sentence(error: Exception) -> str:
    """An error on one line."""
    return str(error).replace("\n", " ")[:300]
