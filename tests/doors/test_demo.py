"""`outlast demo` as a stranger runs it: a process of its own, with and without a terminal."""

import io
import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
from threading import Timer

import pytest
import sqlalchemy
from rich.console import Console

from outlast.demo import ledger, play
from outlast.demo.shop import outbox, outbox_dlq

COMMAND = [sys.executable, "-m", "outlast", "demo"]
UNWANTED = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE")
LIMIT = 60
COLOUR = re.compile(r"\x1b\[(?:\d+;)*3\d(?:;\d+)*m")
ROW = re.compile(r" *\d+ s +[1-9]")


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    """What stays after a demo goes with the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def environment(**extra):
    return {k: v for k, v in os.environ.items() if k not in UNWANTED} | extra


def demo(*options, **extra):
    return subprocess.run(
        [*COMMAND, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env=environment(**extra),
    )


def figures(output):
    """The last table."""
    table = output.partition("The ledger")[2]
    found = re.findall(r"^ ([a-z, ]+?)[ |]{2,}([\d,]+)\b", table, re.MULTILINE)
    return {name: int(count.replace(",", "")) for name, count in found}


def assert_balances(output):
    numbers = figures(output)
    assert numbers["committed"] > 0
    assert numbers["committed"] == numbers["together"]
    assert numbers["together"] == numbers["delivered"] + numbers["dead"] + numbers["waiting"]
    assert numbers["rolled back, yet seen"] == 0
    assert "It balances" in output
    return numbers


def test_without_a_terminal_it_writes_plain_lines_and_proves_that_nothing_is_lost(tmp_path):
    done = demo("--seconds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    # a path is as long as it is
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "/" not in line)
    assert " time  committed  delivered  retried  dead  waiting" in done.stdout
    numbers = assert_balances(done.stdout)
    # whatever the speed of the machine, a second is enough for the first of each
    assert numbers["rolled back"] > 0
    assert numbers["waiting"] > 0
    for cause in ("retry_terminal", "rejected", "undecodable", "shop.py:"):
        assert cause in done.stdout
    assert "Work on the dead letters" in done.stdout
    assert str(tmp_path) in done.stdout, "the file stays where it is said to be"


def test_a_kept_file_holds_what_the_last_table_says(tmp_path):
    file = tmp_path / "shop.db"
    done = demo("--seconds", "0.5", "--file", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = assert_balances(done.stdout)
    assert str(file) in done.stdout.replace("\n", "")
    with sqlite3.connect(file) as connection:
        committed = [
            m for (ms,) in connection.execute("SELECT messages FROM orders") for m in ms.split()
        ]
        (dead,) = connection.execute("SELECT count(*) FROM outbox_dlq").fetchone()
        (waiting,) = connection.execute("SELECT count(*) FROM outbox").fetchone()
        (leased,) = connection.execute("SELECT count(acquired_token) FROM outbox").fetchone()
    assert (len(committed), dead, waiting) == tuple(
        numbers[name] for name in ("committed", "dead", "waiting")
    )
    assert leased == 0, "a drain leaves nothing in hand"


def test_an_existing_file_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "precious.db"
    file.write_bytes(b"mine")
    done = demo("--file", str(file))
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert "Traceback" not in done.stderr
    assert file.read_bytes() == b"mine"


def test_a_file_in_no_directory_is_refused_in_a_sentence(tmp_path):
    done = demo("--file", str(tmp_path / "nowhere" / "shop.db"))
    assert done.returncode == 2
    assert done.stderr.startswith("outlast: cannot make ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_an_interrupt_drains_and_the_ledger_balances(interrupt):
    with subprocess.Popen(
        [*COMMAND, "--seconds", "10"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        watchdog = _watchdog(process)
        for line in process.stdout:
            if ROW.match(line):  # something is committed, and more is coming in
                process.send_signal(interrupt)
                break
        rest, errors = process.communicate(timeout=LIMIT)
        watchdog.cancel()
    assert process.returncode == 0, rest + errors
    assert errors == ""
    assert "stopped" in rest
    assert "no more orders" not in rest, "it did not wait for its time"
    assert_balances(rest)


def _watchdog(process):
    timer = Timer(LIMIT, process.kill)
    timer.start()
    return timer


def test_a_terminal_that_knows_ascii_only_is_enough():
    done = demo("--seconds", "0.3", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii()
    assert_balances(done.stdout)


def on_a_terminal(*options, **extra):
    pty = pytest.importorskip("pty", reason="pseudo-terminals are POSIX")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm-256color", COLUMNS="80", LINES="50", **extra),
    )
    os.close(theirs)
    output = b""
    try:
        while select.select([ours], [], [], LIMIT)[0]:
            try:
                read = os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not read:
                break
            output += read
        return process.wait(LIMIT), output.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("extra", [{}, {"NO_COLOR": "1"}], ids=["colour", "no_color"])
def test_on_a_terminal_the_picture_moves(extra):
    status, output = on_a_terminal("--seconds", "0.3", **extra)
    assert status == 0, output
    assert "\x1b[1A" in output, "the picture is drawn over itself"
    assert "what happens there" in output
    assert "It balances" in output
    assert bool(COLOUR.search(output)) == (not extra)


def lose_a_dead_letter():
    return outbox_dlq.delete().where(outbox_dlq.c.id.in_(_one_id(outbox_dlq)))


def lose_a_waiting_message():
    return outbox.delete().where(outbox.c.id.in_(_one_id(outbox)))


def call_a_dead_letter_delivered():
    update = outbox_dlq.update().where(outbox_dlq.c.id.in_(_one_id(outbox_dlq)))
    return update.values(state="resolved")


def _one_id(table):
    return sqlalchemy.select(table.c.id).limit(1)


@pytest.mark.parametrize(
    "loss", [lose_a_dead_letter, lose_a_waiting_message, call_a_dead_letter_delivered]
)
def test_a_message_that_is_lost_behind_its_back_makes_the_demo_fail(monkeypatch, loss):
    take_stock = ledger.take_stock

    async def after_a_loss(session, record, rolled_back):
        lost = await session.execute(loss())
        assert lost.rowcount == 1
        return await take_stock(session, record, rolled_back)

    monkeypatch.setattr(ledger, "take_stock", after_a_loss)
    output = io.StringIO()
    status = play.run(play.Settings(seconds=0.5, rate=1000), Console(file=output, width=80))
    assert status == 1
    assert "does NOT balance" in output.getvalue()
    assert "neither delivered nor dead nor waiting" in output.getvalue()


def test_a_service_that_fails_ends_the_demo_and_is_not_taken_for_a_proof(monkeypatch, tmp_path):
    async def broken(self, number):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("outlast.demo.shop.Shop.place", broken)
    with pytest.raises(RuntimeError, match="the disk is full"):
        play.run(play.Settings(seconds=0.5), Console(file=io.StringIO(), width=80))
    assert list(tmp_path.iterdir()) == [], "nobody was told of the file, so it does not stay"
