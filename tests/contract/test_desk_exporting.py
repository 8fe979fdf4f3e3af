"""Export: one document per letter, masked unless revealed, whole, and harmless wherever it goes."""

import base64
import csv
import hashlib
import io
import json
import subprocess
import sys
from datetime import timedelta

import pytest
from sqlalchemy import event, text

from outlast.model.errors import CannotWrite
from outlast.ops import Actor, BadRequest, NotAllowed
from outlast.policy.filter_text import parse
from tests.contract.desks import ANN, run_desk

READER = Actor("eve", frozenset({"inspect"}))

FAILED = {
    "queue": "order-processing",
    "message_id": "msg-a1b2c3d4",
    "error_type": "ValidationError",
    "error_message": "field 'quantity' must be > 0",
    "failure_category": "VALIDATION",
    "stack_trace": 'Traceback (most recent call last):\n  File "consumer.py", line 42',
    "attempts_count": 3,
    "consumer_instance": "order-consumer-pod-7b4d9",
    "consumer_version": "2.4.1",
    "headers": {
        "correlation_id": "corr-x9y8z7",
        "content_type": "application/json",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    },
    "payload": b'{"order_id": "ORD-12345", "quantity": -1, "price": 1.10}',
}


async def exported(desk, words="", *, actor=ANN, now=None, **options):
    query = parse(words, now=now) if words else None
    return "".join([piece async for piece in desk.export(actor, query, **options)])


async def documents(desk, words="", **options):
    return json.loads(await exported(desk, words, **options))


def test_one_document_has_both_envelopes(database):
    """S4-07 S4-08 S4-09 S4-10 S4-11 S4-12: original_message and dlq_metadata, verbatim.
    S4-85 S4-86 S4-87 S4-90 S4-91 S4-92 S4-93: dlq_envelope says which, why, how often.
    S4-94 S4-95 S4-96 S4-97: first and last failure, and who it was.
    S4-98 S4-99: headers and body as they were, byte for byte.
    """

    async def body(w):
        now = await w.now()
        first = now - timedelta(hours=2)
        letter_id = await w.plant(**FAILED, first_failure_at=first, last_failure_at=now)
        text_ = await exported(w.desk)
        (found,) = json.loads(text_)
        assert found["original_message"] == {
            "body": FAILED["payload"].decode(),
            "headers": FAILED["headers"],
        }
        failure = "ValidationError: field 'quantity' must be > 0"
        assert found["dlq_metadata"] == {
            "original_queue": "order-processing",
            "failure_reason": failure,
            "failure_timestamp": now.isoformat().replace("+00:00", "Z"),
            "retry_count": 3,
            "stack_trace": FAILED["stack_trace"],
        }
        assert found["dlq_envelope"] == {
            "version": 1,
            "message_id": "msg-a1b2c3d4",
            "original_topic": "order-processing",
            "original_queue": "order-processing",
            "failure_reason": failure,
            "failure_category": "VALIDATION",
            "stack_trace": FAILED["stack_trace"],
            "retry_count": 3,
            "first_failure_at": first.isoformat().replace("+00:00", "Z"),
            "last_failure_at": now.isoformat().replace("+00:00", "Z"),
            "consumer_instance": "order-consumer-pod-7b4d9",
            "consumer_version": "2.4.1",
        }
        assert found["original_headers"] == FAILED["headers"]
        assert '"price": 1.10}' in text_
        assert found["original_body"] == {"order_id": "ORD-12345", "quantity": -1, "price": 1.1}
        assert found["digest"] == "sha256:" + hashlib.sha256(FAILED["payload"]).hexdigest()
        assert found["masked"] is False
        assert "payload_base64" not in found
        assert found["letter"]["dlq_id"] == letter_id
        assert found["letter"]["failure_reason"] == "retry_terminal"

    run_desk(database, body)


def test_what_is_not_recorded_is_said_not_invented(database):
    """S4-88 S4-89: partition and offset only where the source has them; the rest is named."""

    async def body(w):
        await w.plant(
            **dict.fromkeys(("failure_category", "attempts_count", "first_failure_at")), payload=b""
        )
        origin = {"topic": "orders.placed", "partition": 3, "offset": 884201}
        await w.plant(origin=json.dumps(origin))
        plain, adopted = await documents(w.desk)
        head = plain["dlq_envelope"]
        assert {"failure_category", "retry_count", "first_failure_at", "stack_trace"} <= set(
            head["not_recorded"]
        )
        assert not {*head["not_recorded"], "original_partition", "original_offset"} & set(head)
        assert plain["original_body"] == {"base64": ""}
        head = adopted["dlq_envelope"]
        assert (head["original_topic"], head["original_partition"], head["original_offset"]) == (
            "orders.placed",
            3,
            884201,
        )

    run_desk(database, body)


SECRET = {"authorization": "Bearer abcdefghijk"}


def test_secrets_leave_only_with_the_scope_and_a_line_of_history(database):
    """F-K11: masked as everywhere; a reveal is recorded before anything is given."""

    async def body(w):
        payload = b'{"password": "hunter22", "n": 1.10}'
        await w.plant(headers=SECRET, payload=payload, error_message="bad hunter22")
        await w.plant(payload=b"password=hunter22", headers=None)
        # a name twice: what a reader of JSON sees is not all that it says
        await w.plant(payload=b'{"password": "hunter22", "password": null}')
        await w.plant(payload=b"{}", headers=None, error_message="password=hunter22")
        for kind in ("json", "jsonl", "csv", "pytest"):
            shown = await exported(w.desk, actor=READER, kind=kind)
            assert "hunter22" not in shown
            assert "abcdefghijk" not in shown
            hidden = base64.b64encode(b"hunter22").decode().rstrip("=")[:-1]
            assert hidden not in shown
            with pytest.raises(NotAllowed, match="reveal"):
                w.desk.export(READER, kind=kind, reveal=True)
        assert all(x["masked"] for x in await documents(w.desk, actor=READER))
        assert await w.told() == []
        words = parse("queue:q", now=await w.now())
        pieces = w.desk.export(ANN, words, reveal=True, kind="jsonl", reason="ticket 5")
        assert await w.told() == []
        first = json.loads(await anext(pieces))
        (line,) = await w.told()
        assert (line.kind, line.actor, line.reason, line.dlq_id) == (
            "exported",
            "ann",
            "ticket 5",
            None,
        )
        assert line.detail == {"filter": "queue:q", "kind": "jsonl", "count": 4, "reveal": True}
        rest = [json.loads(piece) async for piece in pieces]
        assert base64.b64decode(first["payload_base64"]) == payload
        assert first["original_headers"] == SECRET
        assert first["masked"] is False
        assert len(rest) == 3
        # whoever repeats a request is recorded again
        again = Actor("ann", ANN.scopes, "r-1")
        for _ in range(2):
            await documents(w.desk, actor=again, reveal=True)
        assert len(await w.told()) == 3

    run_desk(database, body)


def test_an_export_sends_no_write(database):
    """Without a reveal: SELECT and nothing else."""

    async def body(w):
        await w.plant_many(3)
        sent = []
        event.listen(
            w.engine.sync_engine,
            "before_cursor_execute",
            lambda _c, _k, statement, *_: sent.append(statement.lstrip().upper()),
        )
        assert len(await documents(w.desk, actor=READER)) == 3
        assert sent
        assert not [s for s in sent if not s.startswith(("SELECT", "PRAGMA"))]

    run_desk(database, body)


def test_a_role_that_may_only_select_exports(postgres):
    """It exports everything; what it may not see without a record is refused."""
    from uuid import uuid4

    from sqlalchemy import make_url
    from sqlalchemy.ext.asyncio import create_async_engine

    role = f"r_{uuid4().hex[:12]}"

    async def body(w):
        await w.plant(headers=SECRET)
        async with w.engine.begin() as connection:
            for statement in (
                f"create role {role} login",
                f"grant usage on schema {postgres.schema} to {role}",
                f"grant select on all tables in schema {postgres.schema} to {role}",
            ):
                await connection.execute(text(statement))
        url = make_url(postgres.url).set(username=role)
        reader = create_async_engine(url, connect_args=postgres.connect_args)
        try:
            desk = w.make_desk(reader)
            (found,) = await documents(desk)
            assert found["masked"] is True
            with pytest.raises(CannotWrite):
                await documents(desk, reveal=True)
        finally:
            await reader.dispose()
            async with w.engine.begin() as connection:
                await connection.execute(text(f"drop owned by {role}"))
                await connection.execute(text(f"drop role {role}"))

    run_desk(postgres, body)


@pytest.mark.parametrize("timer", ["", ", timer_id varchar(255)"])
def test_a_table_of_the_peer_is_exported(postgres, timer):
    """10 or 11 columns: what it lacks is not recorded; nothing is changed."""
    from outlast.ops import Desk
    from tests.doors.test_peer_tables import DLQ, OUTBOX

    async def main(engine):
        async with engine.begin() as connection:
            for statement in (OUTBOX, DLQ.format(timer=timer)):
                await connection.execute(text(statement))
            await connection.execute(
                text(
                    "insert into outbox_dlq (original_id, queue, payload, headers, "
                    "deliveries_count, created_at, failure_reason, last_exception) values "
                    "(7, 'q', '{}', null, 3, now(), 'max_deliveries', 'KeyError(1)')"
                )
            )
        desk = Desk(engine, "outbox", "outbox_dlq")
        for reveal in (False, True):
            (found,) = await documents(desk, reveal=reveal)
            head = found["dlq_envelope"]
            assert (head["message_id"], head["failure_reason"]) == ("7", "KeyError(1)")
            assert "stack_trace" in head["not_recorded"]
            assert found["original_headers"] is None
        for kind in ("csv", "pytest"):
            assert "KeyError(1)" in await exported(desk, kind=kind)

    postgres.run(main)


def test_an_export_is_what_was_there_when_it_began(database):
    """U-06: letters that arrive, or come back, meanwhile are not in it; no chunk is bounded."""

    async def body(w):
        desk = w.make_desk(chunk=3)
        await w.plant_many(10)
        (last,) = (await w.desk.list(ANN, limit=1)).letters
        told = []
        pieces = desk.export(READER, kind="jsonl", progress=told.append)
        first = json.loads(await anext(pieces))
        await w.plant_many(5)
        await w.plant_many(5, state_changed_at=None)
        await w.change(last.id, state_changed_at=await w.now())
        rest = [json.loads(piece) async for piece in pieces]
        found = [x["letter"]["dlq_id"] for x in (first, *rest)]
        assert found == sorted(found)
        assert len(found) == 9
        assert last.id not in found
        assert told == [3, 6, 9]

    run_desk(database, body)


def test_filters_states_and_nothing(database):
    """The filter of every verb; an export of nothing is a whole document, too."""

    async def body(w):
        now = await w.now()
        a = await w.plant(queue="a", payload=b'{"n": 1}')
        b = await w.plant(queue="b", state="resolved", payload=b'{"n": 2}')
        for words, ids in {"queue:a": [a], "state:any": [a, b], "body.n:2 state:any": [b]}.items():
            found = await documents(w.desk, words, now=now)
            assert [x["letter"]["dlq_id"] for x in found] == ids
        assert await documents(w.desk, "queue:none", now=now) == []
        assert await exported(w.desk, "queue:none", now=now, kind="jsonl") == ""
        assert len((await exported(w.desk, "queue:none", now=now, kind="csv")).splitlines()) == 1
        with pytest.raises(BadRequest, match="no export as 'xml'"):
            w.desk.export(ANN, kind="xml")
        with pytest.raises(NotAllowed):
            w.desk.export(Actor("nobody"))

    run_desk(database, body)


HOSTILE = (
    '"""\nimport os; os._exit(0)\n"""',
    "'); raise SystemExit(0)  #",
    "=cmd|' /C calc'!A1",
    "\x1b[2J\u202e\u2028\n,;\t\r",
    "💥 \\N{BULLET} {x} %s",
)
BODIES = (
    b"",
    b"\x00\xff\xfe binary \x00",
    "Ünïcode \u2028 \u202e".encode(),
    b'{"n": 123456789012345678901234567890, "f": 1.10, "e": 1e999, "z": -0}',
    b"[" * 5000 + b"]" * 5000,
    b'{"a": "\\ud800", "nul": "\\u0000"}',
    b"9" * 5000,
    b'{"a": NaN}',
    *(json.dumps({text_: text_}).encode() for text_ in HOSTILE),
    *(text_.encode() for text_ in HOSTILE),
)


async def plant_hostile(w):
    for number, payload in enumerate(BODIES):
        name = HOSTILE[number % len(HOSTILE)]
        await w.plant(
            queue=name,
            payload=payload,
            headers=None if number % 3 == 0 else {name: name, "big": 2**70, "deep": [[{"x": 1.5}]]},
            message_id=name,
            event_type=name,
            subscriber=name,
            error_type=name,
            error_message=name,
            stack_trace=name,
            owner=name,
            timer_id=name,
        )


def test_no_body_header_or_name_breaks_a_document(database):
    """Every kind is well formed whatever strangers wrote, and moves no cursor."""

    async def body(w):
        await plant_hostile(w)
        for reveal in (False, True):
            for kind in ("json", "jsonl"):
                shown = await exported(w.desk, kind=kind, reveal=reveal)
                assert shown.replace("\n", "").isprintable()
                lines = shown.splitlines()
                if kind == "json":
                    found = json.loads(shown)
                else:
                    found = [json.loads(line) for line in lines]
                assert len(found) == len(BODIES)
                for payload, one in zip(BODIES, found, strict=True):
                    assert one["digest"] == "sha256:" + hashlib.sha256(payload).hexdigest()
                    if reveal:
                        assert base64.b64decode(one["payload_base64"]) == payload
            assert '"f": 1.10, "e": 1e999, "z": -0}' in shown
        rows = list(csv.reader(io.StringIO(await exported(w.desk, kind="csv", reveal=True))))
        assert {len(row) for row in rows} == {len(rows[0])}
        assert len(rows) == len(BODIES) + 1
        for row in rows[1:]:
            for cell in row:
                assert not cell.startswith(("=", "+", "@", "\t", "\r"))
                assert not {"\x00", "\x1b", "\u202e"} & set(cell)

    run_desk(database, body)


APP = """
import json
from sqlalchemy import MetaData
from outlast import OutboxBroker, NoRetry, make_dlq_table, make_outbox_table

metadata = MetaData()
broker = OutboxBroker(
    outbox_table=make_outbox_table(metadata, table_name="outbox"),
    dlq_table=make_dlq_table(metadata, table_name="outbox_dlq"),
)
SEEN = []

{handlers}
"""

HANDLER = """
@broker.subscriber({queue}, retry_strategy={retry})
async def handle_{number}(body{kind}) -> None:
    {does}
"""


def run_tests(folder, source, handlers):
    (folder / "shop_app.py").write_text(APP.format(handlers=handlers))
    made = folder / "test_letters.py"
    made.write_text(source)
    compile(source, str(made), "exec")
    assert source.isascii()
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", made],
        cwd=folder,
        env={"OUTLAST_APP": "shop_app:broker", "PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_letter_becomes_a_test_that_the_mended_handler_passes(sqlite, tmp_path):
    """Run by pytest in a process of its own: red with the fault, green when it is mended."""

    async def body(w):
        await w.plant(**FAILED)
        source = await exported(w.desk, kind="pytest")
        queue, needs = repr("order-processing"), "assert body['quantity'] > 0, body"
        for retry in ("NoRetry()", "None"):
            broken = HANDLER.format(queue=queue, number=1, kind=": dict", does=needs, retry=retry)
            red = run_tests(tmp_path, source, broken)
            assert red.returncode == 1, red.stdout + red.stderr
            assert "dead letter 1 fails again" in red.stdout
            assert "1 failed" in red.stdout
        sees = "assert body == {'order_id': 'ORD-12345', 'quantity': -1, 'price': 1.1}"
        mended = HANDLER.format(queue=queue, number=1, kind=": dict", does=sees, retry="NoRetry()")
        green = run_tests(tmp_path, source, mended)
        assert green.returncode == 0, green.stdout + green.stderr
        assert "1 passed" in green.stdout
        unserved = run_tests(tmp_path, source, mended.replace("order-processing", "other"))
        assert "was taken by nobody" in unserved.stdout
        elsewhere = run_tests(tmp_path, source.replace('"OUTLAST_APP"', '"X"'), mended)
        assert "set APP to module:attribute" in elsewhere.stdout

    run_desk(sqlite, body)


def test_hostile_letters_are_valid_tests_and_run_nothing_of_their_own(sqlite, tmp_path):
    """Generated source is literals only: every test runs, and hands over the very bytes."""

    async def body(w):
        await plant_hostile(w)
        source = await exported(w.desk, kind="pytest", reveal=True)
        digests = [hashlib.sha256(payload).hexdigest() for payload in BODIES]
        does = f"import hashlib; assert hashlib.sha256(body).hexdigest() in {digests!r}, body"
        handlers = "from faststream import Context\n" + "".join(
            HANDLER.format(
                queue=repr(name),
                number=number,
                kind=": bytes = Context('message.raw_message.payload')",
                does=does,
                retry="NoRetry()",
            )
            for number, name in enumerate(HOSTILE)
        )
        ran = run_tests(tmp_path, source, handlers)
        # two bodies no JSON decoder takes: they failed as undecodable, and still do
        assert f"2 failed, {len(BODIES) - 2} passed" in ran.stdout, ran.stdout[-3000:] + ran.stderr
        assert ran.stdout.count("again, with undecodable:") == 2

    run_desk(sqlite, body)


def test_what_is_masked_has_a_name_in_a_test(sqlite, tmp_path):
    """The developer sees where a value of their own belongs."""

    async def body(w):
        await w.plant(
            queue="mail",
            payload=b'{"user": {"password": "hunter22"}, "n": 1.10}',
            headers={"authorization": "Bearer abcdefghijk", "tenant": "x"},
        )
        source = await exported(w.desk, kind="pytest")
        assert "hunter22" not in source
        assert '"password": "<masked: body.user.password>"' in source
        assert "<masked: header authorization>" in source
        assert '"n": 1.10' in source
        takes = "assert body['user']['password'].startswith('<masked')"
        handlers = HANDLER.format(
            queue="'mail'", number=1, kind=": dict", does=takes, retry="NoRetry()"
        )
        ran = run_tests(tmp_path, source, handlers)
        assert "1 passed" in ran.stdout, ran.stdout + ran.stderr

    run_desk(sqlite, body)
