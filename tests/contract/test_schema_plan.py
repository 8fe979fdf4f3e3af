"""The SQL of `outlast db print`: what it brings, what it leaves alone, and beside whom it runs."""

import asyncio

import pytest
from sqlalchemy import MetaData, text
from sqlalchemy.exc import DBAPIError

from outlast.model.errors import CannotWrite, RowLocked, SchemaError
from outlast.ops import BadRequest, Desk, NotAllowed
from outlast.ops.actor import Actor
from outlast.stores.connect import store_for
from outlast.stores.schema import plan, schema_plan, schema_state, validate_schema
from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table
from tests.contract.desks import ANN
from tests.contract.test_schema import rebuilt

COLUMNS = (
    "id {key}, original_id bigint not null, queue varchar(255) not null, payload {bytes} not null, "
    "headers {json}, deliveries_count bigint not null, created_at {time} not null, "
    "failed_at {time} not null default {now}, failure_reason varchar(64) not null, "
    "last_exception varchar"
)
POSTGRES = {
    "key": "bigserial primary key",
    "bytes": "bytea",
    "json": "jsonb",
    "time": "timestamptz",
    "now": "now()",
}
SQLITE = {
    "key": "integer primary key",
    "bytes": "blob",
    "json": "json",
    "time": "datetime",
    "now": "(strftime('%Y-%m-%d %H:%M:%f000','now'))",
}
OLD = "2020-01-02 03:04:05.678901"
TIMES = ("first_failure_at", "last_failure_at", "state_changed_at")


def ten_columns(database, name="outbox_dlq"):
    """A dead-letter table as faststream-outbox makes it."""
    spelled = COLUMNS.format(**(POSTGRES if database.is_postgres else SQLITE))
    return f"CREATE TABLE {name} ({spelled})"


def old_letter(database, name="outbox_dlq"):
    zone = "+00" if database.is_postgres else ""
    return (
        f"INSERT INTO {name} (original_id, queue, payload, deliveries_count, created_at, "
        f"failed_at, failure_reason) VALUES (1, 'q', '{{}}', 1, '{OLD}{zone}', '{OLD}{zone}', "
        "'rejected')"
    )


def tables(schema=None, outbox="outbox", dlq="outbox_dlq"):
    metadata = MetaData(schema=schema)
    return (
        make_outbox_table(metadata, outbox),
        make_dlq_table(metadata, dlq),
        *make_operations_tables(metadata, outbox, dlq),
    )


OUTBOX, DLQ, HISTORY, REVISION, WORKER = tables()


async def run(engine, *statements):
    """As psql does it: one after the other, each committed."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        for statement in statements:
            await connection.exec_driver_sql(statement)


async def planned(engine, outbox=OUTBOX, dlq=DLQ):
    async with engine.connect() as connection:
        return await schema_plan(connection, outbox, dlq)


async def state(engine, outbox=OUTBOX, dlq=DLQ):
    async with engine.connect() as connection:
        return await schema_state(connection, outbox, dlq)


async def rows(engine, query):
    async with engine.connect() as connection:
        return (await connection.execute(text(query))).all()


async def whole(engine, outbox=OUTBOX, dlq=DLQ):
    """Nothing to plan, nothing to find, nothing to advise."""
    assert await planned(engine, outbox, dlq) == ()
    assert await state(engine, outbox, dlq) == ((), (), None)


def test_nothing_there_becomes_everything(any_driver):
    """The tables that the plan makes are those that metadata.create_all makes."""

    async def body(engine):
        sql = await planned(engine)
        assert all(statement.startswith("-- ") and statement.endswith(";") for statement in sql)
        assert not any("CONCURRENTLY" in statement for statement in sql)
        await run(engine, *sql)
        await whole(engine)
        assert await validate_schema(engine, OUTBOX, DLQ) == []

    any_driver.run(body)


def test_what_create_all_made_needs_nothing(any_driver):
    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(OUTBOX.metadata.create_all)
        await whole(engine)

    any_driver.run(body)


def test_ten_columns_become_all_and_old_letters_keep_their_times(any_driver, monkeypatch):
    """Columns, defaults and indexes come; each old letter gets its times from failed_at."""
    monkeypatch.setattr(plan, "FILL_ROWS", 3)

    async def body(engine):
        await run(engine, ten_columns(any_driver), *[old_letter(any_driver)] * 10)
        # ids have gaps
        await run(engine, "DELETE FROM outbox_dlq WHERE id IN (2, 3, 7)")
        sql = await planned(engine)
        fills = [statement for statement in sql if "UPDATE" in statement]
        assert len(fills) == 3
        await run(engine, *sql)
        await whole(engine)
        found = await rows(
            engine,
            "SELECT failed_at, first_failure_at, last_failure_at, state_changed_at, state, "
            "replay_count FROM outbox_dlq ORDER BY id",
        )
        assert len(found) == 7
        for row in found:
            assert len({str(instant) for instant in row[:4]}) == 1
            assert str(row[0]).startswith(OLD)
            assert row[4:] == ("open", 0)
        if any_driver.is_postgres:
            # who does not know the new columns writes on, and the letters have their times
            await run(engine, old_letter(any_driver))
            written = await rows(
                engine,
                "SELECT bool_and(last_failure_at > '2026-01-01'), count(*) FROM outbox_dlq "
                "WHERE id > 10 AND state_changed_at IS NOT NULL AND first_failure_at IS NOT NULL",
            )
            assert written == [(True, 1)]

    any_driver.run(body)


def test_stopped_after_any_statement_and_printed_again(database, monkeypatch):
    """Killed anywhere, the next plan goes on; the tables end the same."""
    monkeypatch.setattr(plan, "FILL_ROWS", 2)
    everything = [table.name for table in (OUTBOX, DLQ, HISTORY, REVISION, WORKER)]

    async def body(engine):
        async def begin():
            for name in everything:
                await run(engine, f"DROP TABLE IF EXISTS {name}")
            await run(engine, ten_columns(database), *[old_letter(database)] * 5)

        await begin()
        sql = await planned(engine)
        step = 1 if database.is_postgres else 4
        for stop in range(0, len(sql) + 1, step):
            await begin()
            await run(engine, *sql[:stop])
            # meanwhile somebody writes who knows ten columns
            await run(engine, old_letter(database))
            await run(engine, *await planned(engine))
            await whole(engine)
            empty = " OR ".join(f"{name} IS NULL" for name in TIMES)
            assert await rows(engine, f"SELECT id FROM outbox_dlq WHERE {empty}") == [], sql[stop]
            kept = await rows(
                engine, "SELECT last_failure_at = failed_at FROM outbox_dlq ORDER BY id"
            )
            assert [bool(same) for (same,) in kept][:5] == [True] * 5

    database.run(body)


def test_the_printed_sql_may_be_run_twice_on_postgresql(postgres):
    async def body(engine):
        await run(engine, ten_columns(postgres), old_letter(postgres))
        sql = await planned(engine)
        await run(engine, *sql, *sql)
        await whole(engine)

    postgres.run(body)


HOSTILE = {"outbox": 'out"%s:x $1 box', "dlq": "d'l%%q; -- :y"}


@pytest.mark.parametrize("in_schema", [False, True])
def test_hostile_names(any_driver, in_schema, monkeypatch):
    """Quotes, percent signs, colons and semicolons in names are names."""
    monkeypatch.setattr(plan, "FILL_ROWS", 1)
    schema = 'my "s%che:ma' if any_driver.is_postgres else "main"
    outbox, dlq, *_ = tables(schema if in_schema else None, **HOSTILE)
    quoted = '"d\'l%%q; -- :y"'
    if in_schema:
        quoted = ('"my ""s%che:ma"' if any_driver.is_postgres else "main") + f".{quoted}"

    async def body(engine):
        twice = any_driver.url.startswith("postgresql+psycopg")

        async def plain(statement):
            await run(engine, statement.replace("%", "%%") if twice else statement)

        if in_schema and any_driver.is_postgres:
            await plain('CREATE SCHEMA "my ""s%che:ma"')
        try:
            await plain(ten_columns(any_driver, quoted))
            for _ in range(2):
                await plain(old_letter(any_driver, quoted))
            done = []
            await Desk(engine, outbox, dlq).schema_create(ANN, done.append)
            assert len(done) > 10
            await whole(engine, outbox, dlq)
        finally:
            if in_schema and any_driver.is_postgres:
                await plain('DROP SCHEMA "my ""s%che:ma" CASCADE')

    any_driver.run(body)


def test_an_engine_works_on_tables_with_hostile_names(database):
    """What is created under such a name can be opened: every part of the house quotes it alike."""
    outbox, dlq, *_ = tables(None, **HOSTILE)

    async def body(engine):
        await Desk(engine, outbox, dlq).schema_create(ANN, lambda _title: None)
        store = store_for(engine, outbox, dlq)
        await store.open(lambda _queue: None)
        try:
            assert store.has_replays
        finally:
            await store.close()

    database.run(body)


def test_comments_are_one_line_whatever_the_name(database):
    """A line feed in a name does not end the comment that tells of it."""
    outbox, dlq, *_ = tables(None, "o", "d\nDROP TABLE x; --")

    async def body(engine):
        for statement in await planned(engine, outbox, dlq):
            comment, sql = statement.split("\n", 1)
            assert comment.startswith("-- ")
            assert sql.split()[0] == "CREATE"
        with pytest.raises(BadRequest, match="cannot be printed"):
            await Desk(engine, outbox, dlq).schema_plan(ANN)

    database.run(body)


@pytest.mark.parametrize("named", ["outbox", "dlq"])
def test_a_table_of_somebody_else_is_never_altered(database, named):
    """The wrong name is a refusal, not twenty columns in a table of customers."""
    names = {"outbox": "outbox", "dlq": "outbox_dlq"} | {named: "customers"}
    outbox, dlq, *_ = tables(None, **names)

    async def body(engine):
        await run(engine, "CREATE TABLE customers (id integer primary key, queue varchar(255))")
        with pytest.raises(SchemaError, match=r"table customers has no column .*payload"):
            await planned(engine, outbox, dlq)
        done = []
        with pytest.raises(SchemaError, match="nothing is done"):
            await Desk(engine, outbox, dlq).schema_create(ANN, done.append)
        assert done == []

    database.run(body)


def test_one_table_is_not_both(database):
    async def body(engine):
        with pytest.raises(BadRequest, match="named both as outbox and"):
            await Desk(engine, "letters", "letters").schema_plan(ANN)

    database.run(body)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE outbox ALTER queue TYPE varchar(100)",
        "ALTER TABLE outbox_dlq ALTER headers SET NOT NULL",
        "ALTER TABLE outbox_dlq_history ALTER reason TYPE varchar(10)",
        "DROP INDEX outbox_pending_idx; CREATE INDEX outbox_pending_idx ON outbox (queue)",
    ],
)
def test_what_has_another_shape_is_told_and_left(postgres, change):
    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(OUTBOX.metadata.create_all)
        for statement in change.split("; "):
            await run(engine, statement)
        assert await planned(engine) == ()
        assert (await state(engine)).drift

    postgres.run(body)


def test_defaults_indexes_and_the_check_come_back(postgres):
    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(OUTBOX.metadata.create_all)
        await run(
            engine,
            "ALTER TABLE outbox_dlq ALTER last_failure_at DROP DEFAULT, ALTER state DROP DEFAULT",
            old_letter(postgres).replace("failure_reason)", "failure_reason, state)")[:-1]
            + ", 'open')",
            "DROP INDEX outbox_dlq_latest_idx",
            "DROP INDEX outbox_leased_idx",
            "DROP INDEX outbox_dlq_history_request_uq",
            "ALTER TABLE outbox DROP CONSTRAINT outbox_lease_ck",
        )
        drift = (await state(engine)).drift
        assert len(drift) == 3
        assert any("outbox_dlq_history_request_uq" in finding for finding in drift)
        await run(engine, *await planned(engine))
        await whole(engine)
        filled = "SELECT last_failure_at = failed_at FROM outbox_dlq"
        assert await rows(engine, filled) == [(True,)]
        with pytest.raises(DBAPIError, match="outbox_lease_ck"):
            await run(
                engine, "INSERT INTO outbox (queue, payload, acquired_at) VALUES ('q', '', now())"
            )

    postgres.run(body)


def test_an_index_whose_creation_failed_is_made_again(postgres):
    """The leftover of a CREATE INDEX CONCURRENTLY is noticed, though it has the name."""

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(OUTBOX.metadata.create_all)
        (made,) = [i for i in OUTBOX.indexes if i.unique]
        insert = "INSERT INTO outbox (queue, payload, timer_id) VALUES ('q', '', 't')"
        await run(engine, f"DROP INDEX {made.name}", insert, insert)
        (build,) = [s for s in await planned(engine) if "CREATE UNIQUE INDEX" in s]
        with pytest.raises(DBAPIError, match="could not create unique index"):
            await run(engine, build)
        assert "invalid index" in (await state(engine)).drift[0]
        *_, again = await planned(engine)
        assert "REINDEX INDEX CONCURRENTLY outbox_timer_id_uq" in again
        await run(engine, "DELETE FROM outbox WHERE id = 1", *await planned(engine))
        await whole(engine)

    postgres.run(body)


def test_partitioned_dead_letters(postgres):
    """Where an index cannot be built beside its writers, it is built without."""

    async def body(engine):
        columns = COLUMNS.format(**POSTGRES | {"key": "bigserial"})
        await run(
            engine,
            f"CREATE TABLE outbox_dlq ({columns}, primary key (id, failed_at)) "
            "PARTITION BY RANGE (failed_at)",
            "CREATE TABLE outbox_dlq_rest PARTITION OF outbox_dlq DEFAULT",
            old_letter(postgres),
        )
        await run(engine, *await planned(engine))
        await whole(engine)
        same = "SELECT last_failure_at = failed_at FROM outbox_dlq"
        assert await rows(engine, same) == [(True,)]

    postgres.run(body)


def test_desk_tables_that_are_partly_there_drift(database):
    """None of them is a choice, some of them a migration that stopped."""

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(OUTBOX.metadata.create_all)
        await run(engine, "ALTER TABLE outbox_dlq_revision DROP COLUMN digest")
        assert (await state(engine)).drift == ("outbox_dlq_revision.digest: missing column",)
        await run(engine, "DROP TABLE outbox_dlq_revision")
        (told,) = (await state(engine)).drift
        assert told == "table outbox_dlq_revision does not exist, others of the desk do"
        with pytest.raises(SchemaError, match="outbox_dlq_revision does not exist"):
            await validate_schema(engine, OUTBOX, DLQ)
        await run(engine, "DROP TABLE outbox_dlq_history", "DROP TABLE outbox_worker")
        drift, advice, _ = await state(engine)
        assert drift == ()
        assert len(advice) == 1
        assert "is not recorded" in advice[0]
        assert await validate_schema(engine, OUTBOX, DLQ) == []
        await run(engine, *await planned(engine))
        await whole(engine)

    database.run(body)


def test_writers_do_not_wait_for_an_index(postgres):
    """While an index waits for an old transaction, letters are written at once."""

    async def body(engine):
        await run(engine, ten_columns(postgres), old_letter(postgres))
        async with engine.connect() as holder:
            await holder.execute(text(old_letter(postgres)))
            sql = await planned(engine)
            build = next(s for s in sql if "outbox_dlq_original_idx" in s)
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "
            waits += f"application_name = '{postgres.schema}' AND query LIKE '%original_idx%'"
            building = asyncio.create_task(run(engine, build))
            async with asyncio.timeout(20):
                while await rows(engine, waits) == [(0,)]:
                    assert not building.done(), building.result()
            await run(engine, "SET lock_timeout = '1s'", old_letter(postgres))
            assert not building.done()
            await holder.commit()
            await building
        await run(engine, *await planned(engine))
        await whole(engine)

    postgres.run(body)


def test_a_table_that_is_held_is_given_up_and_gone_on_with(postgres, monkeypatch):
    """Whoever waits for a table makes others wait: so it ends, says where, and goes on later."""
    monkeypatch.setattr(plan, "_LOCK_WAIT", "50ms")

    async def body(engine):
        await run(engine, ten_columns(postgres), old_letter(postgres))
        desk, done = Desk(engine), []
        async with engine.connect() as holder:
            await holder.execute(text("SELECT count(*) FROM outbox_dlq"))
            with pytest.raises(RowLocked) as stopped:
                await desk.schema_create(ANN, done.append)
        # what the plan has set for its session is nobody else's
        assert await rows(engine, "SHOW lock_timeout") == [("0",)]
        assert "outbox_dlq gets its columns" in stopped.value.__notes__[0]
        assert "the table outbox" in done
        before = len(done)
        await desk.schema_create(ANN, done.append)
        assert "the table outbox" not in done[before:]
        await whole(engine)

    postgres.run(body, pool_size=1, max_overflow=1)


def test_a_role_without_the_right_gets_a_sentence(postgres):
    async def body(engine):
        await run(engine, ten_columns(postgres))
        role = f"reader_{postgres.schema}"
        await run(
            engine,
            f"CREATE ROLE {role}",
            f"GRANT USAGE ON SCHEMA {postgres.schema} TO {role}",
            f"GRANT SELECT ON outbox_dlq TO {role}",
        )
        reader = postgres.engine()
        try:
            async with reader.connect() as connection:
                await connection.execute(text(f"SET ROLE {role}"))
                await connection.commit()
                # to look, and to print, needs no more than SELECT
                assert len(await schema_plan(connection, OUTBOX, DLQ)) > 10
            with pytest.raises(CannotWrite, match="permission denied") as refused:
                await Desk(_as(reader, role)).schema_create(ANN, print)
            assert "stopped at: the table outbox" in refused.value.__notes__[0]
        finally:
            await reader.dispose()
            await run(engine, f"DROP OWNED BY {role}", f"DROP ROLE {role}")

    postgres.run(body)


def _as(engine, role):
    from sqlalchemy import event

    @event.listens_for(engine.sync_engine, "connect")
    def set_role(connection, record):
        with connection.cursor() as cursor:
            cursor.execute(f"SET ROLE {role}")
        connection.commit()

    return engine


def test_only_an_admin_changes_tables(database):
    async def body(engine):
        reader = Actor("bob", frozenset({"inspect"}))
        desk = Desk(engine)
        assert (await desk.schema_state(reader)).drift
        assert await desk.schema_plan(reader)
        with pytest.raises(NotAllowed, match="admin"):
            await desk.schema_create(reader, print)
        assert len((await desk.schema_state(reader)).drift) == 2

    database.run(body)


def test_sqlite_cannot_add_what_needs_a_clock(sqlite):
    """A column that must have a time is refused with the way out, not tried."""

    async def body(engine):
        async with engine.begin() as connection:
            await connection.run_sync(OUTBOX.metadata.create_all)
        await run(engine, *(f"DROP INDEX {index.name}" for index in OUTBOX.indexes))
        drop, create = rebuilt(OUTBOX, ("created_at DATETIME", "made_at DATETIME"))
        await run(engine, drop, create.replace("\\:", ":"))
        with pytest.raises(SchemaError, match=r"no column created_at, .* make it anew"):
            await planned(engine)

    sqlite.run(body)
