"""Looking at letters: filters, pages, numbers, one letter whole; nothing is written."""

from datetime import timedelta

import pytest
from sqlalchemy import event, insert, text

from outlast.model.errors import CannotWrite, SchemaError
from outlast.ops import Actor, BadRequest, LetterNotFound, NotAllowed, NotRecorded
from outlast.ops.views import stats_json
from outlast.policy.filter_text import parse
from tests.contract.desks import ANN, run_desk

READER = Actor("eve", frozenset({"inspect"}))


async def ids(w, words):
    page = await w.desk.list(ANN, parse(words, now=await w.now()), limit=1000)
    assert page.total == len(page.letters)
    return {letter.id for letter in page.letters}


def test_every_word_finds_what_it_says_and_no_more(database):
    """The filter of the desk, each word and its negation, on real rows."""

    async def body(w):
        now = await w.now()
        a = await w.plant(
            queue="orders",
            subscriber="h",
            event_type="paid",
            message_id="m-1",
            failure_category="EXTERNAL",
            triage="consumer bug",
            owner="bo",
            error_type="TimeoutError",
            error_message="100% of 5_000 timed out",
            fingerprint="v1:aa",
            consumer_version="1.10.0",
            replay_count=2,
            headers={"Tenant": "x"},
            payload=b'{"order": {"id": 7, "lines": [{"sku": "s"}], "ok": true}}',
        )
        b = await w.plant(
            queue="mail",
            failure_category=None,
            failure_reason="rejected",
            consumer_version="1.9",
            payload=b"\xff not JSON",
            headers=None,
            original_id=77,
            last_exception="ValueError('no')",
            last_failure_at=now - timedelta(hours=3),
        )
        for words, found in {
            "queue:orders": {a},
            "-queue:orders": {b},
            "queue:orders queue:mail": {a, b},
            "subscriber:h": {a},
            "-subscriber:h": {b},
            f"id:{a}": {a},
            "message:m-1": {a},
            "message:77": {b},
            "-message:77": {a},
            "event:paid": {a},
            "category:external": {a},
            "-category:EXTERNAL": {b},
            'category:"not recorded"': {b},
            "reason:rejected": {b},
            'triage:"consumer bug"': {a},
            "owner:bo": {a},
            'error:"TIMED OUT"': {a},
            "error:valueerror": {b},
            "-error:valueerror": {a},
            "error:%": {a},
            "error:5_0": {a},
            "error:5%0": set(),
            "group:v1:aa": {a},
            "version:>=1.10": {a},
            "version:<1.10": {b},
            "version:1.9": {b},
            "-version:1.9": {a},
            "since:2h": {a},
            "until:2h": {b},
            "-since:2h": {b},
            "replays:>=2": {a},
            "replays:0": {b},
            "header.tenant:x": {a},
            'group:"not recorded"': {b},
            "-header.tenant:x": {b},
            "body.order.id:7": {a},
            "body.order.id:7.0": {a},
            "body.order.lines.0.sku:s": {a},
            "body.order.ok:true": {a},
            "-body.order.id:7": {b},
            "state:any": {a, b},
            "state:open": {a, b},
            "state:resolved": set(),
        }.items():
            assert await ids(w, words) == found, words
            query = parse(words, now=await w.now())
            assert await w.desk.count(ANN, query) == len(found), words
            stats = await w.desk.stats(ANN, query)
            assert stats.depth == len(found), words

    run_desk(database, body)


HOSTILE = [
    "'; drop table outbox_dlq; --",
    "' OR 1=1 --",
    "%",
    "_",
    "\\",
    "/%",
    "%(x)s",
    ":x",
    "$1",
    "?",
    "{}",
    "\u202e",
    "💥",
    "a" * 1000,
]


def test_hostile_values_are_values(database):
    """F-K08: no value of a filter is ever a part of a statement."""
    from outlast.model.query import Condition, Query, Word

    async def body(w):
        await w.plant(error_message="plain")
        for value in HOSTILE:
            for name in (
                *("queue", "subscriber", "message", "event", "category", "reason", "triage"),
                *("owner", "error", "group", "version"),
            ):
                query = Query((Word(name, (Condition("=", value),)),))
                assert await w.desk.count(ANN, query) == 0, (name, value)
            for name, path in (("header", (value,)), ("body", (value, value))):
                query = Query((Word(name, (Condition("=", value),), path),))
                assert (await w.desk.list(ANN, query)).letters == (), (name, value)
            done = await w.desk.replay_all(ANN, Query((Word("queue", (Condition("=", value),)),)))
            assert done.replayed == 0
        assert len(await w.letters()) == 1

    run_desk(database, body)


@pytest.mark.parametrize("lacks_times", [False, True])
def test_pages_show_each_letter_once_newest_first(database, lacks_times):
    """Keyset paging while rows move; a letter without a last failure has its place, too."""

    async def body(w):
        now = await w.now()
        for n in range(7):
            at = now - timedelta(minutes=n // 2)
            await w.plant(failed_at=at, last_failure_at=None if lacks_times and n % 3 else at)
        seen, cursor = [], None
        while True:
            page = await w.desk.list(ANN, limit=2, after=cursor)
            assert (page.total, page.at_least) == (7, False)
            seen += [(x.latest_failure_at, x.id) for x in page.letters]
            if len(seen) == 2:
                # fails once more: it goes to the top, behind us
                await w.change(seen[0][1], last_failure_at=now + timedelta(minutes=1))
            cursor = page.cursor
            if not page.more:
                break
        assert cursor is None
        assert len({x[1] for x in seen}) == len(seen) == 7
        assert seen == sorted(seen, reverse=True)
        with pytest.raises(BadRequest, match="cursor"):
            await w.desk.list(ANN, after="nonsense")
        with pytest.raises(BadRequest, match="limit"):
            await w.desk.list(ANN, limit=0)

    run_desk(database, body)


def test_long_lists_say_at_least_and_name_their_causes(database):
    """Totals are exact to 10,000; more than 20 rows come with a hint."""

    async def body(w):
        await w.plant_many(10_001, fingerprint="v1:a")
        await w.plant_many(3, fingerprint=None)
        page = await w.desk.list(ANN, limit=3)
        assert (page.total, page.at_least, page.more) == (10_000, True, True)
        assert page.as_json()["total_is"] == "at least"
        assert page.causes.causes == 1
        assert await w.desk.count(ANN) == 10_004
        scanned = await w.desk.list(ANN, parse("-body.x:1", now=await w.now()), limit=3)
        assert scanned.at_least
        assert "looked at the newest 10,000 of 10,004" in scanned.notes

    run_desk(database, body)


def test_numbers_agree_with_each_other_and_with_the_list(database):
    """Features 4.6: one query each; hidden letters are not counted."""

    async def body(w):
        now = await w.now()
        old = now - timedelta(days=2)
        await w.plant_many(2, queue="a", failure_category="TIMEOUT", fingerprint="v1:a")
        await w.plant_many(
            1,
            queue="a",
            failure_category=None,
            fingerprint="v1:b",
            failed_at=old,
            last_failure_at=old,
            first_failure_at=old,
            consumer_version="1,0",
        )
        await w.plant_many(
            1, queue="b", fingerprint="v1:b", state="needs_review", consumer_version="2"
        )
        await w.plant_many(4, queue="b", state="resolved")
        stats = await w.desk.stats(ANN)
        assert stats.depth == (await w.desk.list(ANN)).total == 4
        assert stats.states == {"open": 3, "needs_review": 1, "resolved": 4}
        assert stats.causes == (("v1:a", 2), ("v1:b", 2))
        assert {(q.queue, q.category): q.depth for q in stats.queues} == {
            ("a", "TIMEOUT"): 2,
            ("a", None): 1,
            ("b", None): 1,
        }
        shown = stats_json(stats)
        assert 2 * 86_400 <= shown["oldest_age_seconds"] < 2 * 86_400 + 600
        assert sum(q["arrivals_hour"] for q in shown["queues"]) == 7
        groups = await w.desk.groups(ANN)
        assert not groups.more
        by_name = {g.fingerprint: g for g in groups.groups}
        assert by_name["v1:b"].count == 2
        assert by_name["v1:b"].queues == ("a", "b")
        assert by_name["v1:b"].versions == ("1,0", "2")
        assert by_name["v1:b"].first_seen == old
        assert by_name["v1:b"].last_seen > old
        first = await w.desk.groups(ANN, limit=1)
        assert first.more
        assert first.total == groups.total == len(groups.groups)
        for shown in groups.as_json()["items"]:
            assert len(await ids(w, shown["filter"])) == shown["count"]

    run_desk(database, body)


SECRET = "Bearer abcdefghijk"


def test_secrets_are_masked_unless_somebody_may_see_them(database):
    """A reveal needs its scope and leaves a line in the history."""

    async def body(w):
        letter_id = await w.plant(
            payload=b'{"password": "hunter22", "n": 1.10}',
            headers={"authorization": SECRET},
            error_message="refused hunter22",
            stack_trace="password='hunter22'",
        )
        listed = (await w.desk.list(READER)).as_json()
        detail = await w.desk.inspect(READER, letter_id)
        assert detail.masked
        assert detail.body is None
        for shown in (repr(listed), repr(detail), repr(detail.as_json())):
            assert SECRET not in shown
        assert "hunter22" not in repr(detail.as_json())
        with pytest.raises(NotAllowed, match="reveal"):
            await w.desk.inspect(READER, letter_id, reveal=True)
        assert await w.told() == []
        seen = await w.desk.inspect(ANN, letter_id, reveal=True, reason="ticket 5")
        assert seen.payload.text == '{\n  "password": "hunter22",\n  "n": 1.10\n}'
        assert seen.letter.headers == {"authorization": SECRET}
        (line,) = await w.told(letter_id)
        assert (line.kind, line.actor, line.reason) == ("revealed", "ann", "ticket 5")

    run_desk(database, body)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [(b"", "text"), (b"plain", "text"), (b"\xff\x00", "hex"), (b"[" * 5000 + b"]" * 5000, "text"),
     (b'{"a":NaN, "b":1e999}', "json"), (b"9" * 5000, "json")],
)  # fmt: skip
def test_any_bytes_can_be_looked_at(database, payload, kind):
    """Whatever was published, the desk shows something."""
    import json

    async def body(w):
        letter_id = await w.plant(payload=payload)
        detail = await w.desk.inspect(ANN, letter_id)
        assert detail.payload.kind == kind
        assert detail.payload.size == len(payload)
        json.dumps(detail.as_json(), allow_nan=False)

    run_desk(database, body)


def test_a_letter_that_is_not_there_is_named(database):
    async def body(w):
        for letter_id in (5, 0, -1, 2**70):
            with pytest.raises(LetterNotFound, match=f"DLQ message '{letter_id}' not found."):
                await w.desk.inspect(ANN, letter_id)
        with pytest.raises(LetterNotFound):
            await w.desk.history(ANN, 5)
        (missing,) = (await w.desk.replay(ANN, [5])).results
        assert (missing.outcome, missing.exit_code) == ("failed", 1)

    run_desk(database, body)


def test_without_a_scope_nothing_is_told(database):
    async def body(w):
        nobody = Actor("nobody")
        for call in (
            w.desk.list(nobody),
            w.desk.stats(nobody),
            w.desk.inspect(nobody, 1),
            w.desk.replay(READER, [1]),
            w.desk.purge(READER, [1]),
            w.desk.mark(READER, [1], reopen=True),
            w.desk.outbox_cancel(READER, [1]),
        ):
            with pytest.raises(NotAllowed):
                await call

    run_desk(database, body)


def test_looking_sends_no_write(database):
    """Every reading verb: SELECT and nothing else."""

    async def body(w):
        letter_id = await w.plant()
        row_id = await w.add()
        await w.plant(state="replaying", replayed_as=12345)
        sent = []
        event.listen(
            w.engine.sync_engine,
            "before_cursor_execute",
            lambda _c, _k, statement, *_: sent.append(statement.lstrip().upper()),
        )
        await w.desk.list(READER)
        await w.desk.count(READER)
        await w.desk.groups(READER)
        await w.desk.stats(READER)
        assert (await w.desk.inspect(READER, letter_id)).history == ()
        await w.desk.history(READER, letter_id)
        assert [r.id for r in (await w.desk.outbox_list(READER)).rows] == [row_id]
        assert (await w.desk.outbox_inspect(READER, row_id)).row.state == "pending"
        await w.desk.wait_for_outcome(READER, [letter_id], 0)
        await w.desk.workers(READER)
        await w.desk.notes()
        assert sent
        words = {word for statement in sent for word in statement.split()}
        assert not words & {"INSERT", "UPDATE", "DELETE"}
        assert not [s for s in sent if not s.startswith(("SELECT", "WITH FINE", "PRAGMA"))]

    run_desk(database, body)


def test_a_role_that_may_only_select(postgres):
    """A reader's role sees everything; what it may not do is refused by a sentence."""
    from uuid import uuid4

    role = f"r_{uuid4().hex[:12]}"

    async def body(w):
        letter_id = await w.plant(headers={"x": 1})
        async with w.engine.begin() as connection:
            await connection.execute(text(f"create role {role} login"))
            await connection.execute(text(f"grant usage on schema {postgres.schema} to {role}"))
            await connection.execute(
                text(f"grant select on all tables in schema {postgres.schema} to {role}")
            )
        from sqlalchemy import make_url
        from sqlalchemy.ext.asyncio import create_async_engine

        url = make_url(postgres.url).set(username=role)
        reader = create_async_engine(url, connect_args=postgres.connect_args)
        try:
            desk = w.make_desk(reader)
            assert (await desk.list(ANN)).total == 1
            assert (await desk.inspect(ANN, letter_id)).letter.id == letter_id
            assert (await desk.stats(ANN)).depth == 1
            with pytest.raises(CannotWrite, match="permission denied"):
                await desk.replay(ANN, [letter_id])
            with pytest.raises(CannotWrite):
                await desk.inspect(ANN, letter_id, reveal=True)
        finally:
            await reader.dispose()
            async with w.engine.begin() as connection:
                await connection.execute(text(f"drop owned by {role}"))
                await connection.execute(text(f"drop role {role}"))

    run_desk(postgres, body)


@pytest.mark.parametrize("timer", ["", ", timer_id varchar(255)"])
def test_a_table_of_the_peer_is_read_and_not_changed(postgres, timer):
    """10 or 11 columns: listed, inspected, grouped, counted; what it lacks is not recorded."""
    from tests.doors.test_peer_tables import DLQ, OUTBOX

    async def main(engine):
        from outlast.ops import Desk

        async with engine.begin() as connection:
            for statement in (OUTBOX, DLQ.format(timer=timer)):
                await connection.execute(text(statement))
        desk = Desk(engine, "outbox", "outbox_dlq")
        async with engine.begin() as connection:
            await connection.execute(
                text(
                    "insert into outbox_dlq (original_id, queue, payload, headers, "
                    "deliveries_count, created_at, failure_reason, last_exception) values "
                    "(7, 'q', '{}', null, 3, now(), 'max_deliveries', 'KeyError(1)')"
                )
            )
        page = await desk.list(ANN)
        (letter,) = page.letters
        assert (letter.state, letter.failure_category, letter.failure) == (
            None,
            None,
            "max_deliveries: KeyError(1)",
        )
        detail = await desk.inspect(ANN, letter.id)
        assert detail.history is None
        assert any("not recorded by this table" in note for note in detail.notes)
        from datetime import UTC, datetime

        now = datetime.now(UTC)
        assert (await desk.list(ANN, parse("message:7 error:keyerror", now=now))).total == 1
        categorised = await desk.list(ANN, parse("category:EXTERNAL", now=now))
        assert (categorised.total, len(categorised.notes)) == (0, 1)
        assert (await desk.stats(ANN)).depth == 1
        (group,) = (await desk.groups(ANN)).groups
        assert (group.fingerprint, group.count) == (None, 1)
        for call in (
            desk.replay(ANN, [letter.id]),
            desk.replay_all(ANN, everything=True),
            desk.purge(ANN, [letter.id]),
            desk.mark(ANN, [letter.id], reopen=True),
        ):
            with pytest.raises(NotRecorded, match="no column") as refused:
                await call
            assert "outlast db print" in refused.value.remedy
        # a migration runs while we do: the next verb finds it
        from sqlalchemy import MetaData

        from outlast.tables import make_dlq_table

        full = make_dlq_table(MetaData())
        async with engine.begin() as connection:
            for name in [n for n in full.c.keys() if n not in letter_columns(timer)]:
                kind = full.c[name].type.compile(engine.dialect)
                default = full.c[name].server_default
                given = "" if default is None else f" default {_default(default, kind)}"
                await connection.execute(text(f"alter table outbox_dlq add {name} {kind}{given}"))
        assert (await desk.replay(ANN, [letter.id])).replayed == 1

    postgres.run(main)


def letter_columns(timer):
    from outlast.tables.dead_letters import REQUIRED_COLUMNS

    return {*REQUIRED_COLUMNS, *(["timer_id"] if timer else [])}


def _default(default, kind):
    if "TIME" in kind:
        return "now()"
    return f"'{default.arg}'"


def test_a_desk_over_no_table_says_so(database):
    async def main(engine):
        from outlast.ops import Desk

        with pytest.raises(SchemaError, match="outbox_dlq does not exist"):
            await Desk(engine).list(ANN)

    database.run(main)


def test_an_unreachable_database_is_a_sentence():
    """No password, no traceback."""
    import asyncio

    from sqlalchemy.ext.asyncio import create_async_engine

    from outlast.model.errors import StoreFailure
    from outlast.ops import Desk

    async def main():
        engine = create_async_engine("postgresql+asyncpg://u:hunter22@127.0.0.1:1/x")
        try:
            with pytest.raises(StoreFailure, match="cannot be reached") as failed:
                await Desk(engine).list(ANN)
            assert "hunter22" not in str(failed.value)
        finally:
            await engine.dispose()

    asyncio.run(main())


def test_a_worker_that_lies_in_its_report_is_harmless(database):
    """Reports come from other processes: any JSON may stand there."""

    async def body(w):
        async with w.engine.begin() as connection:
            for n, report in enumerate(
                [None, [], 5, {"queues": 5}, {"queues": [1, "q"]}, {"lease": "x"}]
            ):
                await connection.execute(
                    insert(w.tables["worker"]).values(instance=f"w{n}", report=report)
                )
        served = sorted(sorted(x.queues) for x in await w.desk.workers(ANN))
        assert served == [[], [], [], [], [], ["q"]]

    run_desk(database, body)
