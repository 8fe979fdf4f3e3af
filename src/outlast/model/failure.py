"""What is kept of an exception: bounded text that any database stores, by `policy.describe`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """`last_exception` is None when a renderer dropped the text or there was no exception."""

    exception_type: str | None = None
    last_exception: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    stack_trace: str | None = None
    category: str | None = None
    fingerprint: str | None = None
    http_status: int | None = None
