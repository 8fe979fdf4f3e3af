"""The documents of Keymate's routes, in its spelling.

In: nothing. Out: models, for OpenAPI.
"""

from pydantic import BaseModel, Field

from outlast.api.schemas import HistoryEntry, Json, Maybe


class DltMessage(BaseModel):
    """A dead letter in Keymate's words. `endpoint` is the queue."""

    id: int
    messageId: Maybe  # noqa: N815 - Keymate's spelling, here and below
    eventType: Maybe  # noqa: N815
    subscriberId: Maybe  # noqa: N815
    endpoint: str
    payload: Json
    errorCode: Maybe  # noqa: N815
    errorMessage: Maybe  # noqa: N815
    errorCause: Maybe  # noqa: N815
    status: str = Field(examples=["FAILED"])
    resolution: Maybe
    createdAt: Maybe  # noqa: N815
    processedAt: Maybe  # noqa: N815
    firstFailedAt: Maybe  # noqa: N815
    lastFailedAt: Maybe  # noqa: N815
    attempts: int | None


class DltList(BaseModel):
    """A page, the newest failure first."""

    items: list[DltMessage]
    total: int
    page: int
    size: int
    filter: str


class DltDetail(DltMessage):
    """With its history; null: not recorded."""

    history: list[HistoryEntry] | None


class DltResult(BaseModel):
    """What became of one message."""

    messageId: Maybe  # noqa: N815
    outcome: str = Field(examples=["replayed"])
    error: str | None = None


class DltReplayed(BaseModel):
    """`requested` letters and ids; each has a result."""

    requested: int
    replayed: int
    failed: int
    skipped: int
    results: list[DltResult]
    more: bool = False
    cursor: str | None = None
