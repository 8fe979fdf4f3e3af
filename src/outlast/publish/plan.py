"""A plan: one publish, checked, encoded, bounded and frozen, before the database hears of it.

In: what `arguments` and `envelope` let through, and encoded bodies. Out: a `Plan` for `run`. Pure.
An error about one message of a batch says which.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn

from outlast.model.headers import CONTENT_TYPE
from outlast.publish.arguments import SessionOrConnection, TimerConflict

__all__ = ["BODY_BYTES_MAX", "Plan", "Row", "SessionOrConnection", "TimerConflict"]

BODY_BYTES_MAX = 64 * 1024 * 1024
"""Of one encoded body. A worker holds several at once; larger things belong into object storage."""

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Row:
    """One message: the bytes and headers as they are stored."""

    payload: bytes
    headers: dict[str, Any] | None

    def __post_init__(self) -> None:
        check_body(self.payload, self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One publish. Its arguments went through `check_arguments`."""

    queue: str
    rows: tuple[Row, ...]
    activate_in: timedelta | None = None
    activate_at: datetime | None = None
    timer_id: str | None = None
    timer_conflict: TimerConflict = "ignore"

    @property
    def size_bytes(self) -> int:
        """Of all bodies."""
        return sum(len(row.payload) for row in self.rows)


def batch_rows(bodies: Iterable[tuple[bytes, dict[str, Any] | None]]) -> tuple[Row, ...]:
    """The rows of a batch. `bodies` may be lazy: what it raises is named by its place, too."""
    rows: list[Row] = []
    source = iter(bodies)
    while True:
        with naming_place(len(rows)):
            try:
                payload, headers = next(source)
            except StopIteration:
                return tuple(rows)
            rows.append(Row(payload, headers))


@contextmanager
def naming_place(place: int) -> Iterator[None]:
    """Errors of one message of a batch say its index."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"message {place} of the batch (counted from 0): {error}") from error


def check_body(payload: object, headers: Mapping[str, Any] | None) -> None:
    """A body that can be stored, and read back by whoever trusts its content type."""
    if not isinstance(payload, bytes):
        raise TypeError(f"the encoded body must be bytes, got {type(payload).__name__}")
    if len(payload) > BODY_BYTES_MAX:
        raise ValueError(
            f"the encoded body has {len(payload)} bytes and may have {BODY_BYTES_MAX}; store it "
            "elsewhere and publish a reference",
        )
    is_json = str((headers or {}).get(CONTENT_TYPE)).startswith(JSON_TYPE)
    if is_json and (b"NaN" in payload or b"Infinity" in payload):
        _refuse_non_numbers(payload)


def _refuse_non_numbers(payload: bytes) -> None:
    def refuse(constant: str) -> NoReturn:
        raise _NotJson(constant)

    try:
        json.loads(payload, parse_constant=refuse)
    except _NotJson as found:
        raise ValueError(
            f"the body contains {found.constant}, which is not JSON and which other languages "
            "cannot read; replace it by null or a string",
        ) from None
    except (ValueError, RecursionError):
        # bytes that claim to be JSON and are not: stored as they are, as any bytes
        return


class _NotJson(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, constant: str) -> None:
        super().__init__(constant)
        self.constant = constant
