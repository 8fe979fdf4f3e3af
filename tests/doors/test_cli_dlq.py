"""`outlast dlq` looks: inspect, history, groups, stats; what it says, and how it fails."""

import json
import os
import subprocess
import sys

import pytest

from outlast.cli.asking import shaped
from tests.doors.dlq_command import Command


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def test_inspect_answers_what_an_operator_asks(anywhere):
    """S2-15 S2-17: Protean's lines, then which queue, why, how often, when, where, what now."""
    (letter,) = anywhere.plant(stack_trace="Traceback:\n  shop.py:7 in handle")
    done = anywhere.run("dlq", "inspect", letter)
    assert done.status == 0
    lines = done.out.splitlines()
    assert [line.partition(":")[0] for line in lines[:8]] == [
        "DLQ ID",
        "Original ID",
        "Stream",
        "Consumer Group",
        "DLQ Stream",
        "Failure Reason",
        "Failed At",
        "Retry Count",
    ]
    assert lines[4] == "DLQ Stream: orders:dlq"
    assert lines[8] == ""
    assert "Error: KeyError: 'isbn'" in lines
    assert "    shop.py:7 in handle" in lines
    assert f"to replay: outlast dlq replay {letter}" in lines
    payload = done.out.partition("\nPayload:\n")[2]
    assert payload == '{\n  "total": 1.10,\n  "password": "•••"\n}\n'


def test_inspect_all_prints_labels_and_a_separator(command):
    """S4-31: Message ID, Failed at, Reason, Retry count, Body, then a line; ten at a time."""
    command.plant(12)
    command.plant(queue="mail")
    said = command.run("dlq", "inspect", "--all", "queue:orders").out
    parts = said.removesuffix("---\n").split("---\n")
    assert len(parts) == 10
    labels = [line.partition(":")[0] for line in parts[0].splitlines()]
    assert labels[:6] == ["Message ID", "Failed at", "Reason", "Retry count", "DLQ ID", "Body"]
    assert "hunter2" not in said
    document = command.run("dlq", "inspect", "--all", "--limit", 3, "--json").document
    assert (len(document["items"]), document["total"]) == (3, 13)
    assert document["items"][0]["payload"]["value"]["total"] == 1.1
    assert command.run("dlq", "inspect").status == 2
    assert command.run("dlq", "inspect", "1", "2").status == 2


def test_what_is_masked_is_shown_to_who_asks_and_that_is_recorded(command):
    """U-15: masked by default; who saw it stands in the history."""
    (letter,) = command.plant()
    assert "hunter2" not in command.run("dlq", "inspect", letter, "--json").out
    assert "hunter2" in command.run("dlq", "inspect", letter, "--reveal").out
    told = command.run("dlq", "history", letter)
    assert "revealed by ann" in told.out


def test_a_document_keeps_numbers_and_is_one_document(command):
    (letter,) = command.plant()
    done = command.run("dlq", "inspect", letter, "--json")
    assert '"total": 1.10' in done.out
    assert done.document["dlq_id"] == letter


@pytest.mark.parametrize("letter", ["99", "0", "-1", "abc", "9" * 40, "1.5", "", "१"])
@pytest.mark.parametrize("verb", ["inspect", "replay", "history"])
def test_an_id_of_nothing_is_not_found(command, verb, letter):
    """S2-62: the sentence names the id as it was typed, also a malformed one."""
    done = command.run("dlq", verb, "--", letter)
    assert done.status == 1
    assert done.out == ""
    assert done.err.splitlines()[0] == f"DLQ message '{letter}' not found."


def test_not_found_is_a_document_too(command):
    done = command.run("dlq", "inspect", "99", "--json")
    assert done.status == 1
    assert done.document["error"] == "DLQ message '99' not found."


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "dlq", "list"],
        ["dlq", "--json", "list"],
        ["dlq", "list", "--json"],
    ],
    ids=" ".join,
)
def test_an_option_stands_before_or_after_its_verb(command, arguments):
    command.plant()
    document = command.run(*arguments).document
    assert (document["total"], document["total_is"]) == (1, "exact")
    assert document["items"][0]["failure"] == "retry_terminal: KeyError: 'isbn'"


def test_the_nearest_option_wins_over_the_outer_one_and_the_environment(command, monkeypatch):
    command.plant()
    dsn = command.environment["OUTLAST_DSN"]
    monkeypatch.setenv("OUTLAST_DSN", "no-such.db")
    assert command.run("--dsn", "neither.db", "dlq", "list", "--dsn", dsn).status == 0
    assert "no-such.db" in command.run("dlq", "list").err
    assert "neither.db" in command.run("--dsn", "neither.db", "dlq", "list").err


@pytest.mark.parametrize("form", ["{path}", "sqlite:///{path}", "sqlite+aiosqlite:///{path}"])
def test_a_database_is_named_in_several_ways(command, form):
    command.plant()
    path = command.environment["OUTLAST_DSN"].removeprefix("sqlite:///")
    assert command.run("dlq", "list", "--dsn", form.format(path=path)).status == 0


def test_the_address_of_the_application_is_the_last_resort(command, monkeypatch):
    """S2-65: no database at all is status 2, with what to say."""
    monkeypatch.setenv("DATABASE_URL", command.environment["OUTLAST_DSN"])
    monkeypatch.delenv("OUTLAST_DSN")
    assert command.run("dlq", "list").status == 0
    monkeypatch.delenv("DATABASE_URL")
    done = command.run("dlq", "list")
    assert (done.status, done.out) == (2, "")
    assert "OUTLAST_DSN" in done.err


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_addresses_of_other_tools_are_understood(postgres, monkeypatch, capsys, scheme):
    command = Command(postgres, monkeypatch, capsys)
    (letter,) = command.plant()
    dsn = scheme + command.environment["OUTLAST_DSN"].removeprefix("postgresql")
    found = command.run("dlq", "list", "--json", "--dsn", f"{dsn}?sslmode=disable").document
    assert found["items"][0]["dlq_id"] == letter


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("none.db", "there is no database file none.db"),
        ("sqlite:///none.db", "there is no database file none.db"),
        ("sqlite://", "in memory"),
        ("mysql://u:sesame@h/x", "not on mysql"),
        ("postgresql+nodriver://u:sesame@h/x", "postgresql+nodriver"),
        ("postgresql://u:sesame@127.0.0.1:1/x", "cannot be reached"),
        ("postgresql://u:sesame@h:port/x", "cannot be read"),
    ],
)
def test_a_wrong_address_is_a_sentence_and_makes_nothing(command, dsn, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command.run("dlq", "list", "--dsn", dsn)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert "sesame" not in done.err
    assert not (tmp_path / "none.db").exists()


def test_a_wrong_table_is_named(command):
    done = command.run("dlq", "list", "--dlq-table", "letters")
    assert done.status == 2
    assert "table letters does not exist" in done.err


def test_a_wrong_filter_is_shown_with_its_place(command):
    done = command.run("dlq", "list", "queue:a quue:b")
    assert done.status == 2
    first, shown, mark, *_ = done.err.splitlines()
    assert 'did you mean "queue:"?' in first
    assert shown[mark.index("^") :] == "quue:b"


def test_words_options_and_negations_are_one_filter(command):
    command.plant(queue="a")
    (wanted,) = command.plant(queue="b")
    command.plant(queue="b", failure_category="AUTH")

    def found(*filter_words):
        items = command.run("dlq", "list", "--json", *filter_words).document["items"]
        return [item["dlq_id"] for item in items]

    assert found("-queue:a", "-category:AUTH") == [wanted]
    assert found("--queue", "b", "--category", "EXTERNAL") == [wanted]
    assert found("--subscription", "b", "-category:AUTH", "--since", "2h") == [wanted]
    assert len(found("error:\"'isbn'\"")) == 3


def test_arguments_are_shaped_for_the_parser():
    assert shaped(["--wait", "17"]) == ["--wait=10m", "17"]
    assert shaped(["--wait=3s", "-y", "--json"]) == ["--wait=3s", "-y", "--json"]
    assert shaped(["-queue:a", "--", "-queue:b"]) == [" -queue:a", "--", "-queue:b"]


def test_groups_and_stats_count_the_same_letters(anywhere):
    anywhere.plant(3)
    anywhere.plant(2, queue="mail", fingerprint=None, error_type=None, error_message=None)
    groups = anywhere.run("dlq", "groups", "--json").document["items"]
    assert [(group["fingerprint"], group["count"]) for group in groups] == [("v1:1", 3), (None, 2)]
    said = anywhere.run("dlq", "groups").out
    assert "3 of EXTERNAL · KeyError: 'isbn'" in said
    assert "outlast dlq list 'group:v1:1'" in said
    stats = anywhere.run("dlq", "stats", "--json").document
    assert (stats["depth"], stats["states"]) == (5, {"open": 5})
    said = anywhere.run("dlq", "stats").out
    assert said.startswith("5 DLQ message(s) found.\n")
    assert "By state: open 5" in said
    assert [line.split()[:3] for line in said.splitlines() if line.startswith("mail")] == [
        ["mail", "EXTERNAL", "2"]
    ]


def test_looking_changes_nothing(command):
    (letter,) = command.plant()
    before = command.rows(command.dlq)
    for verb in (["list"], ["inspect", letter], ["groups"], ["stats"], ["history", letter]):
        assert command.run("dlq", *verb).status == 0
    assert command.rows(command.dlq) == before
    assert command.rows(command.beside.history) == []


NASTY = "\x1b]0;title\x07\x1b[31mred\u202eover\u200b\x9b1mline\rback\nnext"


@pytest.mark.parametrize("extra", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("verb", ["list", "inspect", "groups", "stats"])
def test_no_control_character_reaches_a_terminal(command, verb, extra):
    """F-K13: in names, errors, bodies and headers, as text and as a document."""
    (letter,) = command.plant(
        queue=f"q{NASTY}",
        subscriber=NASTY,
        error_message=NASTY,
        stack_trace=NASTY,
        payload=json.dumps({NASTY: NASTY}, ensure_ascii=False).encode(),
        headers={NASTY: NASTY},
    )
    wide = ["--wide"] if verb == "list" else []
    done = command.run("dlq", verb, *([letter] if verb == "inspect" else []), *extra, *wide)
    assert done.status == 0
    assert all(character.isprintable() or character == "\n" for character in done.out)
    assert "title" in done.out
    if extra:
        texts = json.dumps(done.document, ensure_ascii=False)
        assert "title" in texts
        if verb == "inspect":
            assert done.document["payload"]["value"] == {NASTY: NASTY}


def test_a_table_of_the_peer_is_read_and_not_acted_on(command, tmp_path, monkeypatch):
    """Letters of a table with the first columns only: shown, and replay says what is missing."""
    import sqlite3

    path = tmp_path / "peer.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE outbox_dlq (id INTEGER PRIMARY KEY, original_id BIGINT NOT NULL, "
            "queue VARCHAR NOT NULL, payload BLOB NOT NULL, headers JSON, "
            "deliveries_count BIGINT NOT NULL, created_at TIMESTAMP NOT NULL, "
            "failed_at TIMESTAMP NOT NULL, failure_reason VARCHAR NOT NULL, last_exception VARCHAR)"
        )
        connection.execute(
            "INSERT INTO outbox_dlq VALUES (7, 1, 'q', x'7b7d', NULL, 1, '2026-01-01 00:00:00', "
            "'2026-01-01 00:00:00', 'rejected', NULL)"
        )
    connection.close()
    done = command.run("dlq", "list", "--dsn", path)
    assert done.status == 0, done.err
    assert "not recorded" in done.out
    assert command.run("dlq", "inspect", "7", "--dsn", path).status == 0
    done = command.run("dlq", "replay", "7", "--dsn", path)
    assert (done.status, done.out) == (2, "")
    assert "outlast db print prints the SQL" in done.err


def test_a_reader_who_leaves_is_no_error(command):
    command.plant(200)
    read, write = os.pipe()
    os.close(read)
    with command.process("dlq", "list", stdout=write) as process:
        os.close(write)
        _, said = process.communicate(timeout=60)
    assert said.count("Traceback") == 0
    assert "BrokenPipe" not in said


def test_looking_loads_no_framework(command):
    script = (
        "import sys\nfrom outlast.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('loaded', *{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "dlq", "list"],
        env=os.environ | command.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "aiosqlite" in loaded
    assert not loaded & {"faststream", "fast_depends", "alembic"}
