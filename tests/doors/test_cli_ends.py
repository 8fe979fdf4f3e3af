"""How a command ends when something is wrong: a status, a sentence, the next step; no traceback."""

import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.doors.dlq_command import Command


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def on_postgres(postgres, monkeypatch, capsys):
    return Command(postgres, monkeypatch, capsys)


EVERY_VERB = [
    ["dlq", "list"],
    ["dlq", "inspect", "1"],
    ["dlq", "inspect", "--all"],
    ["dlq", "history", "1"],
    ["dlq", "groups"],
    ["dlq", "stats"],
    ["dlq", "export"],
    ["dlq", "import", "-"],
    ["dlq", "edit", "1", "--header", "a=b"],
    ["dlq", "mark", "1", "--open"],
    ["dlq", "restore", "1"],
    ["dlq", "purge", "1", "-y"],
    ["dlq", "purge", "queue:x", "-y"],
    ["dlq", "replay", "1"],
    ["dlq", "replay-all", "queue:x", "-y"],
    ["outbox", "list"],
    ["outbox", "inspect", "1"],
    ["outbox", "cancel", "1"],
    ["outbox", "run-now", "1"],
    ["workers", "list"],
    ["subscriptions", "list"],
    ["db", "check"],
]


def refused(done, *words):
    """A sentence on stderr, nothing on stdout, usage or environment."""
    assert (done.status, done.out) == (2, "")
    for word in words:
        assert word in done.err
    assert "unexpected" not in done.err
    assert "sesame" not in done.err


@pytest.mark.parametrize("verb", EVERY_VERB, ids=" ".join)
def test_a_database_that_is_away(command, monkeypatch, verb):
    """F-K19: a sentence, what to say instead, and not the password."""
    monkeypatch.setattr(sys, "stdin", Path(os.devnull).open())
    dsn = "postgresql://u:sesame@127.0.0.1:1/x"
    done = command.run(*verb, "--dsn", dsn)
    refused(done, "cannot be reached", "--dsn")


@pytest.mark.parametrize("verb", EVERY_VERB, ids=" ".join)
@pytest.mark.parametrize("what", ["garbage", "folder", "empty", "none"])
def test_a_file_that_is_no_database(command, monkeypatch, tmp_path, verb, what):
    monkeypatch.setattr(sys, "stdin", Path(os.devnull).open())
    path = tmp_path / what
    if what == "garbage":
        path.write_bytes(bytes(range(256)) * 40)
    elif what == "empty":
        path.touch()
    elif what == "folder":
        path.mkdir()
    done = command.run(*verb, "--dsn", path)
    if what == "empty" and verb == ["db", "check"]:
        assert done.status == 1
        return
    refused(done)
    assert done.err
    assert {"garbage": "not a database", "empty": "does not exist"}.get(what, path.name) in done.err
    assert path.exists() is (what != "none")


def test_a_file_that_may_not_be_read(command):
    path = Path(command.environment["OUTLAST_DSN"].removeprefix("sqlite:///"))
    path.chmod(0)
    for folder in path.parents:
        if folder.stat().st_uid == os.getuid() and len(folder.parts) > 2:
            folder.chmod(0o755)
    command.run("dlq", "list")  # whoever is nobody may not read our modules either
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(65_534)
        done = command.run("dlq", "list")
    finally:
        if is_root:
            os.seteuid(0)
    refused(done, "unable to open database file")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"username": "nobody_such"}, "nobody_such"),
        ({"database": "no_such_database"}, "no_such_database"),
        ({"host": "no-such-host.invalid"}, "cannot be reached"),
    ],
    ids=["role", "database", "host"],
)
def test_a_wrong_address(on_postgres, changed, said):
    """F-K19: no such role, database or host: told without the password."""
    from sqlalchemy import make_url

    url = make_url(on_postgres.environment["OUTLAST_DSN"]).set(**changed, password="sesame")
    done = on_postgres.run("dlq", "list", "--dsn", url.render_as_string(False))
    refused(done, said, "--dsn")


def test_a_wrong_password(monkeypatch):
    """What the server says when it refuses; nothing of the password is repeated."""
    from asyncpg import InvalidPasswordError

    from outlast.cli.asking import Asked
    from outlast.cli.frame import failed
    from outlast.model.errors import Disconnected
    from outlast.stores.desk.transactions import failure_of

    refusal = InvalidPasswordError('password authentication failed for user "ann"')
    failure = failure_of(refusal)
    assert isinstance(failure, Disconnected)
    assert failed(Asked(), failure) == 2


def test_a_table_that_is_not_there(on_postgres):
    refused(on_postgres.run("dlq", "list", "--dlq-table", "letters"), "letters does not exist")
    on_postgres.plant()
    refused(on_postgres.run("dlq", "replay", "1", "--table", "nowhere"), "nowhere", "--table")


WRITING = [
    ["dlq", "replay", "1"],
    ["dlq", "replay-all", "queue:orders", "-y"],
    ["dlq", "purge", "1", "-y"],
    ["dlq", "purge", "queue:orders", "-y", "--hard"],
    ["dlq", "restore", "1"],
    ["dlq", "mark", "1", "--review"],
    ["dlq", "edit", "1", "--header", "a=b"],
]
READING = [
    ["dlq", "list"],
    ["dlq", "inspect", "1"],
    ["dlq", "inspect", "--all"],
    ["dlq", "groups"],
    ["dlq", "stats"],
    ["dlq", "history", "1"],
    ["dlq", "export"],
    ["outbox", "list"],
    ["workers", "list"],
    ["subscriptions", "list"],
]


@pytest.fixture
def reader(on_postgres):
    """The address of a role that may SELECT, and nothing else."""
    name, schema = f"r_{uuid.uuid4().hex[:12]}", on_postgres.database.schema

    async def grant(engine):
        async with engine.begin() as connection:
            for statement in (
                f"CREATE ROLE {name} LOGIN PASSWORD 'sesame'",
                f"GRANT USAGE ON SCHEMA {schema} TO {name}",
                f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}",
            ):
                await connection.execute(text(statement))

    async def drop(engine):
        async with engine.begin() as connection:
            await connection.execute(text(f"DROP OWNED BY {name}"))
            await connection.execute(text(f"DROP ROLE {name}"))

    on_postgres.database.run(grant)
    from sqlalchemy import make_url

    url = make_url(on_postgres.environment["OUTLAST_DSN"]).set(username=name, password="sesame")
    try:
        yield url.render_as_string(False)
    finally:
        on_postgres.database.run(drop)


@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_a_role_that_may_only_look_looks(on_postgres, reader, verb):
    on_postgres.plant(2)
    done = on_postgres.run(*verb, "--dsn", reader)
    assert (done.status, done.err.replace("Exported 2 message(s).\n", "")) == (0, "")


@pytest.mark.parametrize("verb", WRITING, ids=" ".join)
def test_a_role_that_may_only_look_is_told_so(on_postgres, reader, verb):
    on_postgres.plant(2)
    done = on_postgres.run(*verb, "--dsn", reader)
    refused(done, "permission denied", "right")
    assert set(on_postgres.states().values()) == {"open"}


@pytest.mark.parametrize("verb", WRITING, ids=" ".join)
def test_a_database_that_somebody_holds(command, monkeypatch, verb):
    """The command waits as long as SQLite does, then says so: status 1, and nothing is changed."""
    command.plant(2)
    path = command.environment["OUTLAST_DSN"].removeprefix("sqlite:///")
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    try:
        done = command.run(*verb, "--dsn", f"sqlite+aiosqlite:///{path}?timeout=0.1")
    finally:
        held.close()
    assert done.status == 1, done.err
    assert any(word in done.err for word in ("locked", "somebody else", "meanwhile"))
    assert "unexpected" not in done.err
    assert set(command.states().values()) == {"open"}


def test_a_bad_actor(command):
    refused(command.run("dlq", "list", "--actor", "x" * 300), "name")


FULL = "/dev/full"


@pytest.mark.skipif(not Path(FULL).exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "verb", [["dlq", "list"], ["version"], ["--help"], ["dlq", "list", "--json"]]
)
def test_an_output_that_is_full(command, verb):
    """Status 1 and one line: whoever asked did not get the answer."""
    command.plant(30)
    with Path(FULL).open("w") as full, command.process(*verb, stdout=full) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the output cannot be written" in said
    assert "Traceback" not in said
    assert "unexpected" not in said


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_stream_that_is_closed(command, stream):
    """The verb does its work all the same, and no stream is mistaken for the database."""
    (letter,) = command.plant()
    script = f'exec "$0" -m outlast dlq replay {letter} {stream}>&-'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable],
        env=os.environ | command.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert command.states() == {letter: "replaying"}


def test_ctrl_c_while_waiting_still_tells_what_was_sent(command):
    """With `--json` too: the letter is on its way, whatever became of the wait."""
    (letter,) = command.plant()
    with command.process("dlq", "replay", letter, "--wait", "--json") as process:
        while command.states() != {letter: "replaying"}:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f'"dlq_id": {letter}' in out
    assert "Aborted." in err
    assert "Traceback" not in err


def test_no_color_is_heeded():
    """On a terminal: without it there is colour, with it there is none."""
    import pty

    def said(**environment):
        ours, theirs = pty.openpty()
        try:
            subprocess.run(
                [sys.executable, "-m", "outlast", "--help"],
                env={n: v for n, v in os.environ.items() if n != "NO_COLOR"}
                | {"TERM": "xterm-256color"}
                | environment,
                stdout=theirs,
                stderr=theirs,
                check=True,
                timeout=60,
            )
            os.set_blocking(ours, False)
            text = b""
            try:
                while piece := os.read(ours, 65_536):
                    text += piece
            except BlockingIOError:
                pass
            return text
        finally:
            os.close(ours)
            os.close(theirs)

    def coloured(text):
        import re

        codes = re.findall(rb"\x1b\[([0-9;]*)m", text)
        return any(part.startswith((b"3", b"9")) for code in codes for part in code.split(b";"))

    assert coloured(said())
    assert not coloured(said(NO_COLOR="1"))


def test_the_statuses_are_those_of_the_page():
    """F-K19: 0, 1, 2 and 3."""
    from outlast.cli.frame import DONE, FAILED, USAGE
    from outlast.model.replay import REFUSED

    assert (DONE, FAILED, USAGE, REFUSED) == (0, 1, 2, 3)
