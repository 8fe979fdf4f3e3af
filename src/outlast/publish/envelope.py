"""The envelope: the headers a row is stored with.

In: the user's headers, what the encoder says, the keywords. Out: one dict of JSON values, or an
error that names the header. Pure. What is let through here comes back unchanged on every database.
"""

from collections.abc import Callable, Mapping
from typing import Any

from outlast.model.headers import (
    CONTENT_TYPE,
    CORRELATION_ID,
    EVENT_TYPE,
    MESSAGE_ID,
)
from outlast.policy.header_values import check_size, check_text, user_headers

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
    merged = user_headers(headers)
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
    check_size(merged)
    return merged


def _correlation(header: Any, keyword: str | None, new: Callable[[], str]) -> Any:
    if keyword is None:
        return new() if header is None else header
    if not isinstance(keyword, str):
        raise TypeError(
            f"correlation_id must be a str, got {keyword!r} ({type(keyword).__name__}); "
            "pass str(...) of it",
        )
    check_text("correlation_id", keyword)
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
    check_text(keyword, value)
    return value
