"""`outlast outbox`, `workers`, `subscriptions`: what is alive, looked at and moved."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert

from tests.doors.dlq_command import Command


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def add(command, table, *rows):
    command._do(lambda connection: connection.execute(insert(table), list(rows)))


def message(queue="orders", due_in=0, **values):
    now = datetime.now(UTC)
    return {
        "queue": queue,
        "payload": b"{}",
        "created_at": now,
        "next_attempt_at": now + timedelta(seconds=due_in),
    } | values


def test_live_rows_are_looked_at_and_taken_back(anywhere):
    (letter,) = anywhere.plant()
    anywhere.run("dlq", "replay", letter)
    (row,) = anywhere.rows(anywhere.outbox)
    listed = anywhere.run("outbox", "list")
    assert listed.out.splitlines()[2].split()[:3] == [str(row["id"]), "orders", "replaying"]
    shown = anywhere.run("outbox", "inspect", row["id"])
    assert f"Replay Of: {letter}" in shown.out
    assert "hunter2" not in shown.out
    assert anywhere.rows(anywhere.outbox) == [row]
    done = anywhere.run("outbox", "cancel", row["id"])
    assert (done.status, done.err) == (0, "")
    assert f"DLQ message '{letter}' is open." in done.out
    assert anywhere.states() == {letter: "open"}
    for gone in (row["id"], "abc", "0"):
        assert anywhere.run("outbox", "cancel", gone).status == 1
        assert anywhere.run("outbox", "inspect", gone).status == 1
    assert anywhere.run("outbox", "list").out == "No outbox messages found.\n"
    assert anywhere.run("outbox", "list", "--json").document["items"] == []


def test_live_rows_are_filtered(anywhere):
    add(anywhere, anywhere.outbox, message("a"), message("b"), message("b", due_in=600))

    def queues(*words):
        items = anywhere.run("outbox", "list", "--json", *words).document["items"]
        return [item["queue"] for item in items]

    assert queues() == ["a", "b", "b"]
    assert queues("queue:b") == ["b", "b"]
    assert queues("-queue:b") == ["a"]
    assert queues("--queue", "a") == ["a"]
    wrong = anywhere.run("outbox", "list", "category:AUTH")
    assert (wrong.status, wrong.out) == (2, "")


def test_a_message_that_waits_is_run_now(anywhere):
    """A message in a worker's hands, and one that is gone, are told: status 1."""
    held = message(acquired_token="0" * 31 + "1", acquired_at=datetime.now(UTC))
    if anywhere.database.is_postgres:
        from uuid import UUID

        held["acquired_token"] = UUID(int=1)
    else:
        from uuid import UUID

        held["acquired_token"] = UUID(int=1)
    add(anywhere, anywhere.outbox, message(due_in=3600))
    add(anywhere, anywhere.outbox, held)
    waiting, taken = [row["id"] for row in anywhere.rows(anywhere.outbox)]
    done = anywhere.run("outbox", "run-now", waiting)
    assert (done.status, done.out, done.err) == (0, f"Message '{waiting}' is due now.\n", "")
    assert anywhere.rows(anywhere.outbox)[0]["next_attempt_at"] <= datetime.now(UTC) + timedelta(
        seconds=5
    )
    for other in (taken, 99, "abc"):
        done = anywhere.run("outbox", "run-now", other)
        assert (done.status, done.out) == (1, "")
        assert f"'{other}' is not run" in done.err
    document = anywhere.run("outbox", "run-now", waiting, "abc", "--json").document
    assert [(one["row_id"], one["outcome"]) for one in document["results"]] == [
        (waiting, "due"),
        ("abc", "not_waiting"),
    ]


def worker(name, silent, **report):
    now = datetime.now(UTC)
    return {
        "instance": name,
        "version": "1.4",
        "started_at": now - timedelta(hours=1),
        "seen_at": now - timedelta(seconds=silent),
        "report": {"queues": ["orders"], "lease": 60.0, "max_workers": 8} | report,
    }


def test_no_worker_is_a_sentence(anywhere):
    assert anywhere.run("workers", "list").out == "No workers found.\n"
    document = anywhere.run("workers", "list", "--json").document
    assert document == {"items": [], "total": 0, "recorded": True}


def test_workers_are_listed_with_what_they_report(anywhere, monkeypatch):
    """Who lives, who said that it stops, and who was not seen for long."""
    table = anywhere.beside.worker
    add(anywhere, table, worker("here", 2, p50=0.012, p99=0.5))
    add(anywhere, table, worker("gone", 7200))
    add(anywhere, table, worker("ended", 1, stopped=True))
    monkeypatch.setenv("COLUMNS", "200")
    done = anywhere.run("workers", "list")
    assert done.status == 0, done.err
    lines = {line.split()[0]: line for line in done.out.splitlines() if line}
    assert " live " in lines["here"]
    assert "not live" not in lines["here"]
    assert all(told in lines["here"] for told in ("1.4", "60s", " 8 ", " 12ms", "500ms", "orders"))
    assert " not live " in lines["gone"]
    assert "2h" in lines["gone"]
    assert " stopped " in lines["ended"]
    assert done.out.endswith("3 worker(s) found, 1 of them live.\n")
    items = anywhere.run("workers", "list", "--json").document["items"]
    states = {item["instance"]: (item["live"], item["stopped"]) for item in items}
    assert states == {"here": (True, False), "gone": (False, False), "ended": (False, True)}
    (here,) = [item for item in items if item["instance"] == "here"]
    assert (here["lease"], here["max_workers"], here["p99"]) == (60.0, 8, 0.5)


def test_a_report_that_is_nonsense_is_told_as_nothing(command):
    row = worker("odd", 1, lease="a\x1b[31m", max_workers=["x"], p50=None)
    add(command, command.beside.worker, row)
    done = command.run("workers", "list")
    assert done.status == 0, done.err
    assert "\x1b" not in done.out
    (item,) = command.run("workers", "list", "--json").document["items"]
    assert (item["lease"], item["max_workers"]) == (None, None)


def test_subscriptions_are_listed(anywhere):
    """S2-64: what `--subscription` takes: who serves it, what waits, what is dead."""
    assert anywhere.run("subscriptions", "list").out == "No subscriptions found.\n"
    anywhere.plant(2, queue="orders")
    anywhere.plant(queue="mail")
    add(anywhere, anywhere.outbox, message("orders"), message("late", due_in=60))
    add(anywhere, anywhere.beside.worker, worker("here", 1))
    done = anywhere.run("subscriptions", "list")
    assert done.status == 0, done.err
    assert done.out.endswith("3 subscription(s) found.\n")
    items = anywhere.run("subscriptions", "list", "--json").document["items"]
    assert [(item["queue"], item["live_workers"], item["dead_letters"]) for item in items] == [
        ("late", 0, 0),
        ("mail", 0, 1),
        ("orders", 1, 2),
    ]
    for item in items:
        assert anywhere.run("dlq", "list", "--subscription", item["queue"]).status == 0


def test_without_a_worker_table_that_is_said(sqlite, monkeypatch, capsys):
    command = Command(sqlite, monkeypatch, capsys, beside=False)
    command.plant()
    done = command.run("subscriptions", "list")
    assert done.status == 0
    assert "there is no worker table" in done.err
    assert command.run("workers", "list").out == "not recorded\n"
