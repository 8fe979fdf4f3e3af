"""The tables as objects: columns, check, indexes, names."""

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import (
    BigInteger,
    DateTime,
    LargeBinary,
    MetaData,
    String,
    Uuid,
    bindparam,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.schema import CreateIndex, CreateTable

from outlast.tables import (
    channel_name,
    make_dlq_table,
    make_outbox_table,
    outbox_autovacuum_ddl,
)
from outlast.tables.instant import Instant, from_text, to_text

PG = postgresql.dialect()
LITE = sqlite.dialect()


def sql(element, dialect=PG):
    return " ".join(str(element.compile(dialect=dialect)).split())


def index_sql(table, dialect=PG):
    return {index.name: sql(CreateIndex(index), dialect) for index in table.indexes}


def test_outbox_has_exactly_its_columns():
    """S0-05: names, types and nullability."""
    table = make_outbox_table(MetaData())
    assert table.name == "outbox"
    shape = {c.name: (sql(c.type), c.nullable) for c in table.c}
    stamp = "TIMESTAMP WITH TIME ZONE"
    assert shape == {
        "id": ("BIGINT", False),
        "queue": ("VARCHAR(255)", False),
        "payload": ("BYTEA", False),
        "headers": ("JSONB", True),
        "attempts_count": ("BIGINT", False),
        "deliveries_count": ("BIGINT", False),
        "created_at": (stamp, False),
        "next_attempt_at": (stamp, False),
        "first_attempt_at": (stamp, True),
        "last_attempt_at": (stamp, True),
        "acquired_at": (stamp, True),
        "acquired_token": ("UUID", True),
        "timer_id": ("VARCHAR(255)", True),
    }
    assert isinstance(table.c.headers.type, JSONB)
    assert isinstance(table.c.acquired_token.type, Uuid)


def test_outbox_indexes_are_partial_on_both_databases():
    table = make_outbox_table(MetaData(), "box")
    for dialect in (PG, LITE):
        assert index_sql(table, dialect) == {
            "box_pending_idx": "CREATE INDEX box_pending_idx ON box (queue, next_attempt_at, id) "
            "WHERE acquired_token IS NULL",
            "box_leased_idx": "CREATE INDEX box_leased_idx ON box (queue, next_attempt_at, id) "
            "WHERE acquired_token IS NOT NULL",
            "box_timer_id_uq": "CREATE UNIQUE INDEX box_timer_id_uq ON box (queue, timer_id) "
            "WHERE timer_id IS NOT NULL",
        }


def test_dlq_columns():
    """S0-03, S0-17, S0-18, S0-19, S0-20, S0-22, S0-24, S0-25, S0-28."""
    table = make_dlq_table(MetaData())
    assert table.name == "outbox_dlq"
    c = table.c
    assert isinstance(c.id.type, BigInteger)
    assert c.id.primary_key
    assert not c.original_id.unique
    assert not c.original_id.nullable
    assert isinstance(c.payload.type, LargeBinary)
    assert isinstance(c.deliveries_count.type, BigInteger)
    assert sql(c.failure_reason.type) == "VARCHAR(64)"
    assert isinstance(c.last_exception.type, String)
    assert c.failed_at.server_default is not None
    assert not table.foreign_keys
    needed = {x.name for x in c if not x.nullable and x.server_default is None}
    assert needed == {
        *("id", "original_id", "queue", "payload"),
        *("deliveries_count", "created_at", "failure_reason"),
    }


def test_dlq_indexes_spell_states_as_literals():
    """S0-27: a bound state would read the whole index."""
    found = index_sql(make_dlq_table(MetaData(), "d"), LITE)
    active = "WHERE state IN ('open','needs_review','escalated')"
    assert found == {
        "d_queue_failed_idx": "CREATE INDEX d_queue_failed_idx ON d (queue, failed_at)",
        "d_latest_idx": f"CREATE INDEX d_latest_idx ON d (last_failure_at, id) {active}",
        "d_queue_latest_idx": "CREATE INDEX d_queue_latest_idx ON d (queue, last_failure_at, id) "
        + active,
        "d_group_idx": f"CREATE INDEX d_group_idx ON d (fingerprint, last_failure_at) {active}",
        "d_replaying_idx": "CREATE INDEX d_replaying_idx ON d (state_changed_at, id) "
        "WHERE state = 'replaying'",
        "d_purge_idx": "CREATE INDEX d_purge_idx ON d (purge_after) WHERE purge_after IS NOT NULL",
        "d_message_idx": "CREATE INDEX d_message_idx ON d (message_id)",
        "d_original_idx": "CREATE INDEX d_original_idx ON d (original_id)",
    }
    assert index_sql(make_dlq_table(MetaData(), "d"), PG) == found


def test_sqlite_ddl_counts_ids_and_stores_microseconds():
    ddl = sql(CreateTable(make_outbox_table(MetaData())), LITE)
    assert "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT" in ddl
    assert "DEFAULT (strftime('%Y-%m-%d %H:%M:%f000','now'))" in ddl
    assert "CONSTRAINT outbox_lease_ck CHECK" in ddl


def test_a_naming_convention_does_not_rename_ours():
    convention = {"ck": "ck_%(table_name)s_%(constraint_name)s", "ix": "ix_%(column_0_label)s"}
    table = make_outbox_table(MetaData(naming_convention=convention))
    ddl = sql(CreateTable(table))
    assert "CONSTRAINT outbox_lease_ck CHECK" in ddl
    assert "outbox_pending_idx" in index_sql(table)


@pytest.mark.parametrize(
    ("make", "suffix"), [(make_outbox_table, "_timer_id_uq"), (make_dlq_table, "_queue_failed_idx")]
)
def test_identifiers_of_63_bytes_fit_and_64_do_not(make, suffix):
    """F-D11: bytes are counted, not characters."""
    fits = "é" * ((63 - len(suffix)) // 2)
    assert make(MetaData(), fits).name == fits
    longest = "x" * (63 - len(suffix))
    assert make(MetaData(), longest).name == longest
    for name in (longest + "x", fits + "é"):
        with pytest.raises(ValueError, match=r"too long.*63 bytes"):
            make(MetaData(), name)


@pytest.mark.parametrize("name", ["", "a\x00b", "\ud800"])
def test_names_no_database_takes(name):
    with pytest.raises(ValueError, match="table_name"):
        make_outbox_table(MetaData(), name)


def test_a_name_that_is_no_text():
    with pytest.raises(TypeError, match="table_name must be a str, got int"):
        make_outbox_table(MetaData(), 7)


def test_channel_leaves_the_schema_out():
    table = make_outbox_table(MetaData(schema="elsewhere"), "box")
    assert table.schema == "elsewhere"
    assert channel_name(table) == channel_name("box") == "outbox_box"


def test_instants_are_utc_text_on_sqlite():
    kind = Instant()
    plus_two = datetime(2026, 1, 2, 1, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    assert kind.process_bind_param(plus_two, LITE) == datetime(2026, 1, 1, 23, 0, 0, 5)
    assert to_text(plus_two) == "2026-01-01 23:00:00.000005"
    assert from_text(to_text(plus_two)) == plus_two
    back = kind.process_result_value(datetime(2026, 1, 1, 23), LITE)
    assert back == datetime(2026, 1, 1, 23, tzinfo=UTC)
    for refuse in (to_text, lambda value: kind.process_bind_param(value, LITE)):
        with pytest.raises(ValueError, match="timezone-aware"):
            refuse(datetime(2026, 1, 1))
    assert kind.process_bind_param(None, LITE) is kind.process_result_value(None, LITE) is None


def test_instant_is_a_datetime_to_sqlalchemy():
    assert isinstance(Instant().dialect_impl(PG).impl_instance, DateTime)
    assert sql(select(bindparam("at", type_=Instant))).startswith("SELECT")
    table = pickle.loads(pickle.dumps(make_outbox_table(MetaData())))
    assert isinstance(table.c.created_at.type, Instant)


def test_autovacuum_ddl():
    assert outbox_autovacuum_ddl() == (
        'ALTER TABLE "outbox" SET (autovacuum_vacuum_scale_factor = 0, '
        "autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0, "
        "autovacuum_vacuum_insert_threshold = 1000)"
    )
    full = outbox_autovacuum_ddl(
        'o"x', schema="S", vacuum_threshold=5, vacuum_cost_delay=2, vacuum_cost_limit=300
    )
    assert full.startswith('ALTER TABLE "S"."o""x" SET (')
    assert "autovacuum_vacuum_threshold = 5" in full
    assert full.endswith("autovacuum_vacuum_cost_delay = 2, autovacuum_vacuum_cost_limit = 300)")


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"vacuum_threshold": "1); DROP TABLE x"}, TypeError, "vacuum_threshold must be an int"),
        ({"insert_threshold": True}, TypeError, "insert_threshold"),
        ({"vacuum_cost_limit": -1}, ValueError, "vacuum_cost_limit must be >= 0"),
        ({"table_name": ""}, ValueError, "table_name"),
    ],
)
def test_autovacuum_ddl_refuses(kwargs, error, text):
    with pytest.raises(error, match=text.replace(")", r"\)")):
        outbox_autovacuum_ddl(**kwargs)
