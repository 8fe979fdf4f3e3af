"""What the demo prints at its end, pasted into a shell in another folder, does what it says."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote

import pytest

from outlast.demo import steps
from outlast.demo.around import CannotUseFile
from outlast.demo.at_work import run_fixed

SCRIPT = Path(sys.executable).parent / "outlast"
LIMIT = 60
UNWANTED = re.compile("OUTLAST_|DATABASE_URL$|FORCE_COLOR$")


@pytest.fixture
def folder(tmp_path):
    """A place with a blank in its name, and a program in it that has one, too."""
    place = tmp_path / "a shop's files"
    place.mkdir()
    if SCRIPT.exists():
        (place / "outlast").symlink_to(SCRIPT)
    return place


def environment():
    clean = {k: v for k, v in os.environ.items() if not UNWANTED.match(k)}
    return clean | {"COLUMNS": "80", "NO_COLOR": "1"}


def run(command, cwd, status=0):
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env=environment(),
        cwd=cwd,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def shell(text, status=0):
    """Run it as it stands, somewhere else."""
    return run(["sh", "-e", "-c", text], "/", status)


def outlast(folder):
    script = folder / "outlast"
    return [str(script)] if script.exists() else [sys.executable, "-m", "outlast"]


def demo(folder, *options):
    """A short demo, started by a relative path as `make` does; its file and what it printed."""
    command = ["./outlast"] if (folder / "outlast").exists() else outlast(folder)
    done = run([*command, "demo", "--seconds", "1", "--file", "shop.db", *options], folder)
    return folder / "shop.db", done.stdout


def block(output, title):
    """The lines under a title, up to an empty one: a script."""
    found = re.search(rf"^{re.escape(title)}\n((?:.+\n)+)", output, re.MULTILINE)
    assert found, output
    return "".join(line for line in found[1].splitlines(keepends=True) if line.startswith("  "))


def commands(text):
    """The single commands of a block."""
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.startswith("    ")]


def states(file):
    query = "SELECT state, failure_reason, count(*) FROM outbox_dlq GROUP BY 1, 2"
    with closing(sqlite3.connect(file)) as connection:
        return {(state, reason): count for state, reason, count in connection.execute(query)}


def letters(file):
    query = "SELECT id, error_type, failure_category FROM outbox_dlq ORDER BY id"
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def test_the_printed_commands_lead_from_dead_letters_to_none(folder):
    file, output = demo(folder)
    assert {category for _, _, category in letters(file)} == {"UNKNOWN", "EXTERNAL", "VALIDATION"}
    script = block(output, "Work on the dead letters")
    count = len(letters(file))
    for command in commands(script):
        assert str(file) in command.replace("'\"'\"'", "'"), "it names the file in full"
    done = shell(script)
    said = done.stdout
    assert f"{count} DLQ message(s) found." in said
    assert "KeyError: 'email'" in said
    assert "shop.py" in said, "where in the code"
    assert "versions: 1.0" in said
    assert re.search(r"^Purged \d+ message\(s\) from DLQ\.$", said, re.MULTILINE)
    assert "dead again" in said
    assert said.rstrip().endswith("No DLQ messages found.")
    after = states(file)
    assert {state for state, _ in after} == {"resolved", "discarded"}
    assert {reason for state, reason in after if state == "discarded"} == {"undecodable"}
    history = run([*outlast(folder), "dlq", "history", "1", "--dsn", str(file)], "/").stdout
    assert "mended in 1.1" in history
    assert "resolved by" in history
    with closing(sqlite3.connect(file)) as connection:
        (due,) = connection.execute(
            "SELECT count(*) FROM outbox WHERE queue <> 'reviews'"
        ).fetchone()
    assert due == 0
    again = run([*outlast(folder), "demo", "--fixed", "--file", str(file)], "/").stdout
    assert "No dead letter was sent again. This sends them:" in again
    (printed,) = commands(again)
    assert "No DLQ messages found." in shell(printed).stdout


@contextmanager
def at_work(command, cwd="/"):
    """Handlers in another terminal, until Ctrl-C; and what they have printed so far."""
    before = []
    with subprocess.Popen(
        ["sh", "-c", f"exec {command}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=cwd,
    ) as process:
        try:
            for line in process.stdout:
                before.append(line)
                if "at work on" in line:
                    break
            yield process, "".join(before)
        finally:
            process.kill()


def interrupted(process):
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT)
    assert errors == ""
    return output


def test_beside_a_corrected_worker_a_replay_waits_for_its_success(folder):
    """S2-18 S2-69: fix, restart, replay, and the command tells that the effect has happened."""
    file, output = demo(folder)
    worker, replay = commands(block(output, "Or mend first, and wait for the outcome"))
    with at_work(worker) as (process, _):
        done = shell(replay)
        said = interrupted(process)
    waited = re.findall(r"^Message '\d+' succeeded\.$", done.stdout, re.MULTILINE)
    mendable = [x for x in letters(file) if "JSONDecodeError" not in x[1]]
    assert len(waited) == len(mendable)
    assert process.returncode == 0
    assert "delivered" in said
    assert states(file).keys() == {
        ("resolved", "retry_terminal"),
        ("resolved", "rejected"),
        ("open", "undecodable"),
    }


def test_what_is_kept_at_work_fails_again_and_then_refuses_until_it_is_mended(folder):
    """S2-22 S2-23: the same code, the same letter: the gate says so, corrected code opens it."""
    command = f"{' '.join(map(quote, outlast(folder)))} demo --seconds 1 --file shop.db --keep"
    with at_work(command, folder) as (process, before):
        printed = commands(block(before, "To play with, in another terminal"))
        waiting, refused = (x for x in printed if "dlq replay" in x)
        for other in printed[: printed.index(waiting)]:
            shell(other)
        failed = shell(waiting, 1)
        assert "failed again: retry_terminal: KeyError: 'email'" in failed.stderr
        assert "[unchanged]" in shell(refused, 3).stderr
        for other in printed[printed.index(refused) + 1 :]:
            assert re.search("replay_failed|1\\.0 +live", shell(other).stdout)
        after = interrupted(process)
    assert process.returncode == 0
    assert re.search(r"^ emails +0 +1 +0", after, re.MULTILINE)
    assert "No DLQ messages found." in shell(block(after, "Work on the dead letters")).stdout


def foreign(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE orders (n); CREATE TABLE outbox (n); CREATE TABLE outbox_dlq (n);"
        )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "there is no file"),
        (lambda path: path.mkdir(), "there is no file"),
        (foreign, "no demo has made"),
        (
            lambda path: path.write_bytes(b"not a database, but long enough to be one" * 100),
            "no demo",
        ),
        (lambda path: path.touch(), "no demo has made"),
    ],
    ids=["nothing", "folder", "foreign", "garbage", "empty"],
)
def test_corrected_handlers_leave_what_is_not_theirs_alone(folder, make, sentence):
    file = folder / "shop.db"
    make(file)
    before = file.read_bytes() if file.is_file() else None
    with pytest.raises(CannotUseFile, match=sentence):
        run_fixed(file, keep=False)
    assert (file.read_bytes() if file.is_file() else None) == before


def test_corrected_handlers_need_a_file_and_take_no_orders(folder):
    done = run([*outlast(folder), "demo", "--fixed"], "/", 2)
    assert done.stderr.startswith("outlast: --fixed needs --file")
    assert done.stderr.count("\n") == 1
    given = [*outlast(folder), "demo", "--fixed", "--file", "x", "--seconds", "3"]
    assert "no orders come in" in run(given, "/", 2).stderr


@pytest.mark.parametrize("length", [10, 60, 200])
def test_a_command_fits_the_screen_if_its_paths_do(monkeypatch, length):
    monkeypatch.setattr("sys.argv", ["/nowhere/pytest"])
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    path = "/" + "x" * length
    shown = steps.lines(
        ("dlq", "purge", "reason:undecodable"), ("--reason", "a b"), ("--dsn", path)
    )
    assert all(len(line) <= 80 for line in shown if path not in line)
    assert " ".join("".join(shown).replace("\\", " ").split()) == (
        f"/usr/bin/python3 -m outlast dlq purge reason:undecodable --reason 'a b' --dsn {path}"
    )
