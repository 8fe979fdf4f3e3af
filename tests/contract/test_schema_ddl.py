"""The tables as the databases make them: Alembic, plans, constraints."""

from datetime import UTC, datetime

import pytest
from alembic.autogenerate import api, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import MetaData, inspect, text
from sqlalchemy.exc import DBAPIError, StatementError

from outlast.stores.schema import validate_schema
from outlast.tables import make_dlq_table, make_outbox_table

METADATA = MetaData()
OUTBOX = make_outbox_table(METADATA)
DLQ = make_dlq_table(METADATA)
LETTER = {
    "original_id": 1,
    "queue": "q",
    "payload": b"",
    "deliveries_count": 1,
    "created_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "failure_reason": "rejected",
}


def test_autogenerate_makes_the_tables_once(any_driver):
    """S0-04: the generated migration runs without an import of ours; a second run is empty."""

    def upgrade(connection):
        options = {"compare_type": True, "target_metadata": METADATA}
        context = MigrationContext.configure(connection, opts=options)
        script = produce_migrations(context, METADATA)
        created = [op.table_name for op in script.upgrade_ops.ops if hasattr(op, "table_name")]
        assert set(created) == {"outbox", "outbox_dlq"}
        code = render_python_code(script.upgrade_ops, migration_context=context)
        assert "outlast" not in code
        names = {}
        header = "import sqlalchemy as sa\nfrom sqlalchemy.dialects import postgresql, sqlite\n"
        body = "\n".join(f"    {line.strip()}" if i else line for i, line in enumerate([code]))
        exec(f"{header}def upgrade(op):\n    {body}", names)
        with Operations.context(context) as op:
            names["upgrade"](op)
        again = MigrationContext.configure(
            connection, opts=options | {"compare_server_default": True}
        )
        assert api.compare_metadata(again, METADATA) == []

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(upgrade)
        assert await validate_schema(engine, OUTBOX, DLQ) == []
        async with engine.begin() as connection:
            await connection.execute(OUTBOX.insert().values(queue="q", payload=b""))
            await connection.execute(DLQ.insert().values(LETTER))

    any_driver.run(body)


def test_dead_letters_as_stored(any_driver):
    """S0-17 … S0-28: ids count, originals repeat, times keep their microseconds."""

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
            long = LETTER | {"queue": "ü" * 255, "payload": b"\x00\xff"}
            await connection.execute(DLQ.insert(), [LETTER, long])
            clock = "SELECT now()" if any_driver.is_postgres else "SELECT datetime('now')"
            now = (await connection.execute(text(clock))).scalar_one()
            found = (await connection.execute(DLQ.select().order_by(DLQ.c.id))).all()
            keys = await connection.run_sync(lambda c: inspect(c).get_foreign_keys("outbox_dlq"))
        assert keys == []
        if isinstance(now, str):
            now = datetime.fromisoformat(now).replace(tzinfo=UTC)
        assert [row.id for row in found] == [1, 2]
        assert found[1].queue == "ü" * 255
        assert found[1].payload == b"\x00\xff"
        for row in found:
            assert row.created_at == LETTER["created_at"]
            for at in (row.failed_at, row.first_failure_at, row.last_failure_at):
                assert abs((at - now).total_seconds()) <= 2
            assert (row.state, row.replay_count, row.replays_at_reopen) == ("open", 0, 0)
            assert (row.attempts_count, row.total_deliveries, row.revision) == (0, 0, 0)
            assert row.headers is row.http_status is row.last_exception is None
        for gap in ("queue", "payload", "failure_reason", "original_id"):
            with pytest.raises((DBAPIError, StatementError)):
                async with engine.begin() as connection:
                    await connection.execute(DLQ.insert().values(LETTER | {gap: None}))

    any_driver.run(body)


def test_the_lease_is_whole_or_absent(database):
    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
        half = OUTBOX.insert().values(queue="q", payload=b"", acquired_at=datetime.now(UTC))
        with pytest.raises(DBAPIError, match="outbox_lease_ck"):
            async with engine.begin() as connection:
                await connection.execute(half)

    database.run(body)


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("queue = 'q7' ORDER BY failed_at DESC LIMIT 50", "outbox_dlq_queue_failed_idx"),
        (
            (
                "state IN ('open','needs_review','escalated') "
                "ORDER BY last_failure_at DESC, id DESC LIMIT 50"
            ),
            "outbox_dlq_latest_idx",
        ),
        ("message_id = 'm7'", "outbox_dlq_message_idx"),
        ("original_id = 7", "outbox_dlq_original_idx"),
    ],
)
def test_lists_read_an_index(database, query, index):
    """S0-27: no walk over the table."""
    fill = {
        True: "SELECT n, 'q' || n % 50, ''::bytea, 1, now(), 'rejected', 'm' || n "
        "FROM generate_series(1, 20000) n",
        False: "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 5000) "
        "SELECT n, 'q' || n % 50, x'', 1, '2026-01-01 00:00:00.000000', "
        "'rejected', 'm' || n FROM s",
    }[database.is_postgres]
    columns = (
        "original_id, queue, payload, deliveries_count, created_at, failure_reason, message_id"
    )

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
            await connection.execute(
                text(f"INSERT INTO outbox_dlq ({columns}) {fill}".replace(":0", r"\:0"))
            )
            await connection.execute(text("ANALYZE outbox_dlq"))
            explain = "EXPLAIN" if database.is_postgres else "EXPLAIN QUERY PLAN"
            plan = await connection.execute(
                text(f"{explain} SELECT * FROM outbox_dlq WHERE {query}")
            )
            shown = "\n".join(str(row) for row in plan)
        assert index in shown
        assert "Seq Scan" not in shown
        assert "SCAN outbox_dlq\n" not in shown + "\n"

    database.run(body)
