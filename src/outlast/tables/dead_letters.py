"""`make_dlq_table`: the dead letters, on the same MetaData as the outbox.

The first eleven columns are those of faststream-outbox. All others may be absent from a table that
exists already; each is nullable or has a default, so that whoever does not know it can insert.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.schema import conv

from outlast.tables.instant import Instant, now
from outlast.tables.names import check_identifiers
from outlast.tables.outbox import headers_type, key_type, partial

ACTIVE_STATES = "state IN ('open','needs_review','escalated')"

REQUIRED_COLUMNS = (
    "id",
    "original_id",
    "queue",
    "payload",
    "headers",
    "deliveries_count",
    "created_at",
    "failed_at",
    "failure_reason",
    "last_exception",
)
"""What every dead-letter table has; everything else is optional."""


def make_dlq_table(metadata: MetaData, table_name: str = "outbox_dlq") -> Table:
    """The dead-letter table, attached to `metadata`, in the schema of `metadata`."""
    suffixes = (
        "queue_failed",
        "latest",
        "queue_latest",
        "group",
        "replaying",
        "purge",
        "message",
        "original",
    )
    failed, latest, queue_latest, group, replaying, purge, message, original = (
        f"{table_name}_{suffix}_idx" for suffix in suffixes
    )
    check_identifiers(table_name, [failed, queue_latest])
    return Table(
        table_name,
        metadata,
        Column("id", key_type(), primary_key=True, autoincrement=True),
        Column("original_id", BigInteger, nullable=False),
        Column("queue", String(255), nullable=False),
        Column("payload", LargeBinary, nullable=False),
        Column("headers", headers_type()),
        Column("deliveries_count", BigInteger, nullable=False),
        Column("created_at", Instant, nullable=False),
        Column("failed_at", Instant, nullable=False, server_default=now()),
        Column("failure_reason", String(64), nullable=False),
        Column("last_exception", String),
        *(
            Column(name, String(255))
            for name in ("timer_id", "message_id", "event_type", "subscriber")
        ),
        *(Column(name, String(255)) for name in ("consumer_instance", "consumer_version")),
        *(Column(name, String(255)) for name in ("fingerprint", "owner")),
        *(Column(name, String(64)) for name in ("failure_category", "policy_version", "triage")),
        Column("error_type", String(255)),
        Column("error_message", Text),
        Column("stack_trace", Text),
        Column("http_status", Integer),
        *(
            Column(name, Integer, server_default="0")
            for name in ("attempts_count", "total_deliveries", "revision")
        ),
        *(
            Column(name, Integer, nullable=False, server_default="0")
            for name in ("replay_count", "replays_at_reopen")
        ),
        *(
            Column(name, Instant, server_default=now())
            for name in ("first_failure_at", "last_failure_at", "state_changed_at")
        ),
        Column("purge_after", Instant),
        Column("state", String(32), nullable=False, server_default="open"),
        Column("replayed_as", BigInteger),
        Column("resolution", Text),
        Column("origin", Text),
        Index(conv(failed), "queue", "failed_at"),
        partial(latest, ACTIVE_STATES, "last_failure_at", "id"),
        partial(queue_latest, ACTIVE_STATES, "queue", "last_failure_at", "id"),
        partial(group, ACTIVE_STATES, "fingerprint", "last_failure_at"),
        partial(replaying, "state = 'replaying'", "state_changed_at", "id"),
        partial(purge, "purge_after IS NOT NULL", "purge_after"),
        Index(conv(message), "message_id"),
        Index(conv(original), "original_id"),
        sqlite_autoincrement=True,
    )


DLQ_COLUMNS: tuple[str, ...] = tuple(make_dlq_table(MetaData()).c.keys())
"""Every column of a dead-letter table of ours."""
