"""Import: what was exported comes back, once; what was changed, masked or made up does not."""

import asyncio
import base64
import hashlib
import json
from datetime import timedelta

import pytest
from sqlalchemy import text

from outlast.ops import Actor, BadRequest, NotAllowed, NotRecorded
from outlast.policy.import_text import read_documents
from tests.contract.desks import ANN, run_desk
from tests.contract.test_desk_exporting import BODIES, FAILED, documents, exported

NOT_OURS = ("dlq_id", "state_changed_at", "state", "purge_after", "resolution", "replayed_as")


async def import_(w, text_, **options):
    return await w.desk.import_letters(ANN, text_, **options)


def comparable(found):
    """The documents without what belongs to a place, not to a letter."""
    for one in found:
        one["letter"] = {k: v for k, v in one["letter"].items() if k not in NOT_OURS}
    return found


async def plant_all(w):
    now = await w.now()
    headers = [
        None,
        {},
        {"big": 2**70, "f": 1.5, "deep": [[{"x": None, "ü": "💥\u2028"}]], "n": True},
        {"outlast-message-id": "m-7", "outlast-event-type": "paid", "correlation_id": "c"},
    ]
    for number, payload in enumerate(BODIES):
        await w.plant(
            payload=payload,
            queue=f"q{number}\u202e=1+1",
            original_id=2**40 + number,
            headers=headers[number % len(headers)],
            message_id=None if number % 4 == 3 else f"m-{number}",
            event_type="order.paid",
            subscriber="handle",
            timer_id="t-1",
            owner="bo",
            triage="consumer bug",
            consumer_instance="host:1",
            consumer_version="1.2.3",
            fingerprint="v1:" + "0" * 32,
            policy_version="p1",
            error_type="KeyError",
            error_message="isbn\x1b[0m",
            last_exception="KeyError('isbn')",
            stack_trace="Traceback …",
            http_status=503,
            deliveries_count=7,
            attempts_count=3,
            total_deliveries=11,
            replay_count=2,
            replays_at_reopen=1,
            created_at=now - timedelta(days=3),
            failed_at=now - timedelta(days=2, microseconds=number),
            first_failure_at=None if number % 2 else now - timedelta(days=2, seconds=9),
            last_failure_at=now - timedelta(days=1),
            origin='{"topic": "orders"}',
        )


@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_everything_comes_back_into_an_empty_database(sqlite, postgres, kind):
    """S4-98 S4-99 S4-104: SQLite to PostgreSQL to SQLite; two exports are equal, byte for byte."""
    gone = {}

    async def export(w):
        await plant_all(w)
        gone["text"] = await exported(w.desk, kind=kind, reveal=True)

    async def pass_on(w):
        done = await import_(w, gone["text"], reason="moved")
        assert (done.imported, done.skipped, done.failed, done.exit_code) == (len(BODIES), 0, 0, 0)
        assert [x["payload"] for x in await w.letters()] == list(BODIES)
        assert {x["state"] for x in await w.letters()} == {"open"}
        found = await exported(w.desk, reveal=True)
        assert comparable(json.loads(found)) == comparable(
            json.loads(gone["text"])
            if kind == "json"
            else [json.loads(line) for line in gone["text"].splitlines()]
        )
        lines = [x for x in await w.told() if x.dlq_id is not None]
        assert len(lines) == len(BODIES)
        assert {(x.kind, x.actor, x.reason) for x in lines} == {("imported", "ann", "moved")}
        assert lines[0].detail["from"]["state"] == "open"
        gone["text"] = await exported(w.desk, kind=kind, reveal=True)
        again = await import_(w, gone["text"])
        assert (again.imported, again.skipped, again.exit_code) == (0, len(BODIES), 0)
        ids = [x["id"] for x in await w.letters()]
        assert [x.reason for x in again.results] == [f"already here as {i}" for i in ids]

    run_desk(sqlite, export)
    run_desk(postgres, pass_on)

    async def back(w):
        async with w.engine.begin() as connection:
            await connection.execute(w.dlq.delete())
        await pass_on(w)

    run_desk(sqlite, back)


def test_a_letter_comes_in_once_whatever_became_of_it(database):
    """Idempotent, in any state and in one file; another time of death is another letter."""

    async def body(w):
        await w.plant(**FAILED)
        text_ = await exported(w.desk, reveal=True)
        (one,) = json.loads(text_)
        await w.desk.purge(ANN, [1], reason="r")
        result = await import_(w, text_)
        assert [x.as_json() for x in result.results] == [
            {
                "number": 1,
                "line": 2,
                "outcome": "skipped",
                "dlq_id": 1,
                "queue": "order-processing",
                "reason": "already here as 1",
            }
        ]
        other = json.loads(json.dumps(one))
        other["letter"]["failed_at"] = "2024-01-15T10:30:00Z"
        before = await w.letters()
        tried = await import_(w, json.dumps([other, one, other]), dry_run=True)
        assert [x.outcome for x in tried.results] == ["would_import", "skipped", "skipped"]
        assert tried.results[2].reason == "the same letter as document 1"
        assert tried.as_json()["dry_run"] is True
        assert await w.letters() == before
        done = await import_(w, json.dumps([other, one, other]))
        assert (done.imported, done.skipped) == (1, 2)
        assert len(await w.letters()) == 2

    run_desk(database, body)


def test_other_bytes_are_another_letter(database):
    """The same message, queue and time: only the same bytes make it the same letter."""

    async def body(w):
        at = await w.now()
        await w.plant(payload=b"one", message_id="m", failed_at=at)
        text_ = await exported(w.desk, reveal=True)
        await w.desk.purge(ANN, [1], hard=True, reason="r")
        await w.plant(payload=b"two", message_id="m", failed_at=at)
        assert (await import_(w, text_)).imported == 1
        assert [x["payload"] for x in await w.letters()] == [b"two", b"one"]
        assert (await import_(w, text_)).skipped == 1

    run_desk(database, body)


def test_two_imports_at_once_bring_each_letter_once(database):
    """Whoever looks for a letter also writes it."""

    async def body(w):
        for number in range(120):
            await w.plant(message_id=f"m-{number}")
        text_ = await exported(w.desk, reveal=True, kind="jsonl")
        async with w.engine.begin() as connection:
            await connection.execute(w.dlq.delete())
        results = await asyncio.gather(*(import_(w, text_) for _ in range(3)))
        assert sum(x.imported for x in results) == 120
        assert sum(x.skipped for x in results) == 240
        assert len(await w.letters()) == 120

    run_desk(database, body)


def test_an_imported_letter_can_be_replayed(database):
    """U-03 S4-104: the message keeps its id and what traces it; a link elsewhere is not kept."""

    async def body(w):
        trace = {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad-01",
            "correlation_id": "c",
        }
        own = {"outlast-message-id": "m-1", "outlast-replay-count": 1}
        await w.plant(headers=trace | own | {"outlast-replay": 5})
        text_ = await exported(w.desk, reveal=True)
        await w.desk.purge(ANN, [1], hard=True, reason="r")
        assert (await import_(w, text_)).imported == 1
        (letter,) = await w.letters()
        assert letter["headers"] == trace | own
        assert (await w.desk.replay(ANN, [letter["id"]])).replayed == 1
        (row,) = await w.rows()
        assert row["headers"]["outlast-message-id"] == "m-1"
        assert row["headers"]["outlast-replay"] == letter["id"]
        assert {name: row["headers"][name] for name in trace} == trace

    run_desk(database, body)


SEED = {
    "original_message": {"body": '{"order": 7, "price": 1.10}', "headers": {"tenant": "x"}},
    "dlq_metadata": {
        "original_queue": "orders",
        "failure_reason": "ValidationError: Invalid product ID",
        "failure_timestamp": "2024-01-15T10:30:00Z",
        "retry_count": 3,
        "stack_trace": "...",
    },
}
OTHER_SEED = {
    "dlq_envelope": {
        "message_id": "msg-a1b2c3d4",
        "original_topic": "orders.placed",
        "original_queue": "order-processing",
        "original_partition": 3,
        "original_offset": 884201,
        "failure_reason": "ValidationError: field 'quantity' must be > 0",
        "failure_category": "VALIDATION",
        "stack_trace": 'Traceback (most recent call last):\n  File "consumer.py", line 42 ...',
        "retry_count": 3,
        "first_failure_at": "2025-11-10T08:15:22Z",
        "last_failure_at": "2025-11-10T08:17:44Z",
        "consumer_instance": "order-consumer-pod-7b4d9",
        "consumer_version": "2.4.1",
    },
    "original_headers": {"correlation_id": "corr-x9y8z7", "content_type": "application/json"},
    "original_body": {"order_id": "ORD-12345", "quantity": -1, "product_id": "SKU-999"},
}


def test_the_envelopes_of_others_come_in(database):
    """S4-88 S4-89: what they say is kept, what they do not say stays unsaid."""

    async def body(w):
        both = json.dumps(SEED) + "\n" + json.dumps(OTHER_SEED, indent=2)
        done = await import_(w, both)
        assert (done.imported, done.failed) == (2, 0), done
        first, _ = await w.letters()
        assert first["payload"] == b'{"order": 7, "price": 1.10}'
        assert (first["queue"], first["error_type"], first["error_message"]) == (
            "orders",
            "ValidationError",
            "Invalid product ID",
        )
        assert (first["failure_reason"], first["attempts_count"]) == ("unknown", 3)
        assert (first["first_failure_at"], first["consumer_version"]) == (None, None)
        assert first["message_id"].startswith("imported-")
        found = await documents(w.desk, reveal=True)
        head = found[1]["dlq_envelope"]
        assert {k: head[k] for k in OTHER_SEED["dlq_envelope"]} == OTHER_SEED["dlq_envelope"]
        assert found[1]["original_body"] == OTHER_SEED["original_body"]
        assert found[1]["original_headers"] == OTHER_SEED["original_headers"]
        again = await import_(w, both)
        assert (again.imported, again.skipped) == (0, 2)
        # a body of bytes, as our own documents have it
        raw = SEED | {
            "original_message": {"body": {"base64": "AP8="}, "headers": None},
        }
        assert (await import_(w, json.dumps(raw))).imported == 1
        assert (await w.letters())[2]["payload"] == b"\x00\xff"

    run_desk(database, body)


def test_headers_without_an_end_are_told_not_written(database):
    """Deeper than documents go they are masked, also with a reveal; such a letter stays here."""

    async def body(w):
        deep = "x"
        for _ in range(300):
            deep = [deep]
        await w.plant(headers={"deep": deep})
        (found,) = await documents(w.desk, reveal=True)
        assert found["masked"] is True
        assert "payload_base64" not in found
        assert (await import_(w, json.dumps([found]))).failed == 1

    run_desk(database, body)


def test_a_document_without_secrets_needs_no_reveal(database):
    """The bytes are in it anyhow; the digest tells whether they are the stored ones."""

    async def body(w):
        payloads = [b'{"n":  1.10 }', b"plain \n text", b"\xff\x00", b'{"base64": "AA=="}', b""]
        for payload in payloads:
            await w.plant(payload=payload)
        text_ = await exported(w.desk)
        async with w.engine.begin() as connection:
            await connection.execute(w.dlq.delete())
        assert (await import_(w, text_)).imported == len(payloads)
        assert [x["payload"] for x in await w.letters()] == payloads

    run_desk(database, body)


def _edited(one, path, value):
    made = json.loads(json.dumps(one))
    holder = made
    for step in path[:-1]:
        holder = holder[step]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return made


EDITS = [
    (("dlq_envelope", "version"), 2, "version 2"),
    (("dlq_envelope", "version"), True, "version true"),
    (("dlq_envelope", "version"), "1", "version"),
    (("dlq_envelope", "original_queue"), "other", "not the same"),
    (("masked",), True, "it is masked"),
    (("masked",), "no", "it is masked"),
    (("masked",), ..., "does not say that nothing is masked"),
    (("digest",), "sha256:" + "0" * 64, "digest"),
    (("digest",), ..., "digest is missing"),
    (("digest",), 5, "digest is a number"),
    (("payload_base64",), "AAAA", "digest"),
    (("payload_base64",), "no base64!", "base64"),
    (("payload_base64",), None, "payload_base64 is missing"),
    (("letter",), [], "letter is an array"),
    (("letter",), ..., "letter is missing"),
    (("letter", "queue"), "", "queue"),
    (("letter", "queue"), "q\x00", "NUL"),
    (("letter", "queue"), "q\ud800", "surrogate"),
    (("letter", "queue"), "q" * 256, "255"),
    (("letter", "queue"), 5, "queue must be a str"),
    (("letter", "message_id"), "x" * 256, "message_id"),
    (("letter", "message_id"), "a\x00b", "NUL"),
    (("letter", "owner"), {"a": 1}, "owner is an object"),
    (("letter", "triage"), "x" * 65, "triage"),
    (("letter", "failure_reason"), ..., "failure_reason is missing"),
    (("letter", "failure_category"), "not a word", "failure_category"),
    (("letter", "original_id"), -1, "original_id"),
    (("letter", "original_id"), 2**63, "original_id"),
    (("letter", "deliveries_count"), 1.5, "deliveries_count"),
    (("letter", "deliveries_count"), True, "deliveries_count"),
    (("letter", "replay_count"), 2**31, "replay_count"),
    (("letter", "replays_at_reopen"), 1, "replays_at_reopen"),
    (("letter", "failed_at"), "yesterday", "failed_at"),
    (("letter", "failed_at"), "2024-02-30T10:00:00Z", "impossible"),
    (("letter", "failed_at"), "9999-12-31T23:59:59Z", "still to come"),
    (("letter", "created_at"), "0001-01-01T00:00:00+14:00", "impossible"),
    (("letter", "created_at"), 5, "created_at"),
    (("letter", "error_message"), [1], "error_message"),
    (("letter", "origin"), "x" * 9000, "origin"),
    (("original_headers",), [1], "headers are no object"),
    (("original_headers",), {"a": "b\x00"}, "NUL"),
    (("original_headers",), {"a\ud800": 1}, "surrogate"),
    (("original_headers",), {"outlast-message-id": 5}, "outlast-message-id"),
    (("original_headers",), {"x": "y" * 2**20}, "headers take"),
]


def test_a_document_that_was_changed_is_refused_by_its_own_result(database):
    """Each field is checked; the others of the file come in; masked ones name the way."""

    async def body(w):
        await w.plant(**FAILED)
        (one,) = await documents(w.desk, reveal=True)
        await w.desk.purge(ANN, [1], hard=True, reason="r")
        bad = [_edited(one, path, value) for path, value, _ in EDITS]
        bad += [5, [], "text", None, {}, {"dlq_envelope": 1}, {"original_message": {}}]
        text_ = "\n".join(json.dumps(x) for x in [*bad, one])
        result = await import_(w, text_)
        assert (result.imported, result.failed, result.exit_code) == (1, len(bad), 1)
        for (path, value, why), got in zip(EDITS, result.results, strict=False):
            assert got.outcome == "failed", (path, value)
            assert why in got.reason, (path, value, got.reason)
            assert len(got.reason) < 400
        assert result.results[4].remedy == "export again with --reveal"
        assert result.results[-1].outcome == "imported"
        assert len(await w.letters()) == 1

    run_desk(database, body)


def test_a_masked_document_is_refused(database):
    """A mask never becomes a message."""

    async def body(w):
        await w.plant(payload=b'{"password": "hunter22"}')
        await w.plant(headers={"authorization": "Bearer abcdefghijk"})
        await w.plant(error_message="password=hunter22")
        result = await import_(w, await exported(w.desk))
        assert (result.imported, result.failed, len(await w.letters())) == (0, 3, 3)
        assert {x.remedy for x in result.results} == {"export again with --reveal"}

    run_desk(database, body)


@pytest.mark.parametrize(
    ("text_", "good", "problem"),
    [
        ("{}", 1, None),
        (" [ ] ", 0, None),
        ("[{}, {}]\n", 2, None),
        ("\ufeff{}\n{}\n\n", 2, None),
        ("{\n}\n{\n\n}", 2, None),
        ('{"a": 1, "a": 2}', 0, "twice"),
        ('{"a": NaN}', 0, "NaN"),
        ("{}\n{broken\n{}\n", 2, "line 2 is no JSON"),
        ("[{}, {broken]", 1, "line 1 is no JSON"),
        ("[{} {}]", 1, "the array ends at document 1"),
        ("[{}", 1, "the array ends at document 1"),
        ("[{}] {}", 1, "something follows"),
        ("[" * 100_000, 0, "nested"),
        ("{" * 5, 0, "line 1 is no JSON"),
    ],
)
def test_any_text_is_cut_into_documents(text_, good, problem):
    """One object, several, lines, an array; what is broken is named with its line."""
    found = list(read_documents(text_))
    assert len([x for x in found if x.problem is None]) == good
    problems = [x.problem for x in found if x.problem is not None]
    assert problem in problems[0] if problem else not problems, problems
    assert [x.number for x in found] == list(range(1, len(found) + 1))


def test_who_may_import_and_what_is_no_import(database):
    """Scope edit; a table that cannot hold letters of ours is refused with the remedy."""

    async def body(w):
        with pytest.raises(NotAllowed, match="edit"):
            await w.desk.import_letters(Actor("eve", frozenset({"inspect", "replay"})), "{}")
        for nothing in ("", " \n", "[]"):
            with pytest.raises(BadRequest, match="nothing to import"):
                await import_(w, nothing)
        async with w.engine.begin() as connection:
            await connection.execute(text("drop index outbox_dlq_purge_idx"))
            await connection.execute(text("alter table outbox_dlq drop column purge_after"))
        with pytest.raises(NotRecorded, match="no column purge_after"):
            await w.make_desk().import_letters(ANN, "{}")

    run_desk(database, body)


def test_long_texts_are_cut_as_ours_are(database):
    """What another system kept whole takes no more room than a failure of ours."""

    async def body(w):
        told = SEED["dlq_metadata"] | {"stack_trace": "x" * 100_000, "failure_reason": "é" * 9000}
        assert (await import_(w, json.dumps(SEED | {"dlq_metadata": told}))).imported == 1
        (letter,) = await w.letters()
        for name in ("stack_trace", "error_message"):
            assert len(letter[name].encode()) <= 8192
            assert letter[name].endswith("…[truncated]")

    run_desk(database, body)


def test_edits_do_not_come_back_and_that_is_told(database):
    """The original is exported; whoever imports it hears of the edits it had."""

    async def body(w):
        await w.plant(revision=2)
        text_ = await exported(w.desk, reveal=True)
        await w.desk.purge(ANN, [1], hard=True, reason="r")
        (done,) = (await import_(w, text_)).results
        assert "2 edits" in done.notes[0]
        (letter,) = await w.letters()
        assert letter["revision"] == 0

    run_desk(database, body)


def test_digests_are_those_of_the_stored_bytes(database):
    """What tells one body from another is computed from the bytes, never believed."""

    async def body(w):
        payload = b"\x00other"
        made = {
            "digest": hashlib.sha256(payload).hexdigest().upper(),
            "original_message": {"body": {"base64": base64.b64encode(payload).decode()}},
            "dlq_metadata": SEED["dlq_metadata"],
        }
        assert (await import_(w, json.dumps(made))).imported == 1
        made["digest"] = "0" * 64
        (refused,) = (await import_(w, json.dumps(made))).results
        assert "digest" in refused.reason

    run_desk(database, body)
