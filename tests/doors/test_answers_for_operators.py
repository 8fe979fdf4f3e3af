"""What an operator asks of a dead letter, and decides: answered and done at the command line."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, text

from tests.docs import pages
from tests.doors.dlq_command import Command

NOW = datetime.now(UTC)


@pytest.fixture
def command(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def ago(**span):
    return NOW - timedelta(**span)


def lines_of(done):
    assert done.status == 0, done.err
    return dict(line.split(": ", 1) for line in done.out.splitlines() if ": " in line)


def test_inspect_answers_the_six_questions(command):
    """S2-16, S4-84, S4-102, S0-30: which queue, why, how often, first, last, where; how long."""
    (letter,) = command.plant(
        created_at=ago(hours=9),
        failed_at=ago(hours=8, minutes=30),
        first_failure_at=ago(hours=8),
        last_failure_at=ago(hours=2, minutes=45),
        stack_trace='Traceback\n  File "shop.py", line 7, in handle',
        attempts_count=4,
        total_deliveries=5,
        consumer_instance="host-1",
    )
    done = command.run("dlq", "inspect", letter)
    said = lines_of(done)
    shown = {
        "Stream": "orders",
        "Error": "KeyError: 'isbn'",
        "Attempts": "4",
        "Deliveries": "5",
        "First Failure": f"{ago(hours=8):%Y-%m-%d %H:%M:%S} UTC",
        "Last Failure": f"{ago(hours=2, minutes=45):%Y-%m-%d %H:%M:%S} UTC",
        "Bouncing For": "5h 15m",
        "Time To Terminal Failure": "30m",
    }
    assert {name: said[name] for name in shown} == shown
    assert '    File "shop.py", line 7, in handle' in done.out.splitlines()
    document = command.run("dlq", "inspect", letter, "--json").document
    protean = ("stream", "original_id", "consumer_group", "consumer_instance", "retry_count")
    assert [document[name] for name in protean] == ["orders", 1, "handle", "host-1", 4]
    assert datetime.fromisoformat(document["failed_at"]) == ago(hours=2, minutes=45)
    assert document["bouncing_for_seconds"] == 5.25 * 3600
    assert document["time_to_terminal_failure_seconds"] == 1800


def test_what_a_foreign_worker_did_not_record_is_said_to_be_so(command):
    """S4-84: a letter of a worker that knows the first columns only."""
    dlq = command.dlq
    row = {
        "original_id": 7,
        "queue": "orders",
        "payload": b"{}",
        "deliveries_count": 1,
        "created_at": ago(hours=1),
        "failure_reason": "rejected",
    }

    async def body(engine):
        async with engine.begin() as connection:
            made = insert(dlq).values(row).returning(dlq.c.id)
            return (await connection.execute(made)).scalar_one()

    letter = command.database.run(body)
    said = lines_of(command.run("dlq", "inspect", letter))
    for name in ("Consumer Group", "Error", "Category", "Fingerprint", "Version", "Instance"):
        assert said[name] == "not recorded by producer", name
    assert (said["Stream"], said["Failure Reason"]) == ("orders", "rejected")
    assert said["Last Failure"] != "not recorded by producer"
    document = command.run("dlq", "inspect", letter, "--json").document
    assert document["consumer_version"] is None
    assert document["error_type"] is None


def test_groups_tell_cause_first_and_last_sight_and_versions(command):
    """U-09, S3-45, S4-103: letters by error, since when, until when, in which releases."""
    for days, version in ((3, "1.0"), (2, "1.1"), (1, "1.1")):
        command.plant(
            first_failure_at=ago(days=days, hours=1),
            last_failure_at=ago(days=days),
            consumer_version=version,
        )
    command.plant(fingerprint="v1:2", error_type="TimeoutError", consumer_version="1.1")
    largest, other = command.run("dlq", "groups", "--json").document["items"]
    assert (largest["fingerprint"], largest["count"]) == ("v1:1", 3)
    assert (largest["error_type"], largest["example"]) == ("KeyError", "'isbn'")
    assert largest["versions"] == ["1.0", "1.1"]
    assert datetime.fromisoformat(largest["first_seen"]) == ago(days=3, hours=1)
    assert datetime.fromisoformat(largest["last_seen"]) == ago(days=1)
    assert (other["fingerprint"], other["versions"]) == ("v1:2", ["1.1"])
    said = command.run("dlq", "groups").out
    assert "versions: 1.0, 1.1" in said
    first, last = ago(days=3, hours=1), ago(days=1)
    assert (
        f"first seen {first:%Y-%m-%d %H:%M:%S} UTC, last seen {last:%Y-%m-%d %H:%M:%S} UTC" in said
    )
    narrow = command.run("dlq", "groups", "version:1.1", "--json").document["items"]
    assert {group["fingerprint"]: group["count"] for group in narrow} == {"v1:1": 2, "v1:2": 1}


def test_each_category_has_its_way(command):
    """S4-34, S4-35, S4-36: VALIDATION stays and is named, EXTERNAL goes, the rest is for review."""
    failed = ago(minutes=5)
    planted = {
        category: command.plant(
            failure_category=category, consumer_version="1.0", last_failure_at=failed
        )[0]
        for category in ("VALIDATION", "EXTERNAL", "BILLING")
    }
    worker = {
        "instance": "worker-1",
        "version": "1.0",
        "started_at": ago(hours=1),
        "seen_at": datetime.now(UTC),
        "report": {"queues": ["orders"]},
    }

    async def body(engine):
        async with engine.begin() as connection:
            await connection.execute(insert(command.beside.worker).values(worker))

    command.database.run(body)
    marked = command.run("dlq", "mark", planted["BILLING"], "--review", "--note", "ask the bank")
    assert marked.status == 0, marked.err
    done = command.run("dlq", "replay-all", "--subscription=orders", "-y")
    assert (done.status, done.out) == (3, "Replayed 1 message(s) to stream 'orders'.\n")
    assert "1 refused [unchanged]" in done.err
    assert "VALIDATION" in done.err
    assert "1 left out, needs_review" in done.err
    states = command.states()
    assert {category: states[letter] for category, letter in planted.items()} == {
        "VALIDATION": "open",
        "EXTERNAL": "replaying",
        "BILLING": "needs_review",
    }


def test_a_replay_of_all_goes_in_batches_and_says_when_it_is_complete(command, monkeypatch):
    """S4-32: body and headers as they were, batch after batch; the last line says it is over."""
    from dataclasses import replace

    from outlast.config import Settings

    options_of = Settings.desk_options
    monkeypatch.setattr(
        Settings, "desk_options", lambda self, test=None: replace(options_of(self, test), chunk=3)
    )
    headers = {"content-type": "application/json", "traceparent": "00-ab-cd-01", "n": 1.50}
    command.plant(7, headers=headers)
    dry = command.run("dlq", "replay-all", "--all", "-y", "--dry-run")
    assert "complete" not in dry.err
    done = command.run("dlq", "replay-all", "--all", "-y")
    assert (done.status, done.out) == (0, "Replayed 7 message(s) to stream 'orders'.\n")
    assert done.err.splitlines() == ["3 of 7", "6 of 7", "DLQ replay complete"]
    rows = command.rows(command.outbox)
    assert len(rows) == 7
    for row in rows:
        assert row["payload"] == b'{"total": 1.10, "password": "hunter2"}'
        assert {name: row["headers"][name] for name in headers} == headers
    assert command.run("dlq", "list").out == "No DLQ messages found.\n"


def test_looking_at_live_messages_changes_none(command):
    """S1-50: `outbox list` and `outbox inspect`; the table is the same before and after."""
    rows = [
        {"queue": "orders", "payload": b"{}", "headers": {"n": number}, "deliveries_count": number}
        for number in range(3)
    ]

    async def plant(engine):
        async with engine.begin() as connection:
            await connection.execute(insert(command.outbox), rows)

    async def versions(engine):
        # the rows' versions, or every byte: an update to the same values would be seen
        if not command.database.is_postgres:
            return Path(engine.url.database).read_bytes()
        async with engine.connect() as connection:
            found = await connection.execute(text("select xmin::text, ctid::text, * from outbox"))
            return sorted(map(repr, found))

    command.database.run(plant)
    before = command.database.run(versions)
    listed = command.run("outbox", "list", "--json").document
    assert [row["deliveries_count"] for row in listed["items"]] == [0, 1, 2]
    for row in listed["items"]:
        for extra in ([], ["--json"]):
            assert command.run("outbox", "inspect", row["id"], *extra).status == 0
    assert command.run("outbox", "list", "queue:orders", "header.n:1").status == 0
    assert command.database.run(versions) == before


def test_old_letters_go_by_the_line_of_the_page(command):
    """S0-54: what failed last ninety days ago and more is deleted, and counted."""
    (line,) = [
        line
        for block in pages.blocks(pages.ROOT / "docs" / "operate" / "dead-letters.md")
        for line in block.text.splitlines()
        if "until:90d" in line and "purge" in line
    ]
    ages = (1, 89, 91, 400)
    for days in ages:
        command.plant(last_failure_at=ago(days=days), failed_at=ago(days=days), original_id=days)
    words = line.removesuffix(" --dsn shop.db").replace("'", "").split()
    assert words[:2] == ["outlast", "dlq"]
    done = command.run(*words[1:])
    assert (done.status, done.out) == (0, "Purged 2 message(s) from DLQ.\n")
    assert [row["original_id"] for row in command.rows(command.dlq)] == [1, 89]
    kinds = [row["kind"] for row in command.rows(command.beside.history)]
    assert kinds == ["purged"] * 3
    assert "hunter2" not in json.dumps(command.rows(command.beside.history), default=str)
