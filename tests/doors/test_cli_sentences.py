"""What the command line says is so: outcomes, next steps, what was looked at, and that it fits."""

import shlex
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert

from outlast.stores.desk import numbers, reading, windows
from tests.doors.dlq_command import Command


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def next_command(done):
    """The command that the line `to go on` names."""
    (line,) = [line for line in done.err.splitlines() if line.startswith("to go on: outlast ")]
    return shlex.split(line.removeprefix("to go on: outlast "))


def test_a_failure_from_before_the_replay_is_not_told_as_one_since(anywhere):
    """S2-69: nobody has tried it yet."""
    (letter,) = anywhere.plant()
    done = anywhere.run("dlq", "replay", letter, "--wait=0s")
    assert f"Message '{letter}' is still waiting.\n" in done.err


def test_a_failure_since_the_replay_is_told_while_it_is_tried_again(anywhere, monkeypatch):
    from outlast.ops.outcomes import Outcomes

    (letter,) = anywhere.plant()
    look = Outcomes._look

    async def fails_first(desk, ids):
        # what a worker writes when the new delivery has failed and will be tried again
        later = datetime.now(UTC) + timedelta(seconds=5)
        async with desk._writing() as at:
            changed = anywhere.dlq.update().values(last_failure_at=later, error_message="again")
            await at.connection.execute(changed)
        return await look(desk, ids)

    monkeypatch.setattr(Outcomes, "_look", fails_first)
    done = anywhere.run("dlq", "replay", letter, "--wait=0s")
    assert "is still waiting: failed once more and is tried again: KeyError: again" in done.err


def test_a_row_that_is_gone_is_not_said_to_be_delivered(anywhere):
    done = anywhere.run("outbox", "cancel", 99)
    assert (done.status, done.out) == (1, "")
    assert "it was delivered, died, was taken back, or never was" in done.err


def test_a_list_that_has_not_looked_at_all_says_how_to_go_on(anywhere, monkeypatch):
    """None found among those that were looked at is not none."""
    monkeypatch.setattr(reading, "LOOK_MAX", 5)
    (rare,) = anywhere.plant(error_message="the rare one")
    anywhere.plant(8)
    first = anywhere.run("dlq", "list", "error:rare")
    assert first.out == "No DLQ messages found so far; there are more to look at.\n"
    assert "looked at the newest 5 of 9" in first.err
    cursor = first.err.split("--after ")[1].split()[0]
    rest = anywhere.run("dlq", "list", "error:rare", "--after", cursor)
    assert rest.out.splitlines()[2].split()[0] == str(rare)
    short = anywhere.run("dlq", "inspect", "--all", "error:rare")
    assert short.out == first.out
    assert f"DLQ ID: {rare}" not in short.out
    assert str(rare) in anywhere.run(*next_command(short)).out


@pytest.mark.parametrize("verb", ["groups", "stats"])
def test_a_count_that_has_not_looked_at_all_says_so(anywhere, monkeypatch, verb):
    """Numbers over bodies are those of the newest letters; nobody must take them for all."""
    for module in (windows, numbers):
        monkeypatch.setattr(module, "LOOK_MAX", 5)
    anywhere.plant(8)
    assert anywhere.run("dlq", verb, "body.total:1.10").err == "looked at the newest 5 of 8\n"
    assert anywhere.run("dlq", verb, "queue:orders").err == ""


def test_inspect_all_goes_on_with_its_filter(command):
    """S4-31: the command it names shows the rest, and nothing else."""
    command.plant(2, queue="mail")
    wanted = command.plant(3, queue="my orders")
    done = command.run("dlq", "inspect", "--all", "--queue", "my orders", "--limit", 2)
    rest = command.run(*next_command(done), "--json").document
    assert [item["dlq_id"] for item in rest["items"]] == wanted[:1]


def test_a_queue_that_nobody_knows_is_told(anywhere):
    """S2-61: a filter may ask for what is not there, but it must not pass for good news."""
    anywhere.plant()
    for verb in (["list"], ["groups"], ["stats"], ["replay-all", "--yes"], ["purge", "--yes"]):
        done = anywhere.run("dlq", *verb, "queue:ordres")
        assert done.status == 0
        assert "No subscription found for stream category 'ordres'." in done.err
        assert "there are orders: outlast subscriptions list" in done.err
    known = anywhere.run("dlq", "list", "queue:orders", "category:AUTH")
    assert (known.out, known.err) == ("No DLQ messages found.\n", "")
    assert anywhere.run("dlq", "list", "-queue:ordres", "category:AUTH").err == ""


def test_the_payload_that_is_not_sent_is_named(command):
    """S4-75: beside a revision, the original must not be taken for what a replay sends."""
    (letter,) = command.plant(payload=b'{"total": 1}')
    assert "\nPayload:\n" in command.run("dlq", "inspect", letter).out
    patch = '[{"op": "replace", "path": "/total", "value": 2}]'
    assert command.run("dlq", "edit", letter, "--patch", patch).status == 0
    shown = command.run("dlq", "inspect", letter).out
    assert "\nPayload, as it first was:\n" in shown
    assert "\nPayload:\n" not in shown


def test_workers_fit_a_terminal(anywhere):
    now = datetime.now(UTC)
    report = {"queues": ["orders"], "lease": 60, "max_workers": 100, "p50": 0.00087, "p99": 1.234}
    row = {
        "instance": "shop-worker-6d4b75cb6d-hwgxz:17",
        "version": "2026.11.19",
        "started_at": now - timedelta(hours=23, minutes=59),
        "seen_at": now - timedelta(minutes=12),
        "report": report,
    }
    add = insert(anywhere.beside.worker).values(row)
    anywhere._do(lambda connection: connection.execute(add))
    lines = anywhere.run("workers", "list").out.splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if line.startswith("shop-w")]
    assert "23h 59m ago" in line
    assert "0.9ms" in line
    assert "1.23s" in line


def test_help_begins_with_what_a_newcomer_needs(command):
    shown = command.run("--help").out
    verbs = ["demo", "dlq", "outbox", "subscriptions", "workers", "serve", "tokens", "db"]
    places = [shown.index(f"│ {verb} ") for verb in [*verbs, "version"]]
    assert places == sorted(places)
    words = command.run("dlq", "list", "--help").out
    assert "header.NAME:" in words
    assert "ID | FILTER" in command.run("dlq", "inspect", "--help").out


def test_versions_are_a_document_too(command):
    document = command.run("version", "--json").document
    assert document == command.run("--json", "version").document
    assert {"outlast", "python", "sqlite", "sqlalchemy"} <= document.keys()
