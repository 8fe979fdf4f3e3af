"""The tables of the desk: shape, names, and what the databases make of them."""

from datetime import UTC, datetime, timedelta

import pytest
from alembic.autogenerate import api, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import MetaData, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateIndex, CreateTable

import outlast
from outlast.stores.schema import validate_schema
from outlast.tables import (
    make_dlq_table,
    make_operations_tables,
    make_outbox_table,
    operations_table_names,
)
from outlast.tables.operations import HISTORY_KINDS

METADATA = MetaData()
OUTBOX = make_outbox_table(METADATA)
DLQ = make_dlq_table(METADATA)
HISTORY, REVISION, WORKER = make_operations_tables(METADATA)

NAMES = {"outbox", "outbox_dlq", "outbox_dlq_history", "outbox_dlq_revision", "outbox_worker"}


def sql(element, dialect):
    return " ".join(str(element.compile(dialect=dialect)).split())


def test_columns():
    pg = postgresql.dialect()
    shape = {
        table.name: {c.name: (sql(c.type, pg), c.nullable) for c in table.c}
        for table in (HISTORY, REVISION, WORKER)
    }
    stamp = "TIMESTAMP WITH TIME ZONE"
    assert shape == {
        "outbox_dlq_history": {
            "id": ("BIGINT", False),
            "dlq_id": ("BIGINT", True),
            "at": (stamp, False),
            "actor": ("VARCHAR(255)", True),
            "kind": ("VARCHAR(64)", False),
            "reason": ("TEXT", True),
            "request_id": ("VARCHAR(255)", True),
            "detail": ("JSONB", True),
        },
        "outbox_dlq_revision": {
            "dlq_id": ("BIGINT", False),
            "revision": ("INTEGER", False),
            "at": (stamp, False),
            "actor": ("VARCHAR(255)", True),
            "payload": ("BYTEA", False),
            "headers": ("JSONB", True),
            "transform": ("TEXT", True),
            "digest": ("VARCHAR(255)", True),
            "reason": ("TEXT", True),
        },
        "outbox_worker": {
            "instance": ("VARCHAR(255)", False),
            "version": ("VARCHAR(255)", True),
            "started_at": (stamp, False),
            "seen_at": (stamp, False),
            "report": ("JSONB", True),
        },
    }
    assert [c.name for c in REVISION.primary_key] == ["dlq_id", "revision"]
    assert [c.name for c in WORKER.primary_key] == ["instance"]
    assert not any(table.foreign_keys for table in (HISTORY, REVISION, WORKER))
    assert all(len(kind) <= 64 for kind in HISTORY_KINDS)


@pytest.mark.parametrize("dialect", [postgresql.dialect(), sqlite.dialect()], ids=lambda d: d.name)
def test_indexes(dialect):
    history = make_operations_tables(MetaData(), "box", "dead").history
    assert {index.name: sql(CreateIndex(index), dialect) for index in history.indexes} == {
        "dead_history_letter_idx": "CREATE INDEX dead_history_letter_idx "
        "ON dead_history (dlq_id, id)",
        "dead_history_request_uq": "CREATE UNIQUE INDEX dead_history_request_uq "
        "ON dead_history (actor, request_id) WHERE dlq_id IS NULL",
    }


def test_sqlite_counts_history_and_nothing_else():
    lite = sqlite.dialect()
    assert "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT" in sql(CreateTable(HISTORY), lite)
    assert "AUTOINCREMENT" not in sql(CreateTable(REVISION), lite)
    assert "SERIAL" not in sql(CreateTable(REVISION), postgresql.dialect())


def test_names_follow_the_tables_and_the_schema_the_metadata():
    made = make_operations_tables(MetaData(schema="shop"), "box", "dead")
    names = operations_table_names("box", "dead")
    assert tuple(table.name for table in made) == names
    assert names == ("dead_history", "dead_revision", "box_worker")
    assert {table.schema for table in made} == {"shop"}
    assert operations_table_names(OUTBOX, DLQ) == tuple(t.name for t in (HISTORY, REVISION, WORKER))
    assert operations_table_names("box", None) == (None, None, "box_worker")


def test_the_root_exports_the_maker():
    assert outlast.make_operations_tables is make_operations_tables


def test_identifiers_of_63_bytes_fit_and_64_do_not():
    outbox, dlq = 63 - len("_worker"), 63 - len("_history_request_uq")
    assert make_operations_tables(MetaData(), "o" * outbox, "d" * dlq)
    assert make_operations_tables(MetaData(), "o" * outbox, "é" * (dlq // 2))
    for bad in (("o" * (outbox + 1), "d"), ("o", "d" * (dlq + 1)), ("o", "é" * (dlq // 2 + 1))):
        metadata = MetaData()
        with pytest.raises(ValueError, match=r"too long.*63 bytes"):
            make_operations_tables(metadata, *bad)
        assert not metadata.tables


@pytest.mark.parametrize("names", [("", "d"), ("o", ""), ("o\x00", "d"), ("o", "\ud800")])
def test_names_no_database_takes(names):
    with pytest.raises(ValueError, match="table_name"):
        make_operations_tables(MetaData(), *names)


@pytest.mark.parametrize("names", [(7, "d"), ("o", None)])
def test_names_that_are_no_text(names):
    with pytest.raises(TypeError, match="table_name must be a str"):
        make_operations_tables(MetaData(), *names)


def test_a_naming_convention_does_not_rename_ours():
    convention = {"ix": "ix_%(column_0_label)s", "uq": "uq_%(column_0_label)s"}
    history = make_operations_tables(MetaData(naming_convention=convention)).history
    assert {index.name for index in history.indexes} == {
        "outbox_dlq_history_letter_idx",
        "outbox_dlq_history_request_uq",
    }


def test_autogenerate_makes_the_tables_once(any_driver):
    """The generated migration runs without an import of ours; a second run emits nothing."""

    def upgrade(connection):
        options = {"compare_type": True, "target_metadata": METADATA}
        context = MigrationContext.configure(connection, opts=options)
        script = produce_migrations(context, METADATA)
        assert {
            op.table_name for op in script.upgrade_ops.ops if hasattr(op, "table_name")
        } == NAMES
        code = render_python_code(script.upgrade_ops, migration_context=context)
        assert "import outlast" not in code
        assert "outlast." not in code
        names = {}
        lines = "\n".join(f"    {line}" for line in code.splitlines())
        header = "import sqlalchemy as sa\nfrom sqlalchemy.dialects import postgresql, sqlite\n"
        exec(f"{header}def upgrade(op):\n{lines}", names)
        with Operations.context(context) as op:
            names["upgrade"](op)
        again = MigrationContext.configure(
            connection, opts=options | {"compare_server_default": True}
        )
        assert api.compare_metadata(again, METADATA) == []
        assert set(inspect(connection).get_table_names()) >= NAMES

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(upgrade)
        assert await validate_schema(engine, OUTBOX, DLQ) == []

    any_driver.run(body)


def with_tables(database, body):
    async def run(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
        return await body(engine)

    return database.run(run)


def test_rows_as_stored(any_driver):
    """Defaults are the database's clock, in its zone; bytes, JSON and NULL come back as given."""
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

    async def body(engine):
        async with engine.begin() as connection:
            await connection.execute(HISTORY.insert().values(kind="noted"))
            detail = {"a": [1, None], "u": "ü"}
            await connection.execute(
                HISTORY.insert().values(dlq_id=2**62, kind="edited", at=at, detail=detail)
            )
            revision = {"dlq_id": 2**62, "revision": 1, "payload": b"\x00\xff", "headers": None}
            await connection.execute(REVISION.insert().values(revision))
            await connection.execute(WORKER.insert().values(instance="host:1"))
            first, second = (await connection.execute(select(HISTORY).order_by("id"))).all()
            kept = (await connection.execute(select(REVISION))).one()
            seen = (await connection.execute(select(WORKER))).one()
            nulls = await connection.execute(
                text("SELECT count(*) FROM outbox_dlq_revision WHERE headers IS NULL")
            )
            assert nulls.scalar_one() == 1
        assert second.id > first.id
        assert (first.dlq_id, first.detail) == (None, None)
        assert (second.dlq_id, second.at, second.detail) == (2**62, at, detail)
        assert (kept.payload, kept.headers) == (b"\x00\xff", None)
        for stamp in (first.at, kept.at, seen.started_at, seen.seen_at):
            assert stamp.tzinfo is not None
            assert abs(stamp - seen.seen_at) < timedelta(minutes=1)

    with_tables(any_driver, body)


def test_a_request_is_recorded_once_per_actor(database):
    """Rows of one letter may share a request; operations on many may not."""

    async def add(engine, **row):
        async with engine.begin() as connection:
            await connection.execute(HISTORY.insert().values({"kind": "replayed"} | row))

    async def body(engine):
        await add(engine, actor="ann", request_id="r1")
        await add(engine, actor="bob", request_id="r1")
        await add(engine, actor="ann", request_id=None)
        await add(engine, actor="ann", request_id=None)
        await add(engine, actor="ann", request_id="r1", dlq_id=1)
        await add(engine, actor="ann", request_id="r1", dlq_id=1)
        with pytest.raises(IntegrityError):
            await add(engine, actor="ann", request_id="r1")

    with_tables(database, body)


def test_a_revision_exists_once(database):
    async def add(engine, revision):
        async with engine.begin() as connection:
            row = {"dlq_id": 5, "revision": revision, "payload": b""}
            await connection.execute(REVISION.insert().values(row))

    async def body(engine):
        await add(engine, 1)
        await add(engine, 2)
        with pytest.raises(IntegrityError):
            await add(engine, 2)

    with_tables(database, body)


def test_ids_of_history_are_not_issued_again(sqlite):
    async def body(engine):
        async with engine.begin() as connection:
            for _ in range(2):
                await connection.execute(HISTORY.insert().values(kind="noted"))
                await connection.execute(HISTORY.delete())
            await connection.execute(HISTORY.insert().values(kind="noted"))
            return (await connection.execute(select(HISTORY.c.id))).scalar_one()

    assert with_tables(sqlite, body) == 3
