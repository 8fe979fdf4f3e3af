"""The names of the envelope: what FastStream's peers write, and what we reserve."""

from collections.abc import Mapping
from typing import Any

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"

RESERVED_PREFIX = "outlast-"
MESSAGE_ID = "outlast-message-id"
EVENT_TYPE = "outlast-event-type"
REPLAY = "outlast-replay"
REPLAY_COUNT = "outlast-replay-count"


def visible(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """The headers as a handler sees them: without the reserved ones."""
    if not headers:
        return {}
    return {k: v for k, v in headers.items() if not k.startswith(RESERVED_PREFIX)}


def message_id(headers: Mapping[str, Any] | None, row_id: int) -> str:
    """The id that lives as long as the message: the reserved header, else the first row's id."""
    return str((headers or {}).get(MESSAGE_ID) or row_id)
