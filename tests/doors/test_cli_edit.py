"""`outlast dlq edit` and replays with a change: options, the editor, what is refused."""

import hashlib
import inspect
import json
import os
import pty
import sys
import textwrap
from pathlib import Path

import pytest

from tests.doors.dlq_command import Command

BODY = b'{"total": 1.10, "password": "hunter2"}'
PATCH = '[{"op": "replace", "path": "/total", "value": 0}]'


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def revisions(command):
    return [(row["revision"], row["payload"]) for row in command.rows(command.beside.revision)]


def test_a_patch_becomes_a_revision_and_is_sent(anywhere):
    """S4-75: the diff is shown, the original bytes are kept, the replay sends the newest."""
    (letter,) = anywhere.plant()
    done = anywhere.run("dlq", "edit", letter, "--patch", PATCH, "--reason", "price was negative")
    assert done.status == 0, done.err
    assert '-  "total": 1.10,' in done.out
    assert '+  "total": 0,' in done.out
    assert f"Edited message '{letter}': revision 1." in done.out
    assert "hunter2" not in done.out + done.err
    ((_, sent),) = revisions(anywhere)
    assert json.loads(sent) == {"total": 0, "password": "hunter2"}
    assert anywhere.rows(anywhere.dlq)[0]["payload"] == BODY
    assert anywhere.run("dlq", "replay", letter).status == 0
    assert [row["payload"] for row in anywhere.rows(anywhere.outbox)] == [sent]
    told = [(row["kind"], row["reason"]) for row in anywhere.rows(anywhere.beside.history)]
    assert ("edited", "price was negative") in told


def test_the_first_bytes_can_still_be_sent(command):
    """S4-75: `--original` passes over the revision."""
    (letter,) = command.plant()
    assert command.run("dlq", "edit", letter, "--patch", PATCH).status == 0
    assert command.run("dlq", "replay", letter, "--original").status == 0
    assert [row["payload"] for row in command.rows(command.outbox)] == [BODY]


@pytest.mark.parametrize("form", ["@{}", "{}"])
def test_a_patch_may_be_a_file(command, tmp_path, form):
    path = tmp_path / "patch.json"
    path.write_text(PATCH)
    (letter,) = command.plant()
    done = command.run("dlq", "edit", letter, "--patch", form.format(path), "--json")
    assert (done.status, done.document["revision"]) == (0, 1)


def test_a_payload_may_be_a_file_or_stdin(command, tmp_path, monkeypatch):
    path = tmp_path / "body"
    path.write_bytes(b"\x00\xff any bytes")
    (letter,) = command.plant()
    assert command.run("dlq", "edit", letter, "--payload", path).status == 0
    monkeypatch.setattr(sys, "stdin", path.open())
    path.write_bytes(b"others")
    assert command.run("dlq", "edit", letter, "--payload", "-").status == 0
    assert revisions(command) == [(1, b"\x00\xff any bytes"), (2, b"others")]


def test_headers_are_set_and_taken_away(command):
    (letter,) = command.plant(headers={"content-type": "application/json", "a": "1", "b": "2"})
    done = command.run(
        *("dlq", "edit", letter, "--header", "a=x=y", "--header", "c=", "--unset-header", "b")
    )
    assert done.status == 0, done.err
    (row,) = command.rows(command.beside.revision)
    assert row["headers"] == {"content-type": "application/json", "a": "x=y", "c": ""}


@pytest.mark.parametrize("verb", [["edit", "1"], ["replay", "1"], ["replay-all", "--all", "-y"]])
def test_a_dry_run_shows_the_diff_and_writes_nothing(command, verb):
    """U-07: every table is as before, byte by byte."""
    command.plant(2)

    def everything():
        tables = (command.dlq, command.outbox, *command.beside)
        return hashlib.sha256(repr([command.rows(table) for table in tables]).encode()).hexdigest()

    before = everything()
    done = command.run("dlq", *verb, "--patch", PATCH, "--header", "a=b", "--dry-run")
    assert done.status == 0, done.err
    assert '+  "total": 0,' in done.out
    assert '+a: "b"' in done.out
    assert "Would" in done.out
    assert everything() == before


def test_a_transform_is_recorded_with_its_source(command, tmp_path, monkeypatch):
    """U-17 S4-75: name, version and the digest of the source; the original stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    source = "__version__ = '2.1'\n\n\ndef free(body):\n    return body | {'total': 0}\n"
    (tmp_path / "mending_of_test.py").write_text(source)
    (letter,) = command.plant()
    done = command.run("dlq", "replay", letter, "--transform", "mending_of_test:free")
    assert done.status == 0, done.err
    (row,) = command.rows(command.beside.revision)
    assert "mending_of_test:free" in row["transform"]
    assert "2.1" in row["transform"]
    import mending_of_test

    assert row["digest"]
    written = hashlib.sha256(inspect.getsource(mending_of_test.free).encode()).hexdigest()
    whole = hashlib.sha256(source.encode()).hexdigest()
    assert row["digest"].rpartition(":")[2] in {written, whole}
    assert json.loads(command.rows(command.outbox)[0]["payload"])["total"] == 0
    assert command.rows(command.dlq)[0]["payload"] == BODY


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--patch", "[1]"], "operation 1"),
        (["--patch", '[{"op": "fly"}]'], "op"),
        (["--patch", "no-such-file"], "no-such-file"),
        (["--payload", "/"], "/ cannot be read"),
        (["--header", "x"], "'x' has no name and value"),
        (["--header", "=x"], "has no name and value"),
        (["--header", "a=1", "--unset-header", "a"], "named twice"),
        (["--header", "outlast-replay=1"], "reserved"),
        (["--transform", "no_such_module:f"], "no_such_module"),
        (["--transform", "os"], "os"),
        (["--not-idempotent"], "--not-idempotent"),
        ([], "no terminal"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_change_that_nobody_can_mean(command, arguments, said):
    (letter,) = command.plant()
    done = command.run("dlq", "edit", letter, *arguments)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert revisions(command) == []


def test_a_letter_that_is_not_there(command):
    """S2-62: the same sentence as everywhere."""
    done = command.run("dlq", "edit", "abc", "--header", "a=b")
    assert (done.status, done.err.splitlines()[0]) == (1, "DLQ message 'abc' not found.")


# -- the editor, on a terminal


class Editor:
    """A command for $EDITOR that runs Python on the file's name; `path`, `mode`, `seen` after."""

    def __init__(self, folder):
        self.folder = folder
        self.script = folder / "editor.py"

    def does(self, code):
        self.script.write_text(
            "import os, pathlib, stat, sys\n"
            "path = pathlib.Path(sys.argv[1])\n"
            f"folder = pathlib.Path({str(self.folder)!r})\n"
            "(folder / 'path').write_text(str(path))\n"
            "(folder / 'mode').write_text(oct(stat.S_IMODE(path.stat().st_mode)))\n"
            "(folder / 'seen').write_text(path.read_text())\n" + textwrap.dedent(code)
        )
        return f"{sys.executable} {self.script}"

    def told(self, name):
        return (self.folder / name).read_text()


@pytest.fixture
def editor(tmp_path, monkeypatch):
    # drafts that are kept go with the test
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Editor(tmp_path)


def edited(command, editor, code, *arguments):
    """`dlq edit 1` on a terminal whose $EDITOR does this."""
    ours, theirs = pty.openpty()
    command.environment["EDITOR"] = editor if code is None else editor.does(code)
    command.environment.pop("VISUAL", None)
    try:
        with command.process(
            "dlq", "edit", "1", *arguments, stdin=theirs, stderr=theirs
        ) as process:
            out, _ = process.communicate(timeout=60)
        os.close(theirs)
        err = b""
        try:
            while piece := os.read(ours, 65_536):
                err += piece
        except OSError:
            pass
        return process.returncode, out, err.decode().replace("\r\n", "\n")
    finally:
        os.close(ours)


SAVE = "path.write_text(path.read_text().replace('1.10', '0'))"


def test_the_editor_gets_the_payload_and_what_is_saved_is_a_revision(command, editor):
    """A file for its owner alone, the body and nothing else in it, and gone afterwards."""
    command.plant(payload=b'{"total": 1.10}')
    status, out, err = edited(command, editor, SAVE)
    assert status == 0, err
    assert "Edited message '1': revision 1." in out
    assert editor.told("mode") == "0o600"
    assert editor.told("seen") == '{\n  "total": 1.10\n}\n'
    assert not Path(editor.told("path")).parent.exists()
    ((_, sent),) = revisions(command)
    assert sent == b'{\n  "total": 0\n}'
    status, out, err = edited(command, editor, "path.write_text('{}')")
    assert status == 0, err
    assert json.loads(editor.told("seen")) == {"total": 0}
    assert revisions(command)[1] == (2, b"{}")


def test_an_unchanged_file_is_nothing_to_do(command, editor):
    command.plant()
    status, out, _ = edited(command, editor, "")
    assert (status, out) == (0, "Nothing was changed.\n")
    assert revisions(command) == []


def test_a_mask_is_not_saved(command, editor):
    """What was typed is kept for its owner; `--reveal` shows the secret, and is recorded."""
    command.plant()
    status, out, err = edited(command, editor, SAVE)
    assert (status, out) == (2, "")
    assert "•••" in err
    assert "hunter2" not in editor.told("seen")
    kept = editor.told("path")
    assert kept in err
    assert '"total": 0' in Path(kept).read_text()
    assert revisions(command) == []
    status, out, err = edited(command, editor, SAVE, "--reveal")
    assert status == 0, err
    assert "hunter2" in editor.told("seen")
    assert json.loads(revisions(command)[0][1]) == {"total": 0, "password": "hunter2"}
    assert "revealed" in [row["kind"] for row in command.rows(command.beside.history)]


def test_json_that_is_none_any_more_is_not_saved(command, editor):
    command.plant(payload=b'{"total": 1.10}')
    status, _, err = edited(command, editor, "path.write_text('{')")
    assert status == 2
    assert "no JSON" in err
    assert revisions(command) == []


@pytest.mark.parametrize("failing", [True, False], ids=["fails", "is not there"])
def test_an_editor_that_fails(command, editor, failing):
    command.plant()
    if failing:
        status, out, err = edited(command, editor, f"{SAVE}; sys.exit(3)")
        assert not Path(editor.told("path")).exists()
    else:
        status, out, err = edited(command, "/no/such/editor", None)
    assert (status, out) == (2, "")
    assert "the editor" in err
    assert "Traceback" not in err
    assert revisions(command) == []


def test_a_letter_that_changed_meanwhile_is_not_overwritten(command, editor):
    """What was typed is kept."""
    command.plant(payload=b'{"total": 1.10}')
    code = f"""
    {SAVE}
    import subprocess
    for name in ("EDITOR", "VISUAL"):
        os.environ.pop(name, None)
    subprocess.run(
        [sys.executable, "-m", "outlast", "dlq", "edit", "1", "--header", "a=b"], check=True
    )
    """
    status, _, err = edited(command, editor, code)
    assert status == 1
    assert "has changed meanwhile" in err
    assert editor.told("path") in err
    assert [number for number, _ in revisions(command)] == [1]


def test_bytes_are_not_for_an_editor(command, editor):
    command.plant(payload=b"\x00\xff")
    status, _, err = edited(command, editor, SAVE)
    assert status == 2
    assert "--payload FILE" in err
