"""`outlast dlq` on many letters: Ctrl-C, the bar, the line in the history, reasons, hints."""

import json
import os
import pty
import re
import signal
from datetime import UTC, datetime

import pytest

from tests.doors.dlq_command import Command


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def summaries(command):
    """What the history tells of operations on many."""
    return [row for row in command.rows(command.beside.history) if row["dlq_id"] is None]


@pytest.mark.parametrize(
    ("verb", "kind", "counted"),
    [("replay-all", "replayed", "replayed"), ("purge", "discarded", "purged")],
)
def test_an_operation_on_many_is_one_line_of_the_history(anywhere, verb, kind, counted):
    """S3-48: actor, time, filter, count and reason."""
    anywhere.plant(3)
    anywhere.plant(queue="mail")
    started = datetime.now(UTC)
    done = anywhere.run("dlq", verb, "queue:orders", "-y", "--reason", "the gateway is back")
    assert done.status == 0, done.err
    (row,) = summaries(anywhere)
    assert (row["kind"], row["actor"], row["reason"]) == (kind, "ann", "the gateway is back")
    assert row["detail"]["filter"] == "queue:orders"
    assert row["detail"][counted] == 3
    assert abs((row["at"] - started).total_seconds()) < 60
    assert "stopped" not in row["detail"]


@pytest.mark.parametrize("verb", ["replay-all", "purge"])
def test_a_reason_that_was_not_given_is_recorded_as_such(command, verb):
    """S4-107: in the line of the whole and in that of each letter."""
    command.plant(2)
    assert command.run("dlq", verb, "queue:orders", "-y").status == 0
    assert {row["reason"] for row in command.rows(command.beside.history)} == {"not given"}


WITHOUT_REASON = [
    ["replay", "1"],
    ["replay-all", "queue:orders", "-y"],
    ["purge", "1", "-y"],
    ["purge", "queue:orders", "-y"],
    ["purge", "queue:orders", "--hard"],
]


@pytest.mark.parametrize("verb", WITHOUT_REASON, ids=" ".join)
def test_where_a_reason_is_required_its_absence_is_refused(command, tmp_path, verb):
    """U-13 S2-30 S4-107: before anybody is asked; a dry run needs none."""
    (tmp_path / "strict.toml").write_text("require_reason = true\n")
    command.plant(2)
    strict = [*verb, "--config", tmp_path / "strict.toml"]
    done = command.run("dlq", *strict)
    assert (done.status, done.out) == (2, "")
    assert "needs a reason" in done.err
    assert set(command.states().values()) == {"open"}
    assert command.run("dlq", *strict, "--dry-run").status == 0
    if "-y" in verb or verb[0] == "replay":
        assert command.run("dlq", *strict, "--reason", "superseded by a later event").status == 0
        assert {row["reason"] for row in command.rows(command.beside.history)} == {
            "superseded by a later event"
        }


def test_ctrl_c_stops_between_chunks_and_says_what_was_done(anywhere):
    """S3-48: the rest stays open; what is said and recorded to be done is what is done."""
    anywhere.plant(600)
    arguments = ("replay-all", "--all", "-y", "--rate", "20/s", "--reason", "fixed")
    with anywhere.process("dlq", *arguments) as process:
        said = process.stderr.readline()
        while "of 600" not in said:
            assert said
            said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Stopped." in err
    number = int(re.search(r"Replayed (\d+) message", out)[1])
    assert 0 < number < 600
    assert list(anywhere.states().values()).count("replaying") == number
    (row,) = summaries(anywhere)
    assert (row["kind"], row["reason"]) == ("replayed", "fixed")
    assert (row["detail"]["replayed"], row["detail"]["stopped"]) == (number, True)
    assert anywhere.run("dlq", "replay-all", "--all", "-y").status == 0
    assert set(anywhere.states().values()) == {"replaying"}


def test_a_stopped_run_is_one_document(command):
    command.plant(600)
    with command.process("dlq", "replay-all", "--all", "-y", "--rate", "20/s", "--json") as process:
        while "of 600" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    document = json.loads(out)
    assert document["stopped"] is True
    assert list(command.states().values()).count("replaying") == document["replayed"]


def test_a_run_whose_database_goes_away_has_told_what_was_done(command, monkeypatch):
    """S3-48: the record of a run that broke off counts the chunks before."""
    from outlast.model.errors import Disconnected
    from outlast.ops import Desk

    command.plant(30)
    on_chunk, calls = Desk._on_chunk, []

    async def breaking(self, run, batch, found):
        calls.append(found)
        if len(calls) == 3:
            raise Disconnected("the database went away")
        return await on_chunk(self, run, batch, found)

    monkeypatch.setattr(Desk, "_on_chunk", breaking)
    monkeypatch.setattr("outlast.config.Settings.desk_options", small_chunks)
    done = command.run("dlq", "purge", "--all", "-y")
    assert done.status == 1
    assert "stopped after 20 letters" in done.err
    (row,) = summaries(command)
    assert (row["detail"]["purged"], row["detail"]["stopped"]) == (20, True)


def small_chunks(_settings, _body_test=None):
    from outlast.ops import DeskOptions

    return DeskOptions(chunk=10)


def test_a_terminal_sees_a_bar_and_nothing_of_it_stays(command):
    """Elsewhere there are lines, as the tests above read them."""
    command.plant(600)
    ours, theirs = pty.openpty()
    try:
        with command.process("dlq", "purge", "--all", "-y", stderr=theirs) as process:
            out, _ = process.communicate(timeout=60)
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 65_536):
                said += piece
        except OSError:
            pass
    finally:
        os.close(ours)
    assert (process.returncode, out) == (0, "Purged 600 message(s) from DLQ.\n")
    assert re.search(rb"\r\[#+\.+\] \d+ of 600", said)
    assert said.endswith(b"\r\x1b[K")
    assert b"\n" not in said


@pytest.mark.parametrize(("count", "hinted"), [(1000, False), (1001, True)])
def test_above_a_thousand_the_rate_is_pointed_out(command, count, hinted):
    """Not to whoever has said one already."""
    command.plant(count)
    ours, theirs = pty.openpty()
    try:
        with command.process("dlq", "replay-all", "--all", stdin=theirs) as process:
            said = ""
            while not said.endswith("[y/N]: "):
                character = process.stderr.read(1)
                assert character, said
                said += character
            os.write(ours, b"n\n")
            process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 1
    assert ("--rate" in said) is hinted
    assert f"{count} DLQ message(s)." in said


def test_each_entry_that_is_gone_is_told_with_what_became_of_it(command):
    """S2-62: from the history, for inspect and replay; status 1."""
    (letter,) = command.plant()
    assert command.run("dlq", "purge", letter, "--hard", "-y").status == 0
    for verb in ("inspect", "replay"):
        done = command.run("dlq", verb, letter)
        assert (done.status, done.out) == (1, "")
        assert f"DLQ message '{letter}' not found." in done.err
        assert re.search(r"purged at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by ann", done.err)
    (other,) = command.plant(state="resolved", resolution="acknowledged", replay_count=1)
    done = command.run("dlq", "replay", other)
    assert done.status == 1
    assert "already replayed" in done.err


def test_a_second_ctrl_c_does_not_wait_for_the_chunk(command):
    """What the chunks before have done is recorded all the same."""
    command.plant(30)
    with command.process("dlq", "replay-all", "--all", "-y", "--rate", "0.01/s") as process:
        said = process.stderr.readline()
        while "1 of 30" not in said:
            assert said
            said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        while "Ctrl-C again" not in said:
            assert said
            said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Aborted." in err
    assert "Traceback" not in err
    (row,) = summaries(command)
    assert (row["detail"]["replayed"], row["detail"]["stopped"]) == (1, True)
