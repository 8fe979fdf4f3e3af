"""`validate_schema` and the questions of a start, on live tables that drifted."""

import logging

import pytest
from sqlalchemy import MetaData, text
from sqlalchemy.schema import CreateTable

from outlast.model.errors import SchemaError
from outlast.stores.schema import validate_schema
from outlast.stores.schema.conditions import enforces_lease, same_predicate
from outlast.stores.schema.types import affinity
from outlast.tables import make_dlq_table, make_outbox_table, outbox_autovacuum_ddl
from outlast.tables.dead_letters import REQUIRED_COLUMNS

METADATA = MetaData()
OUTBOX = make_outbox_table(METADATA)
DLQ = make_dlq_table(METADATA)

LEASE = "(acquired_token IS NULL) = (acquired_at IS NULL)"


def drift(database, *statements, table=OUTBOX, dlq=DLQ, **kw):
    """Create both tables, change them, validate; the error's text, or the advice."""

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
        for statement in statements:
            async with engine.begin() as connection:
                await connection.execute(text(statement))
        try:
            return await validate_schema(engine, table, dlq, **kw)
        except SchemaError as error:
            return str(error)

    return database.run(body)


def rebuilt(table, *changes):
    """SQLite cannot alter much: make the table anew, its DDL changed."""
    from sqlalchemy.dialects import sqlite

    ddl = str(CreateTable(table).compile(dialect=sqlite.dialect()))
    for old, new in changes:
        assert old in ddl
        ddl = ddl.replace(old, new)
    return f"DROP TABLE {table.name}", ddl.replace(":", r"\:")


def test_our_own_tables_are_right(any_driver):
    """S0-40, S0-42: nothing to say."""
    assert drift(any_driver) == []
    assert drift(any_driver, dlq=None) == []


def test_missing_tables_are_named(database):
    """S0-07, S0-40: both, in one error."""
    told = drift(database, "DROP TABLE outbox", "DROP TABLE outbox_dlq")
    assert told.startswith("Outbox schema mismatch: ")
    assert "table outbox does not exist" in told
    assert "table outbox_dlq does not exist" in told


def test_missing_columns_of_both_tables(database):
    """S0-40, S0-42: drift in one does not hide drift in the other."""
    told = drift(
        database,
        "ALTER TABLE outbox DROP COLUMN first_attempt_at",
        "ALTER TABLE outbox_dlq DROP COLUMN last_exception",
    )
    assert "outbox.first_attempt_at: missing column" in told
    assert "outbox_dlq.last_exception: missing column" in told


def test_missing_indexes_of_both_tables(database):
    """S0-41"""
    told = drift(
        database,
        "DROP INDEX outbox_dlq_queue_failed_idx",
        "DROP INDEX outbox_leased_idx",
    )
    assert "outbox_dlq: index outbox_dlq_queue_failed_idx: missing index" in told
    assert "outbox: index outbox_leased_idx: missing index" in told
    assert "autogenerate" not in told


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            "CREATE INDEX outbox_pending_idx ON outbox (queue, next_attempt_at, id)",
            "outbox_pending_idx: not a partial index",
        ),
        (
            (
                "CREATE INDEX outbox_pending_idx ON outbox (queue, next_attempt_at, id) "
                "WHERE acquired_token IS NOT NULL"
            ),
            "outbox_pending_idx: wrong partial predicate",
        ),
        (
            (
                "CREATE INDEX outbox_pending_idx ON outbox (next_attempt_at, queue, id) "
                "WHERE acquired_token IS NULL"
            ),
            "outbox_pending_idx: covers (next_attempt_at, queue, id)",
        ),
        (
            (
                "CREATE INDEX outbox_timer_id_uq ON outbox (queue, timer_id) "
                "WHERE timer_id IS NOT NULL"
            ),
            "outbox_timer_id_uq: not UNIQUE",
        ),
        (
            (
                "CREATE INDEX outbox_dlq_latest_idx ON outbox_dlq (last_failure_at, id) "
                "WHERE state IN ('open')"
            ),
            "outbox_dlq_latest_idx: wrong partial predicate",
        ),
    ],
)
def test_indexes_that_autogenerate_cannot_see(database, change, finding):
    """F-D08: each is named, with the page that says what to do."""
    name = change.split(" ON ")[0].split()[-1]
    told = drift(database, f"DROP INDEX {name}", change)
    assert finding in told
    assert "#fixing-drift-autogenerate-cant-see" in told


def test_an_index_of_another_name_does_the_same_work(database):
    told = drift(
        database,
        "DROP INDEX outbox_pending_idx",
        "CREATE INDEX mine ON outbox (queue, next_attempt_at, id) WHERE (acquired_token IS NULL)",
        "CREATE INDEX more ON outbox (created_at)",
        "ALTER TABLE outbox ADD COLUMN tenant TEXT",
    )
    assert told == []


def test_older_shapes_are_advice(database, caplog):
    """3.1: tables of earlier releases of faststream-outbox work; what they lack is told."""
    caplog.set_level(logging.INFO, "outlast.schema")
    extra = [column for column in DLQ.c.keys() if column not in (*REQUIRED_COLUMNS, "timer_id")]
    told = drift(
        database,
        "DROP INDEX outbox_pending_idx",
        "CREATE INDEX outbox_pending_idx ON outbox (queue, next_attempt_at) "
        "WHERE acquired_token IS NULL",
        "DROP INDEX outbox_leased_idx",
        "CREATE INDEX outbox_lease_idx ON outbox (queue, acquired_at) "
        "WHERE acquired_token IS NOT NULL",
        *(f"DROP INDEX {i.name}" for i in DLQ.indexes if "queue_failed" not in i.name),
        *(f"ALTER TABLE outbox_dlq DROP COLUMN {column}" for column in extra),
    )
    assert isinstance(told, list)
    assert [advice.split(" has an")[0] for advice in told[:2]] == [
        "outbox: index outbox_leased_idx",
        "outbox: index outbox_pending_idx",
    ]
    assert "optional columns are absent" in told[2]
    assert all(column in told[2] for column in extra)
    assert "timer_id" not in told[2]
    # an index over columns that are absent is not worth a word; of the others, one each
    assert [advice.split(" is absent")[0] for advice in told[3:]] == [
        "outbox_dlq: index outbox_dlq_original_idx"
    ]
    assert caplog.messages == told


def test_the_lease_check_on_postgresql(postgres):
    """F-D08: found by what it says, not by its name."""
    drop = "ALTER TABLE outbox DROP CONSTRAINT outbox_lease_ck"
    missing = drift(postgres, drop)
    assert f"outbox: missing CHECK constraint enforcing {LEASE}" in missing
    assert "#fixing-drift-autogenerate-cant-see" in missing
    add = "ALTER TABLE outbox ADD CONSTRAINT mine CHECK "
    both = (
        "((acquired_token IS NULL AND acquired_at IS NULL) OR "
        "(acquired_token IS NOT NULL AND acquired_at IS NOT NULL))"
    )
    assert drift(postgres, add + both) == []
    drop = "ALTER TABLE outbox DROP CONSTRAINT mine"
    assert (
        drift(postgres, drop, add + "(num_nonnulls(acquired_token, acquired_at) IN (0, 2))") == []
    )
    half = "(acquired_token IS NULL OR acquired_at IS NOT NULL)"
    assert "missing CHECK" in drift(postgres, drop, add + half)


def test_the_lease_check_on_sqlite(sqlite):
    """F-D08"""
    kept = rebuilt(OUTBOX, ("CONSTRAINT outbox_lease_ck CHECK", "CONSTRAINT mine CHECK"))
    drop_indexes = [f"DROP INDEX {index.name}" for index in OUTBOX.indexes]
    assert "missing CHECK" not in drift(sqlite, *drop_indexes, *kept)
    gone = rebuilt(OUTBOX, (f"CHECK ({LEASE})", "CHECK (1)"))
    assert "missing CHECK constraint enforcing" in drift(sqlite, *gone)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            "outbox ALTER queue TYPE varchar(100)",
            "outbox.queue: type mismatch, is character varying(100)",
        ),
        ("outbox ALTER headers TYPE json", "outbox.headers: type mismatch, is json, needs JSONB"),
        ("outbox ALTER attempts_count TYPE integer", "outbox.attempts_count: type mismatch"),
        (
            "outbox ALTER next_attempt_at TYPE timestamptz(0)",
            "outbox.next_attempt_at: type mismatch",
        ),
        (
            "outbox ALTER payload DROP NOT NULL",
            "outbox.payload: nullability mismatch, needs NOT NULL",
        ),
        (
            "outbox_dlq ALTER headers SET NOT NULL",
            "outbox_dlq.headers: nullability mismatch, needs NULL",
        ),
        (
            "outbox_dlq ALTER last_exception TYPE varchar(10)",
            "outbox_dlq.last_exception: type mismatch",
        ),
        ("outbox_dlq ALTER fingerprint TYPE varchar(10)", "outbox_dlq.fingerprint: type mismatch"),
        ("outbox ALTER queue TYPE text", None),
        ("outbox ALTER queue TYPE varchar(300)", None),
        ("outbox_dlq ALTER http_status TYPE bigint", None),
        ("outbox ALTER next_attempt_at DROP DEFAULT", None),
    ],
)
def test_types_and_nullability_on_postgresql(postgres, change, finding):
    """Wider is good; whatever cuts, rounds or refuses is named."""
    told = drift(postgres, f"ALTER TABLE {change}")
    assert told == [] if finding is None else finding in told


def test_types_and_nullability_on_sqlite(sqlite):
    told = drift(
        sqlite,
        *rebuilt(
            OUTBOX,
            ("acquired_token CHAR(32)", "acquired_token NUMERIC"),
            ("payload BLOB NOT NULL", "payload BLOB"),
            ("timer_id VARCHAR(255)", "timer_id TEXT"),
        ),
    )
    assert "outbox.acquired_token: type mismatch, is NUMERIC, needs CHAR(32)" in told
    assert "outbox.payload: nullability mismatch" in told
    assert "timer_id: " not in told


def test_invalid_indexes(postgres):
    """F-D08: left behind by a CREATE INDEX CONCURRENTLY that failed."""

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
            await connection.execute(text("DROP INDEX outbox_timer_id_uq"))
            for _ in range(2):
                await connection.execute(
                    OUTBOX.insert().values(queue="q", payload=b"", timer_id="t")
                )
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(Exception, match="could not create unique index"):
                await connection.execute(
                    text(
                        "CREATE UNIQUE INDEX CONCURRENTLY outbox_timer_id_uq ON outbox "
                        "(queue, timer_id) WHERE timer_id IS NOT NULL"
                    )
                )
        with pytest.raises(SchemaError, match="outbox_timer_id_uq: invalid index"):
            await validate_schema(engine, OUTBOX, DLQ)

    postgres.run(body)


@pytest.mark.parametrize("path", ["of the table", "of the session", "empty"])
def test_schemas_and_search_path(postgres, path):
    """F-D11: found where a statement would find it, and nowhere else."""
    where = postgres.schema if path == "of the table" else None
    metadata = MetaData(schema=where)
    outbox, dlq = make_outbox_table(metadata), make_dlq_table(metadata)

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)

    postgres.run(body)
    if path != "of the session":
        postgres.connect_args = {"server_settings": {"search_path": ""}}

    async def validate(engine):
        return await validate_schema(engine, outbox, dlq)

    if path == "empty":
        with pytest.raises(SchemaError, match="table outbox does not exist"):
            postgres.run(validate)
    else:
        assert postgres.run(validate) == []


def test_quoted_names(database):
    """F-D11"""
    metadata = MetaData()
    name = 'My"Out.Box %s'
    tables = make_outbox_table(metadata, name), make_dlq_table(metadata, name + "_dlq")

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        assert await validate_schema(engine, *tables) == []

    database.run(body)


def test_autovacuum(postgres):
    """1.10: only when asked, and not when the DDL was run."""
    assert drift(postgres) == []
    told = drift(postgres, check_autovacuum=True)
    assert told.startswith("Outbox autovacuum not tuned: outbox: ")
    assert told.count("needs 0") == told.count("is not set,") == 2
    assert told.count("threshold is not set") == 2
    assert drift(postgres, outbox_autovacuum_ddl(), check_autovacuum=True) == []
    half = "ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0.2)"
    told = drift(postgres, half, "DROP INDEX outbox_pending_idx", check_autovacuum=True)
    assert "autovacuum_vacuum_scale_factor is 0.2, needs 0" in told
    assert told.startswith("Outbox schema mismatch: ")


def test_autovacuum_is_no_matter_of_sqlite(sqlite):
    assert drift(sqlite, check_autovacuum=True) == []


@pytest.mark.parametrize(
    ("check", "enforces"),
    [
        (LEASE, True),
        ("((acquired_token IS NULL) = (acquired_at IS NULL))", True),
        ("(acquired_at IS NULL) IS NOT DISTINCT FROM (acquired_token IS NULL)", True),
        ("NOT (acquired_token IS NULL) <> (acquired_at IS NULL)", True),
        ("(acquired_token IS NULL) <> (acquired_at IS NULL)", False),
        ("acquired_token IS NOT NULL", False),
        ("pg_sleep(1) IS NULL", False),
        ("1) FROM (SELECT 1", False),
        ("acquired_token", False),
        ("(", False),
        ("", False),
    ],
)
def test_conditions_are_tried_not_read(check, enforces):
    assert enforces_lease(check) is enforces


def test_predicates_as_postgresql_rewrites_them():
    wanted = "state IN ('open','needs_review','escalated')"
    rewritten = (
        "((state)::text = ANY ((ARRAY['open'::character varying, 'needs_review'::character varying,"
        " 'escalated'::character varying])::text[]))"
    )
    assert same_predicate(rewritten, wanted)
    assert not same_predicate(rewritten.replace("'open'", "'closed'"), wanted)
    assert not same_predicate("(acquired_token IS NULL)", "acquired_token IS NOT NULL")


def test_affinities():
    declared = {"VARCHAR(9)": "TEXT", "BIGINT": "INTEGER", "": "BLOB", "DOUBLE": "REAL"}
    assert {name: affinity(name) for name in declared} == declared
    assert affinity("JSON") == affinity("DATETIME") == "NUMERIC"
