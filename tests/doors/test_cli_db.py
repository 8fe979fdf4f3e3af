"""`outlast db check|print|create`: what is said, what is made, and how it fails."""

import os
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.contract.test_schema_plan import old_letter, ten_columns
from tests.doors.dlq_command import Command


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """A whole installation on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def bare(database, monkeypatch, capsys):
    """Nothing but a dead-letter table of faststream-outbox with one letter."""
    command = Command(database, monkeypatch, capsys)
    metadata = command.dlq.metadata
    run(command, *(f"DROP TABLE {name(command, table)}" for table in metadata.tables.values()))
    dlq = name(command, command.dlq)
    run(command, ten_columns(database, dlq), old_letter(database, dlq))
    return command


def name(command, table):
    return command.database.engine().dialect.identifier_preparer.format_table(table)


def run(command, *statements):
    async def work(connection):
        for statement in statements:
            await connection.exec_driver_sql(statement)

    command._do(work)


def as_they_are(command):
    """Every column and index there is."""
    prefix = f"table_schema = '{command.database.schema}'"
    query = (
        f"SELECT table_name, column_name FROM information_schema.columns WHERE {prefix} "
        "UNION ALL SELECT tablename, indexname FROM pg_indexes "
        f"WHERE schemaname = '{command.database.schema}' ORDER BY 1, 2"
        if command.database.is_postgres
        else "SELECT name, sql FROM sqlite_master ORDER BY 1, 2"
    )

    async def work(connection):
        return [tuple(row) for row in await connection.exec_driver_sql(query)]

    return command._do(work)


def test_whole_tables_are_right_and_nothing_is_missing(anywhere):
    assert anywhere.run("db", "check").out == "The tables are right.\n"
    assert anywhere.run("db", "check").err == ""
    done = anywhere.run("db", "print")
    assert done.status == 0
    assert done.out.startswith("-- nothing is missing")
    assert anywhere.run("db", "create").out == "Nothing was missing.\n"
    assert anywhere.run("db", "check", "--json").document == {"drift": [], "advice": []}
    assert anywhere.run("db", "print", "--json").document == {"statements": []}
    created = anywhere.run("db", "create", "--json").document
    assert created == {"done": [], "drift": [], "advice": []}


def test_drift_is_told_and_is_status_one(anywhere):
    """Findings on stdout, advice and the next step beside them."""
    outbox = name(anywhere, anywhere.outbox)
    schema = f"{anywhere.database.schema}." if anywhere.database.schema else ""
    run(
        anywhere,
        f"ALTER TABLE {outbox} DROP COLUMN last_attempt_at",
        f"DROP INDEX {schema}outbox_dlq_message_idx",
    )
    done = anywhere.run("db", "check")
    assert done.status == 1
    assert done.out == "outbox.last_attempt_at: missing column\n"
    assert "advice: outbox_dlq: index outbox_dlq_message_idx is absent" in done.err
    assert "to see the SQL for what is missing: outlast db print" in done.err
    document = anywhere.run("--json", "db", "check").document
    assert document["drift"] == ["outbox.last_attempt_at: missing column"]
    assert anywhere.run("db", "create").status == 0
    assert anywhere.run("db", "check").status == 0


def test_printing_changes_nothing(bare):
    before = as_they_are(bare)
    assert bare.run("db", "print").status == 0
    assert bare.run("db", "check").status == 1
    assert as_they_are(bare) == before


def test_what_is_printed_is_what_create_runs(bare):
    """Every comment of the one is a line of the other; afterwards the letter can be acted on."""
    refused = bare.run("dlq", "purge", "1", "-y")
    assert refused.status == 2
    remedy = refused.err.splitlines()[-1]
    printing = remedy.partition(" prints ")[0].split()
    assert printing[:3] == ["outlast", "db", "print"]
    # the remedy is a command, complete but for the address
    printed = bare.run(*printing[1:])
    assert printed.err == ""
    comments = [x[3:] for x in printed.out.splitlines() if x.startswith("-- ")]
    done = bare.run("db", "create")
    assert done.status == 0
    assert done.out.splitlines() == comments
    assert bare.run("db", "check").out == "The tables are right.\n"
    listed = bare.run("dlq", "list")
    assert "2020-01-02 03:04" in listed.out
    assert bare.run("dlq", "purge", "1", "-y").status == 0


def test_the_printed_sql_runs_in_the_shell_of_the_database(bare):
    """psql and sqlite3 take it as it is, from a real process."""
    program = shutil.which("psql" if bare.database.is_postgres else "sqlite3")
    if program is None:
        pytest.skip("the shell of this database is not installed")
    with bare.process("db", "print") as printing:
        sql, said = printing.communicate(timeout=30)
    assert (printing.returncode, said) == (0, "")
    if bare.database.is_postgres:
        shell = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", bare.database.dsn]
    else:
        shell = [program, "-bail", make_url(bare.database.url).database]
    done = subprocess.run(shell, input=sql, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bare.run("db", "check").out == "The tables are right.\n"


def test_create_leaves_what_has_another_shape_and_says_so(postgres, monkeypatch, capsys):
    command = Command(postgres, monkeypatch, capsys)
    run(command, f"ALTER TABLE {name(command, command.outbox)} ALTER queue TYPE varchar(10)")
    done = command.run("db", "create")
    assert (done.status, done.out) == (1, "Nothing was missing.\n")
    assert "left as it is: outbox.queue: type mismatch" in done.err


def test_a_file_is_made_by_create_alone(command, tmp_path, monkeypatch):
    """Looking makes no file; what create makes is nobody else's to read."""
    path = tmp_path / "new.db"
    for verb in ("check", "print"):
        done = command.run("db", verb, "--dsn", path)
        assert done.status == 2
        assert "there is no database file" in done.err
        assert "outlast db create" in done.err
        assert not path.exists()
    monkeypatch.setenv("COLUMNS", "80")
    umask = os.umask(0o022)
    try:
        done = command.run("db", "create", "--dsn", path)
    finally:
        os.umask(umask)
    assert done.status == 0, done.err
    assert f"made the file {path}" in done.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert command.run("db", "check", "--dsn", path).status == 0
    assert command.run("dlq", "list", "--dsn", path).out == "No DLQ messages found.\n"


def test_a_file_that_nothing_came_into_is_taken_away_again(command, tmp_path):
    done = command.run(
        *("db", "create", "--dsn", tmp_path / "new.db", "--table", "x", "--dlq-table", "x")
    )
    assert done.status == 2
    assert "nothing came into it" in done.err
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("dsn", ["no/such/folder/x.db", ":memory:", "sqlite:///", "file:x.db"])
def test_a_file_that_cannot_be_made(command, dsn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command.run("db", "create", "--dsn", dsn)
    assert done.status == 2
    assert len(done.err.splitlines()) == 2
    assert list(Path().glob("*x.db")) == []


def test_a_file_that_is_no_database(command, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and long enough to be read as one\n" * 100)
    before = path.read_bytes()
    for verb in ("check", "print", "create"):
        done = command.run("db", verb, "--dsn", path)
        assert done.status in {1, 2}
        assert "not a database" in done.err
    assert path.read_bytes() == before


def test_a_database_that_is_away(command):
    for verb in ("check", "print", "create"):
        done = command.run("db", verb, "--dsn", "postgresql://me:hunter2@127.0.0.1:1/shop")
        assert done.status == 2
        assert "cannot be reached" in done.err
        assert "hunter2" not in done.err + done.out


def test_a_wrong_table_name_is_refused(command):
    """A table of the application gets no column of ours."""
    path = make_url(command.database.url).database
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (id integer primary key, name text)")
    before = as_they_are(command)
    for verb in ("print", "create"):
        done = command.run("db", verb, "--table", "customers")
        assert (done.status, done.out) == (2, "")
        assert "name the right table" in done.err
    done = command.run("db", "create", "--table", "x\x1b[31m")
    assert done.status == 2
    assert "\x1b" not in done.err
    assert as_they_are(command) == before


def test_a_locked_file_is_a_sentence(command):
    """SQLite's writer is waited for, then told; nothing is half done."""
    path = make_url(command.database.url).database
    run(command, "DROP TABLE outbox_worker")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        done = command.run("db", "create", "--json", "--dsn", f"sqlite:///{path}?timeout=0.05")
        holder.execute("ROLLBACK")
    assert done.status == 1
    assert "locked" in done.document["error"]
    assert "run it again" in done.err
    assert command.run("db", "create").status == 0
