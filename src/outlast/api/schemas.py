"""The documents of the API, for OpenAPI: what a reader may count on. More members may come.

In: nothing. Out: models. Null is "not recorded".
"""

from typing import Any

from pydantic import BaseModel, Field

Json = Any
Maybe = str | None


class Letter(BaseModel):
    """One dead letter of a list. Null is "not recorded"."""

    dlq_id: int
    original_id: int
    stream: str
    consumer_group: Maybe
    dlq_stream: str = Field(examples=["orders:dlq"])
    failure_reason: str = Field(examples=["retry_terminal"])
    failure: str = Field(examples=["retry_terminal: KeyError: 'isbn'"])
    failed_at: Maybe = Field(description="The last failure.", examples=["2026-11-20T10:00:00Z"])
    retry_count: int | None
    queue: str
    subscriber: Maybe
    state: Maybe
    status: str = Field(examples=["FAILED"])
    failure_category: Maybe
    error_type: Maybe
    error_message: Maybe
    message_id: Maybe
    event_type: Maybe
    consumer_instance: Maybe
    consumer_version: Maybe
    fingerprint: Maybe
    owner: Maybe
    triage: Maybe
    resolution: Maybe
    replay_count: int | None
    total_deliveries: int | None
    deliveries_count: int
    first_failure_at: Maybe
    last_failure_at: Maybe
    created_at: Maybe


class LetterList(BaseModel):
    """`entries` and `total_count` are Protean's names of `items` and `total`."""

    items: list[Letter]
    entries: list[Letter]
    total: int
    total_count: int
    total_is: str = Field(examples=["exact"])
    more: bool
    cursor: str | None = None
    filter: str = Field(description="The filter as it was read; times are UTC.")
    notes: list[str] = Field(default_factory=list)


class Body(BaseModel):
    """About the body of a message; `digest` is that of the stored bytes."""

    kind: str = Field(examples=["json"])
    size: int
    digest: str
    masked: bool
    cut: bool


class ShownBody(Body):
    """The body itself: JSON, or a text, or hexadecimal digits, as `kind` says."""

    value: Json


class HistoryEntry(BaseModel):
    """One act."""

    id: int
    dlq_id: int | None
    at: str
    actor: Maybe
    kind: str = Field(examples=["replayed"])
    reason: Maybe
    request_id: Maybe
    detail: Json


class _Detail(Letter):
    headers: Json
    stack_trace: Maybe
    last_exception: Maybe
    masked: bool
    revealed: bool
    history: list[HistoryEntry] | None
    revisions: list[dict[str, Json]] | None
    next_step: Maybe
    notes: list[str]


class LetterDocument(_Detail):
    """One dead letter whole."""

    payload: ShownBody


class ProteanLetter(_Detail):
    """One dead letter; `payload` is the body, `body` tells about it."""

    payload: Json
    body: Body


class DetailList(BaseModel):
    """Dead letters whole."""

    items: list[LetterDocument]
    total: int
    filter: str


class HistoryList(BaseModel):
    """Null: there is no history table."""

    items: list[HistoryEntry] | None
    total: int


class QueueStats(BaseModel):
    """One queue and category."""

    queue: str
    failure_category: Maybe
    depth: int
    oldest_age_seconds: float | None
    arrivals_hour: int
    arrivals_day: int


class StatsDocument(BaseModel):
    """The numbers that `/metrics` shows, too."""

    now: str
    depth: int
    oldest_at: Maybe
    oldest_age_seconds: float | None
    queues: list[QueueStats]
    states: dict[str, int]
    causes: list[dict[str, Json]]
    filter: str


class Group(BaseModel):
    """Dead letters with one fingerprint."""

    fingerprint: Maybe
    count: int
    failure_category: Maybe
    error_type: Maybe
    example: Maybe
    example_id: int
    queues: list[str]
    subscribers: list[str]
    versions: list[str]
    first_seen: str
    last_seen: str
    filter: str
    why: str


class GroupList(BaseModel):
    """The largest first."""

    items: list[Group]
    total: int
    total_is: str = Field(examples=["exact"])
    more: bool
    filter: str


class Result(BaseModel):
    """What became of one letter."""

    dlq_id: int
    outcome: str = Field(examples=["replayed"])
    queue: str | None = None
    row_id: int | None = None
    state: str | None = None
    gate: str | None = None
    reason: str | None = None
    remedy: str | None = None
    waited: str | None = None
    warnings: list[str] = Field(default_factory=list)


class RefusedKind(BaseModel):
    """Letters that one gate refused, and the filter that selects them."""

    gate: str
    count: int
    filter: str
    reason: str


class BulkReplayed(BaseModel):
    """`more`: go on with `cursor`, and the same run goes on."""

    replayed: int
    skipped: int
    failed: int
    refused: list[RefusedKind]
    results: list[Result]
    left_out: list[dict[str, Json]] = Field(default_factory=list)
    by_queue: dict[str, int] = Field(default_factory=dict)
    dry_run: bool = False
    more: bool = False
    cursor: str | None = None
    status: str = "ok"
    target_stream: str | None = None


class OneReplayed(Result):
    """`replayed` is false for a dry run."""

    status: str = Field(examples=["ok"])
    replayed: bool
    target_stream: str
    dry_run: bool = False


class Changed(BaseModel):
    """The count has the name of the verb: `purged`, `restored`, `marked`."""

    status: str = Field(examples=["ok"])
    skipped: int
    failed: int
    results: list[Result]
    dry_run: bool = False


class Purged(Changed):
    """`more`: go on with `cursor`, and the same run goes on."""

    purged: int
    more: bool = False
    cursor: str | None = None


class OneChanged(Result):
    """`purged`, `restored` or `marked` is true."""

    status: str = Field(examples=["ok"])
    dry_run: bool = False


class Edited(BaseModel):
    """A revision; `diff` shows it, masked."""

    status: str = Field(examples=["ok"])
    dlq_id: int
    revision: int | None
    digest: Maybe
    etag: str
    diff: list[str]
    warnings: list[str]


class Imported(BaseModel):
    """What became of each document."""

    status: str = Field(examples=["ok"])
    imported: int
    skipped: int
    failed: int
    results: list[dict[str, Json]]


class Row(BaseModel):
    """One live message."""

    id: int
    queue: str
    state: str = Field(examples=["retrying"])
    attempts_count: int
    deliveries_count: int
    timer_id: Maybe
    message_id: str
    letter_id: int | None = Field(description="The dead letter that it replays.")
    created_at: Maybe
    next_attempt_at: Maybe


class RowList(BaseModel):
    """`after` goes on, if there are more."""

    items: list[Row]
    total: int
    total_is: str = Field(examples=["exact"])
    after: int | None
    filter: str


class RowWhole(Row):
    """One live message with its body."""

    headers: Json
    payload: ShownBody


class RowResult(BaseModel):
    """What became of one row."""

    row_id: int
    outcome: str = Field(examples=["recalled"])
    queue: str | None = None
    dlq_id: int | None = None
    reason: str | None = None


class RowChanged(RowResult):
    """One row that was changed."""

    status: str = Field(examples=["ok"])


class RowsChanged(BaseModel):
    """What became of each row."""

    status: str = Field(examples=["ok"])
    results: list[RowResult]


class SubscriptionList(BaseModel):
    """Queues and handlers that are known. `recorded` is false where there is no worker table."""

    items: list[dict[str, Json]]
    total: int
    more: bool
    recorded: bool


class Worker(BaseModel):
    """A worker as it reported itself."""

    instance: str
    version: Maybe
    queues: list[str]
    started_at: Maybe
    seen_at: Maybe


class WorkerList(BaseModel):
    """`recorded` is false where there is no worker table."""

    items: list[Worker]
    total: int
    recorded: bool


class Status(BaseModel):
    """`ok`, or what is wrong."""

    status: str = Field(examples=["ok"])


class Health(Status):
    """The items are told to whoever has a token."""

    items: list[str] = Field(default_factory=list)
    advice: list[str] = Field(default_factory=list)
