"""`outlast dlq export` and `import`: a file that is whole or not there, and the way back."""

import csv
import io
import json
import stat

import pytest

from tests.doors.dlq_command import Command


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def folder_of(path):
    return sorted(one.name for one in path.parent.iterdir())


def test_an_export_is_a_file_for_its_owner_alone(anywhere, tmp_path):
    anywhere.plant(3)
    anywhere.plant(queue="mail")
    path = tmp_path / "here" / "letters.json"
    path.parent.mkdir()
    done = anywhere.run("dlq", "export", "queue:orders", "-o", path)
    assert (done.status, done.out) == (0, f"Exported 3 message(s) to {path}.\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    documents = json.loads(path.read_text())
    assert len(documents) == 3
    assert "hunter2" not in path.read_text()
    assert folder_of(path) == ["letters.json"]


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv", "pytest"])
def test_every_kind_goes_to_stdout_and_to_a_file_alike(command, tmp_path, kind):
    command.plant(3)
    done = command.run("dlq", "export", "--as", kind)
    assert done.status == 0
    assert done.err == "Exported 3 message(s).\n"
    path = tmp_path / "letters"
    told = command.run("dlq", "export", "--as", kind, "--output", path, "--json")
    assert told.document == {"exported": 3, "file": str(path), "as": kind}
    assert path.read_bytes().decode() == done.out
    if kind == "csv":
        assert len(list(csv.reader(io.StringIO(done.out)))) == 4
    elif kind == "pytest":
        compile(done.out, "test", "exec")


def test_what_is_there_stays_unless_it_was_said(command, tmp_path):
    command.plant()
    path = tmp_path / "here" / "letters.json"
    path.parent.mkdir()
    path.write_text("mine")
    done = command.run("dlq", "export", "-o", path)
    assert (done.status, done.out) == (2, "")
    assert "--overwrite" in done.err
    assert path.read_text() == "mine"
    assert command.run("dlq", "export", "-o", path, "--overwrite").status == 0
    assert len(json.loads(path.read_text())) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert folder_of(path) == ["letters.json"]


def test_a_file_that_comes_meanwhile_stays(command, tmp_path, monkeypatch):
    from outlast.ops import Desk

    command.plant()
    path = tmp_path / "here" / "letters.json"
    path.parent.mkdir()
    whole = Desk.export

    def slow(self, *given, **options):
        async def pieces():
            async for piece in whole(self, *given, **options):
                path.write_text("somebody's")
                yield piece

        return pieces()

    monkeypatch.setattr(Desk, "export", slow)
    done = command.run("dlq", "export", "-o", path)
    assert (done.status, done.out) == (2, "")
    assert path.read_text() == "somebody's"
    assert folder_of(path) == ["letters.json"]


def test_a_link_is_replaced_and_not_followed(command, tmp_path):
    command.plant()
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("somebody's")
    link.symlink_to(target)
    assert command.run("dlq", "export", "-o", link).status == 2
    assert command.run("dlq", "export", "-o", link, "--overwrite").status == 0
    assert target.read_text() == "somebody's"


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_an_export_that_breaks_off_leaves_nothing(command, tmp_path, monkeypatch, overwrite):
    from outlast.model.errors import Disconnected
    from outlast.ops import Desk

    command.plant(3)
    path = tmp_path / "here" / "letters.json"
    path.parent.mkdir()
    before = []
    if overwrite:
        path.write_text("mine")
        before = ["letters.json"]
    whole = Desk.export

    def breaking(self, *given, **options):
        async def pieces():
            async for piece in whole(self, *given, **options):
                yield piece
                raise Disconnected("the database went away")

        return pieces()

    monkeypatch.setattr(Desk, "export", breaking)
    done = command.run("dlq", "export", "-o", path, *overwrite)
    assert (done.status, done.out) == (2, "")
    assert "went away" in done.err
    assert folder_of(path) == before
    assert not before or path.read_text() == "mine"


@pytest.mark.parametrize("place", ["/no/such/folder/x", "{}/file/x", "{}"])
def test_a_place_that_cannot_be_written(command, tmp_path, place):
    command.plant()
    (tmp_path / "file").touch()
    done = command.run("dlq", "export", "-o", place.format(tmp_path), "--overwrite")
    assert (done.status, done.out) == (2, "")
    assert "cannot be written" in done.err


def test_an_unknown_kind(command):
    done = command.run("dlq", "export", "--as", "xml")
    assert done.status == 2
    assert "json, jsonl, csv, pytest" in done.err


def test_what_was_revealed_is_recorded_with_its_reason(command):
    """U-15: who took the secrets away, why, and how many letters."""
    command.plant(2)
    done = command.run("dlq", "export", "--reveal", "--reason", "for the supplier")
    assert "hunter2" in done.out
    (row,) = command.rows(command.beside.history)
    assert (row["kind"], row["actor"], row["reason"]) == ("exported", "ann", "for the supplier")
    assert row["detail"]["count"] == 2


def test_there_and_back(anywhere, tmp_path):
    """Bytes and headers are those that were exported; a second time nothing is done twice."""
    (letter,) = anywhere.plant(payload=b'\x00\xff{"n": 1.10}', message_id="m-1")
    path = tmp_path / "letters.jsonl"
    assert anywhere.run("dlq", "export", "--as", "jsonl", "--reveal", "-o", path).status == 0
    assert anywhere.run("dlq", "purge", letter, "--hard", "-y").status == 0
    dry = anywhere.run("dlq", "import", path, "--dry-run")
    assert (dry.status, dry.out) == (0, "Would import 1 message(s).\n")
    assert anywhere.rows(anywhere.dlq) == []
    done = anywhere.run("dlq", "import", path, "--reason", "a mistake")
    assert (done.status, done.out) == (0, "Imported 1 message(s).\n")
    (row,) = anywhere.rows(anywhere.dlq)
    assert (row["payload"], row["message_id"]) == (b'\x00\xff{"n": 1.10}', "m-1")
    assert row["headers"] == {"content-type": "application/json"}
    again = anywhere.run("dlq", "import", path, "--json")
    assert (again.status, again.document["skipped"]) == (0, 1)
    assert len(anywhere.rows(anywhere.dlq)) == 1


def test_a_masked_export_is_not_imported(command, tmp_path):
    command.plant()
    path = tmp_path / "letters.json"
    assert command.run("dlq", "export", "-o", path).status == 0
    done = command.run("dlq", "import", path)
    assert (done.status, done.out) == (1, "Imported 0 message(s).\n")
    assert "--reveal" in done.err
    assert len(command.rows(command.dlq)) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"\xff\xfe\x00", "UTF-8"), (b"", "nothing to import")],
)
def test_a_file_that_is_no_export(command, tmp_path, content, said):
    """F-K20: a sentence; nothing comes in."""
    path = tmp_path / "letters.json"
    if content is not None:
        path.write_bytes(content)
    done = command.run("dlq", "import", path)
    assert (done.status, done.out) == (2, "")
    assert said in done.err


def test_a_document_that_is_none_is_named_by_its_line(command, tmp_path):
    path = tmp_path / "letters.jsonl"
    path.write_text("{}\nnonsense\n")
    done = command.run("dlq", "import", path)
    assert done.status == 1
    assert "Document 1 (line 1) failed: " in done.err
    assert "Document 2 (line 2) failed: " in done.err
