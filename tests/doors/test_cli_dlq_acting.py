"""`outlast dlq` acts: replay, replay-all, purge, restore, mark; questions and exit statuses."""

import asyncio
import os
import pty
import re
import signal

import pytest

from outlast.model.outcome import ACK
from outlast.policy.retry import NoRetry
from outlast.stores.connect import store_for
from tests.contract.test_interleavings import engine_over
from tests.doors.dlq_command import Command


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def told(command):
    return [(row["kind"], row["actor"], row["reason"]) for row in command.rows(command.beside[0])]


def test_replay_says_what_was_sent_where(anywhere):
    """S2-19 S3-48: Protean's line; the letter's bytes; the history knows who it was, and why."""
    first, second = anywhere.plant(2)
    done = anywhere.run("dlq", "replay", first, second, "--reason", "fixed")
    assert (done.status, done.err) == (0, "")
    assert done.out == "".join(
        f"Replayed message '{letter}' to stream 'orders'.\n" for letter in (first, second)
    )
    assert anywhere.states() == {first: "replaying", second: "replaying"}
    rows = anywhere.rows(anywhere.outbox)
    assert [row["payload"] for row in rows] == [b'{"total": 1.10, "password": "hunter2"}'] * 2
    assert told(anywhere) == [("replayed", "ann", "fixed")] * 2


def test_replay_of_some_that_are_none_does_the_others(command):
    (letter,) = command.plant()
    done = command.run("dlq", "replay", "99", letter, "abc")
    assert done.status == 1
    assert done.out == f"Replayed message '{letter}' to stream 'orders'.\n"
    assert "DLQ message '99' not found." in done.err
    assert "DLQ message 'abc' not found." in done.err
    document = command.run("dlq", "replay", "99", "abc", "--json").document
    assert (document["replayed"], document["failed"]) == (0, 2)
    assert [result["dlq_id"] for result in document["results"]] == [99, "abc"]


def test_a_letter_that_is_on_its_way_is_refused_by_the_data(command):
    (letter,) = command.plant()
    assert command.run("dlq", "replay", letter).status == 0
    done = command.run("dlq", "replay", letter)
    assert (done.status, done.out) == (1, "")
    assert f"Failed to replay message '{letter}'." in done.err
    assert len(command.rows(command.outbox)) == 1


def test_a_gate_is_status_3_and_force_needs_a_reason(anywhere):
    (letter,) = anywhere.plant(failure_category="POISON")
    done = anywhere.run("dlq", "replay", letter)
    assert (done.status, done.out) == (3, "")
    assert "[poison]" in done.err
    assert anywhere.run("dlq", "replay", letter, "--force").status == 2
    assert anywhere.rows(anywhere.outbox) == []
    assert anywhere.run("dlq", "replay", letter, "--force", "--reason", "seen").status == 0


def test_another_queue_and_a_dry_run(command):
    """U-07: nothing is written."""
    (letter,) = command.plant()
    done = command.run("dlq", "replay", letter, "--to", "elsewhere", "--dry-run")
    assert done.out == f"Would replay message '{letter}' to stream 'elsewhere'.\n"
    assert command.rows(command.outbox) == []
    assert command.run("dlq", "replay", letter, "--to", "elsewhere").status == 0
    assert [row["queue"] for row in command.rows(command.outbox)] == ["elsewhere"]


def test_waiting_names_the_queue_that_nobody_serves(command):
    (letter,) = command.plant()
    done = command.run("dlq", "replay", letter, "--wait=0s")
    assert done.status == 1
    assert f"Message '{letter}' is still waiting" in done.err
    assert "no live worker serves the queue 'orders'" in done.err
    assert command.run("dlq", "replay", letter, "--wait=soon").status == 2


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    [(False, 0, "succeeded."), (True, 1, "failed again")],
    ids=["succeeds", "fails"],
)
def test_waiting_tells_how_it_ended(anywhere, broken, status, said):
    """S2-18 S2-69: what became of the replay, not only that it was sent."""
    (letter,) = anywhere.plant()

    async def handle(delivery):
        if broken:
            raise KeyError("isbn")
        return ACK

    async def body(engine):
        store = store_for(engine, anywhere.outbox, anywhere.dlq)
        await store.open(lambda _queue: None)
        fast = {
            "min_fetch_interval": 0.05,
            "max_fetch_interval": 0.2,
            "retry_strategy": NoRetry(),
        }
        try:
            async with engine_over(store, ("handle", "orders", handle, fast)):
                with anywhere.process("dlq", "replay", letter, "--wait") as process:
                    out, err = await asyncio.to_thread(process.communicate, timeout=60)
                return process.returncode, out + err
        finally:
            await store.close()

    ended, text = anywhere.database.run(body)
    assert ended == status
    assert f"Message '{letter}' {said}" in text


def test_replay_all_counts_by_queue_and_tells_what_it_leaves(anywhere):
    """S2-24 S2-27: a line for each queue; what is left out is told with its filter."""
    anywhere.plant(3)
    anywhere.plant(2, queue="mail")
    (poison,) = anywhere.plant(failure_category="POISON")
    (review,) = anywhere.plant(state="needs_review")
    done = anywhere.run("dlq", "replay-all", "--all", "-y")
    assert done.status == 0, done.err
    assert done.out == (
        "Replayed 2 message(s) to stream 'mail'.\nReplayed 3 message(s) to stream 'orders'.\n"
    )
    assert "1 left out, POISON: outlast dlq list '" in done.err
    assert "1 left out, needs_review: outlast dlq list '" in done.err
    left = {letter for letter, state in anywhere.states().items() if state != "replaying"}
    assert left == {poison, review}
    for line in done.err.splitlines():
        found = re.search(r"outlast dlq list '(.*)'", line)
        if found:
            listed = anywhere.run("dlq", "list", found[1], "--json").document
            assert listed["total"] == 1
    done = anywhere.run("dlq", "replay-all", "category:POISON", "--include-poison", "-y")
    assert (done.status, done.out) == (0, "Replayed 1 message(s) to stream 'orders'.\n")


def test_replay_all_as_a_document(command):
    ids = command.plant(2)
    document = command.run("dlq", "replay-all", "queue:orders", "-y", "--json").document
    assert (document["replayed"], document["by_queue"]) == (2, {"orders": 2})
    assert [result["dlq_id"] for result in document["results"]] == ids
    nothing = command.run("dlq", "replay-all", "queue:orders", "-y", "--json")
    assert (nothing.status, nothing.document["replayed"]) == (0, 0)


def test_an_escalated_letter_is_a_refusal_of_the_limit(command):
    """S4-110 S2-27: the fourth replay is refused, in bulk too, and the letter escalated."""
    (letter,) = command.plant(replay_count=3)
    done = command.run("dlq", "replay-all", "queue:orders", "-y")
    assert (done.status, done.out) == (3, "")
    assert "1 refused [replay_limit]" in done.err
    assert command.states() == {letter: "escalated"}
    assert command.run("dlq", "mark", letter, "--open", "--reason", "fixed").status == 0
    assert command.run("dlq", "replay", letter).status == 0


@pytest.mark.parametrize("verb", ["replay-all", "purge"])
def test_everything_must_be_said(command, verb):
    (letter,) = command.plant()
    done = command.run("dlq", verb, "-y")
    assert (done.status, done.out) == (2, "")
    assert "--all" in done.err
    assert command.states() == {letter: "open"}


@pytest.mark.parametrize("verb", ["replay-all", "purge"])
@pytest.mark.parametrize("extra", [[], ["--json"]], ids=["text", "json"])
def test_without_a_terminal_nobody_is_asked(command, verb, extra):
    """S2-26 F-K19: status 2 at once."""
    (letter,) = command.plant()
    with command.process("dlq", verb, "queue:orders", *extra, stdin=-3) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "say --yes" in err
    assert bool(out) == bool(extra)
    assert command.states() == {letter: "open"}


@pytest.mark.parametrize("verb", ["replay-all", "purge"])
def test_nothing_to_do_is_done(command, verb):
    """S2-63: as in a list."""
    done = command.run("dlq", verb, "queue:orders")
    assert (done.status, done.out) == (0, "No DLQ messages found.\n")


QUESTIONS = {
    "replay-all": "Replay all DLQ messages for subscription 'orders'? [y/N]: ",
    "purge": "Purge 2 DLQ message(s) for subscription 'orders'? This cannot be undone after ",
}


@pytest.mark.parametrize(
    ("answer", "status", "state"),
    [("y\n", 0, None), ("n\n", 1, "open"), ("\n", 1, "open"), (None, 2, "open")],
    ids=["yes", "no", "enter", "ctrl-c"],
)
@pytest.mark.parametrize("verb", ["replay-all", "purge"])
def test_a_question_on_a_terminal(command, verb, answer, status, state):
    """S2-25 S2-29: declined is 1 and Ctrl-C is 2; the question is not on stdout."""
    command.plant(2)
    ours, theirs = pty.openpty()
    try:
        with command.process("dlq", verb, "--subscription", "orders", stdin=theirs) as process:
            said = ""
            while not said.endswith("[y/N]: "):
                character = process.stderr.read(1)
                assert character, said
                said += character
            if answer is None:
                process.send_signal(signal.SIGINT)
            else:
                os.write(ours, answer.encode())
            out, err = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert QUESTIONS[verb] in said
    assert process.returncode == status, err
    after = {"replay-all": "replaying", "purge": "discarded"}[verb]
    assert set(command.states().values()) == {state or after}
    assert bool(out) == (status == 0)
    assert ("Aborted." in err) == (status != 0)


def test_purged_letters_come_back(anywhere):
    """S2-28 S4-107: Protean's line; where no reason was given, that is recorded."""
    first, second, third = anywhere.plant(3)
    done = anywhere.run("dlq", "purge", first, second, "-y")
    assert (done.status, done.out) == (0, "Purged 2 message(s) from DLQ.\n")
    assert anywhere.states() == {first: "discarded", second: "discarded", third: "open"}
    assert anywhere.run("dlq", "list", "--json").document["total"] == 1
    done = anywhere.run("dlq", "restore", first)
    assert (done.status, done.out) == (0, "Restored 1 message(s).\n")
    assert anywhere.states()[first] == "open"
    assert ("discarded", "ann", "not given") in told(anywhere)


def test_purge_by_a_filter_and_for_good(anywhere):
    anywhere.plant(2)
    (kept,) = anywhere.plant(queue="mail")
    done = anywhere.run("dlq", "purge", "queue:orders", "--dry-run")
    assert done.out == "Would have purged 2 message(s) from DLQ.\n"
    assert len(anywhere.states()) == 3
    done = anywhere.run("dlq", "purge", "queue:orders", "--hard", "-y", "--reason", "test data")
    assert (done.status, done.out) == (0, "Purged 2 message(s) from DLQ.\n")
    assert anywhere.states() == {kept: "open"}


def test_purge_takes_ids_or_a_filter(command):
    (letter,) = command.plant()
    for extra in (["queue:orders"], ["--queue", "orders"], ["--all"]):
        assert command.run("dlq", "purge", letter, *extra, "-y").status == 2
    done = command.run("dlq", "purge", "99", "-y", "--json")
    assert (done.status, done.document["failed"]) == (1, 1)
    assert command.states() == {letter: "open"}


def test_marks_are_kept_and_told(command):
    (letter,) = command.plant()
    done = command.run(
        "dlq", "mark", letter, "--review", "--owner", "bob", "--triage", "consumer bug"
    )
    assert (done.status, done.out) == (0, "Marked 1 message(s).\n")
    assert command.states() == {letter: "needs_review"}
    said = command.run("dlq", "inspect", letter).out
    assert "Owner: bob" in said
    assert command.run("dlq", "mark", letter).status == 2


def test_that_nothing_is_recorded_is_said(sqlite, monkeypatch, capsys):
    command = Command(sqlite, monkeypatch, capsys, beside=False)
    (letter,) = command.plant()
    assert command.run("dlq", "list").err == ""
    done = command.run("dlq", "replay", letter)
    assert done.status == 0
    assert "there is no history table" in done.err
    assert done.err.count("\n") == 1
    assert command.run("dlq", "history", letter).out == "not recorded\n"
    assert command.run("workers", "list").out == "not recorded\n"
