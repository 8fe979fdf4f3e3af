"""Many letters are sent again by several at once, or by somebody who is killed: each goes once."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import text

from outlast.api import make_app
from outlast.ops import Desk, DeskOptions
from outlast.ops.tokens import TokenBook, new_token
from tests.doors.dlq_command import Command

CHUNK = 50
FEWEST_STEPS = 8

COMMAND = """
import atexit, os, signal, sys
from dataclasses import replace

from sqlalchemy import event
from sqlalchemy.engine import Engine

from outlast.cli import main
from outlast.config import Settings

waits, dies_at, chunk = int(sys.argv.pop(1)), int(sys.argv.pop(1)), int(sys.argv.pop(1))
sent, writes = 0, False
options_of = Settings.desk_options
Settings.desk_options = lambda self, test=None: replace(options_of(self, test), chunk=chunk)

def step():
    global sent
    sent += writes
    if writes and sent == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)

def before(_connection, _cursor, statement, *_):
    global waits, writes
    writes = writes or "FOR UPDATE" in statement or statement.startswith("UPDATE")
    if waits and writes:
        waits = 0
        sys.stderr.write("ready\\n")
        sys.stderr.flush()
        sys.stdin.readline()
    step()

event.listen(Engine, "before_cursor_execute", before)
event.listen(Engine, "commit", lambda _connection: step())
atexit.register(lambda: sys.stderr.write(f"{sent} steps\\n"))
main()
"""
"""The command, which waits before its first write, or dies at a statement or a commit after it."""

REPLAY_ALL = ("dlq", "replay-all", "--all", "-y", "--reason", "the carrier is back")


@pytest.fixture
def command(database, monkeypatch, capsys):
    return Command(database, monkeypatch, capsys)


@contextmanager
def replay_all(command, *, waits=False, dies_at=0, chunk=CHUNK):
    arguments = [str(int(waits)), str(dies_at), str(chunk), *REPLAY_ALL]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        env=os.environ | command.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while waits and process.stderr.readline() != "ready\n":
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def left(command):
    """Wait until the server has noticed that whoever was killed is gone, and let go their locks."""
    if not command.database.is_postgres:
        return

    async def body(engine):
        async with engine.begin() as connection:
            for table in (command.outbox, command.dlq):
                await connection.execute(text(f"lock table {table.fullname} in exclusive mode"))

    command.database.run(body)


def replayed(out):
    return sum(int(number) for number in re.findall(r"Replayed (\d+) message", out))


def checked(command):
    """Each letter is open and nowhere else, or on its way as exactly one row; how many of each."""
    rows = command.rows(command.outbox)
    on_the_way = {row["id"]: row["headers"]["outlast-replay"] for row in rows}
    assert len(set(on_the_way.values())) == len(rows)
    letters = command.rows(command.dlq)
    links = {x["replayed_as"]: x["id"] for x in letters if x["state"] == "replaying"}
    assert links == on_the_way
    assert all(row["payload"] == letters[0]["payload"] for row in rows)
    states = [letter["state"] for letter in letters]
    assert set(states) <= {"open", "replaying"}
    counts = {(letter["state"], letter["replay_count"]) for letter in letters}
    assert counts <= {("open", 0), ("replaying", 1)}
    return states.count("open"), len(rows)


def test_two_commands_at_once_send_each_letter_once(command):
    """Conservation: two `replay-all` of 500 send 500, and nobody is told of an error."""
    command.plant(500)
    with replay_all(command, waits=True) as one, replay_all(command, waits=True) as other:
        for process in (one, other):
            process.stdin.write("go\n")
            process.stdin.flush()
        ended = [process.communicate(timeout=120) for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], ended
    assert sum(replayed(out) for out, _ in ended) == 500
    assert checked(command) == (0, 500)


def test_a_command_and_a_request_at_once_send_each_letter_once(command):
    """F-G05: `replay-all` beside `POST /api/dlq/replay-all`, 500 between them."""
    command.plant(500)
    token = new_token("runbook", ["replay"])

    async def both(engine):
        desk = Desk(engine, command.outbox, command.dlq, options=DeskOptions(chunk=CHUNK))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(desk, TokenBook.parse([token.line]))),
            base_url="http://127.0.0.1:8787",
            headers={"Authorization": f"Bearer {token.secret}"},
            timeout=120,
        ) as caller:
            process.stdin.write("go\n")
            process.stdin.flush()
            answer, ended = await asyncio.gather(
                caller.post("/api/dlq/replay-all", json={"all": True}),
                asyncio.to_thread(process.communicate, timeout=120),
            )
        return answer, ended

    with replay_all(command, waits=True) as process:
        answer, (out, err) = command.database.run(both)
    assert (answer.status_code, process.returncode) == (200, 0), (answer.text, err)
    assert answer.json()["replayed"] + replayed(out) == 500
    assert checked(command) == (0, 500)


def test_a_killed_run_is_run_again(command):
    """F-G04: killed before each statement and each commit; none lost, none twice."""
    size, chunk = 2, 2
    command.plant(size)
    with replay_all(command, chunk=chunk) as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    steps = int(re.search(r"(\d+) steps", err)[1])
    assert checked(command) == (0, size)
    total = size
    assert steps >= FEWEST_STEPS
    for dies_at in range(1, steps + 1):
        command.plant(size)
        total += size
        with replay_all(command, dies_at=dies_at, chunk=chunk) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, (dies_at, out, err)
        left(command)
        is_open, on_the_way = checked(command)
        assert is_open + on_the_way == total
    with replay_all(command, chunk=chunk) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert checked(command) == (0, total)
    assert "DLQ replay complete" in err
