"""`outlast serve`, `tokens`, the settings of every verb, and completion in a shell."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.doors.dlq_command import Command


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


# -- tokens


def test_a_token_is_printed_once_and_explained_beside(command):
    """The secret alone on its line, for whoever pipes; the list never has it."""
    done = command.run("tokens", "new", "--name", "ci", "--scopes", "inspect, replay")
    assert done.status == 0
    secret, line = done.out.splitlines()
    assert secret not in done.err
    assert secret not in line
    assert "only now" in done.err
    assert "OUTLAST_TOKENS" in done.err
    document = command.run(
        "tokens", "new", "--name", "ci", "--scopes", "inspect", "--json"
    ).document
    assert set(document) == {"token", "line"}
    assert document["token"] != secret


def test_tokens_are_listed_without_secrets(command, monkeypatch):
    assert command.run("tokens", "list").out == "No tokens found.\n"
    made = [
        command.run("tokens", "new", "--name", n, "--scopes", s, "--json").document
        for n, s in (("ann", "inspect,reveal"), ("bob", "dlq:write"))
    ]
    monkeypatch.setenv("OUTLAST_TOKENS", " ".join(one["line"] for one in made))
    said = command.run("tokens", "list").out
    assert "ann" in said
    assert "replay" in said
    for one in made:
        assert one["token"] not in said
        assert one["line"].rpartition(":")[2] not in said
    items = command.run("tokens", "list", "--json").document["items"]
    assert items == [
        {"name": "ann", "scopes": ["inspect", "reveal"]},
        {"name": "bob", "scopes": ["replay"]},
    ]


@pytest.mark.parametrize(
    ("name", "scopes", "said"),
    [
        ("a b", "inspect", "name"),
        ("", "inspect", "empty"),
        ("a", "fly", "fly"),
        ("a", ",", "scope"),
    ],
)
def test_a_token_that_cannot_be(command, name, scopes, said):
    done = command.run("tokens", "new", "--name", name, "--scopes", scopes)
    assert (done.status, done.out) == (2, "")
    assert said in done.err


def test_a_token_line_that_is_none(command, monkeypatch):
    monkeypatch.setenv("OUTLAST_TOKENS", "nonsense")
    done = command.run("tokens", "list")
    assert (done.status, done.out) == (2, "")
    assert "token line 1" in done.err
    assert "nonsense" not in done.err


# -- serve


def answer(port, path, token=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as got:
            return got.status, json.loads(got.read() or "null")
    except urllib.error.HTTPError as error:
        return error.code, None


def test_the_api_is_served_until_a_signal(anywhere):
    """With the tokens of the environment, under its prefix; the end is status 0."""
    (letter,) = anywhere.plant()
    made = anywhere.run("tokens", "new", "--name", "ci", "--scopes", "inspect", "--json").document
    anywhere.environment["OUTLAST_TOKENS"] = made["line"]
    with anywhere.process("serve", "--port", "0", "--prefix", "/outlast") as process:
        line = process.stderr.readline()
        while "listening on" not in line:
            assert line, "it ended"
            line = process.stderr.readline()
        port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
        assert answer(port, "/outlast/health/live")[0] == 200
        assert answer(port, "/outlast/api/dlq")[0] == 401
        status, document = answer(port, "/outlast/api/dlq", made["token"])
        assert (status, document["entries"][0]["dlq_id"]) == (200, str(letter)) or (
            document["entries"][0]["dlq_id"] == letter
        )
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "no tokens"),
        (["--host", "0.0.0.0", "--no-auth"], "--no-auth"),
        (["--port", "70000"], "port"),
        (["--prefix", "nonsense"], "prefix"),
        (["--host", "192.0.2.1", "--no-auth"], "loopback"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_must_not_be_served(command, arguments, said):
    """F-K02: open to others without tokens: refused, and so is --no-auth there."""
    done = command.run("serve", *arguments)
    assert (done.status, done.out) == (2, "")
    assert said in done.err


def test_a_port_that_is_taken(command):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = command.run("serve", "--port", taken.getsockname()[1])
    assert (done.status, done.out) == (2, "")
    assert "cannot listen" in done.err


# -- settings


def test_settings_come_from_a_file_named_before_or_after_the_verb(command, tmp_path, monkeypatch):
    """S2-65: an option wins over the environment, the environment over the file."""
    (letter,) = command.plant()
    path = tmp_path / "outlast.toml"
    dsn = command.environment["OUTLAST_DSN"]
    path.write_text(f'dsn = "{dsn}"\nsecret_names = ["total"]\n')
    monkeypatch.delenv("OUTLAST_DSN")
    for arguments in (
        ["--config", path, "dlq", "inspect", letter],
        ["dlq", "--config", path, "inspect", letter],
        ["dlq", "inspect", letter, "--config", path],
    ):
        done = command.run(*arguments)
        assert done.status == 0, done.err
        assert "1.10" not in done.out
    monkeypatch.setenv("OUTLAST_DSN", "no-such.db")
    assert "no-such.db" in command.run("dlq", "list", "--config", path).err
    assert command.run("dlq", "list", "--config", path, "--dsn", dsn).status == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no settings file"),
        ("require_reasons = true", "did you mean require_reason"),
        ("replays_max = 'many'", "replays_max"),
        ("=", "not TOML"),
    ],
)
def test_settings_that_cannot_be_used(command, tmp_path, content, said):
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_text(content)
    done = command.run("dlq", "list", "--config", path)
    assert (done.status, done.out) == (2, "")
    assert said in done.err


def test_the_application_says_whether_a_body_would_be_taken(command, tmp_path, monkeypatch):
    """S4-108 S4-109: nothing has changed and the model refuses the body; mended, it goes."""
    (tmp_path / "shop_of_test.py").write_text(
        "from pydantic import BaseModel\n"
        "from sqlalchemy import MetaData\n"
        "from outlast import OutboxBroker, make_outbox_table\n"
        "broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))\n"
        "class Order(BaseModel):\n    total: int\n"
        "@broker.subscriber('orders')\n"
        "async def handle(order: Order): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    now = command._do(_now)
    from datetime import timedelta

    from sqlalchemy import insert

    (letter,) = command.plant(
        payload=b'{"total": "many"}', failure_category="VALIDATION", consumer_version="1"
    )
    command.change(letter, last_failure_at=now)
    row = {
        "instance": "w",
        "version": "1",
        "started_at": now - timedelta(hours=1),
        "seen_at": now,
        "report": {"queues": ["orders"]},
    }
    command._do(lambda connection: connection.execute(insert(command.beside.worker), row))
    app = ["--app", "shop_of_test:broker"]
    done = command.run("dlq", "replay", letter, *app)
    assert (done.status, done.out) == (3, ""), done.err
    assert "[unchanged]" in done.err
    mend = ["--patch", '[{"op": "replace", "path": "/total", "value": 3}]']
    assert command.run("dlq", "replay", letter, *app, *mend).status == 0
    (taken,) = command.plant(
        payload=b'{"total": 3}', failure_category="VALIDATION", consumer_version="1"
    )
    command.change(taken, last_failure_at=now)
    # only the model knows that this one would be taken now
    assert command.run("dlq", "replay-all", f"id:{taken}", "-y").status == 3
    assert command.run("dlq", "replay-all", f"id:{taken}", "-y", *app).status == 0


async def _now(connection):
    from sqlalchemy import select

    from outlast.tables.instant import clock

    return (await connection.execute(select(clock()))).scalar_one()


@pytest.mark.parametrize("app", ["nonsense", "no_such_module_at_all:app", "json:dumps"])
def test_an_application_that_cannot_be_loaded(command, app):
    (letter,) = command.plant()
    done = command.run("dlq", "replay", letter, "--app", app)
    assert (done.status, done.out) == (2, "")
    assert command.states() == {letter: "open"}


def test_looking_does_not_load_the_application(command):
    """Named in the settings for every verb, it is imported only where bodies are checked."""
    command.plant()
    done = command.run("dlq", "list", "--app", "no_such_module_at_all:app")
    assert done.status == 0, done.err


# -- completion


BASH = shutil.which("bash")


def completed(*words):
    line = " ".join(["outlast", *words])
    done = subprocess.run(
        [sys.executable, "-m", "outlast"],
        env=os.environ
        | {
            "_OUTLAST_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done.stdout.split()


def test_a_shell_completes_verbs_and_options():
    assert completed("dl") == ["dlq"]
    assert {"replay", "replay-all", "restore"} == set(completed("dlq", "re"))
    assert "--wait" in completed("dlq", "replay", "--wa")
    assert completed("dlq", "list", "-queue:a", "--wid") == ["--wide"]
    assert completed("no-such-verb", "x") == []


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_the_script_is_one_that_bash_reads(tmp_path):
    script = subprocess.run(
        [sys.executable, "-m", "outlast", "--show-completion", "bash"],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "_OUTLAST_COMPLETE=complete_bash" in script
    path = tmp_path / "completion.sh"
    path.write_text(script)
    folder = Path(sys.executable).parent
    call = '_outlast_completion outlast; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        [
            str(BASH),
            "--norc",
            "-c",
            f"source {path}; COMP_WORDS=(outlast dlq rest); COMP_CWORD=2; {call}",
        ],
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["restore"]
