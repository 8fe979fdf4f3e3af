"""What is subscribed and what waits: known names, their numbers; the outbox by filter."""

from datetime import timedelta

import pytest
from sqlalchemy import event, insert, text

from outlast.model.query import Condition, FilterError, Query, Word
from outlast.ops import Actor, BadRequest, Desk, DeskError, NotAllowed
from outlast.ops.subscriptions import UnknownSubscription
from outlast.policy.filter_text import parse, with_options
from tests.contract.desks import ANN, run_desk

READER = Actor("eve", frozenset({"inspect"}))


async def plant_worker(w, instance, *, silent=0, version="1.2", **report):
    now = await w.now()
    async with w.engine.begin() as connection:
        await connection.execute(
            insert(w.tables["worker"]).values(
                instance=instance,
                version=version,
                started_at=now - timedelta(hours=1),
                seen_at=now - timedelta(seconds=silent),
                report=report,
            )
        )


async def rows_by_name(desk):
    return {row.name: row.as_json() for row in (await desk.subscriptions(READER)).rows}


def test_every_name_that_something_knows_has_a_row(database):
    """S2-64: `subscriptions list` shows who serves what, and what waits there."""

    async def body(w):
        await plant_worker(
            w,
            "a",
            queues=["orders", "mail"],
            subscribers=[
                {"name": "take_order", "queues": ["orders"]},
                {"name": "send", "queues": ["mail"]},
            ],
        )
        await plant_worker(w, "b", version="1.3", queues=["orders"])
        await plant_worker(w, "old", silent=60, version="1.1", queues=["gone"])
        await plant_worker(w, "left", queues=["orders"], stopped=True, version="1.0")
        await plant_worker(
            w, "odd", version=None, queues={"orders": 1}, subscribers=[5, {"name": 5}]
        )
        for _ in range(3):
            await w.add("orders")
        await w.add("later", due_in=3600)
        await w.claim("orders", limit=1)
        await w.plant(queue="orders", subscriber="take_order")
        await w.plant(queue="orders", subscriber="older_handler", state="resolved")
        await w.plant(queue="orders", state="needs_review")
        await w.plant(queue="dead")
        letter = await w.plant(queue="erased")
        await w.desk.purge(ANN, [letter], hard=True, reason="r")
        found = await rows_by_name(w.desk)
        assert sorted(found) == ["dead", "erased", "gone", "later", "mail", "orders"]
        orders = found["orders"]
        assert orders["subscribers"] == ["older_handler", "take_order"]
        assert sorted(orders["workers"]) == ["a", "b", "odd"]
        assert (orders["live_workers"], orders["versions"]) == (3, ["1.2", "1.3"])
        assert (orders["depth"], orders["depth_is"]) == (3, "exact")
        assert (orders["dead_letters"], orders["dead_letters_is"]) == (2, "exact")
        assert orders["oldest_due_at"] is not None
        assert orders["known_by"] == ["worker", "outbox", "dlq"]
        assert (found["later"]["depth"], found["later"]["oldest_due_at"]) == (1, None)
        assert (found["gone"]["live_workers"], found["gone"]["versions"]) == (0, [])
        assert found["erased"]["known_by"] == ["history"]
        assert (found["mail"]["subscribers"], found["mail"]["depth"]) == (["send"], 0)
        page = await w.desk.subscriptions(READER)
        shown = page.as_json()
        assert (shown["total"], shown["more"], shown["recorded"]) == (6, False, True)

    run_desk(database, body)


def test_depths_are_bounded_and_say_so(database):
    """10,000 and more are counted no further."""

    async def body(w):
        async with w.engine.begin() as connection:
            await connection.execute(insert(w.outbox), [{"queue": "q", "payload": b"{}"}] * 10_001)
        await w.plant_many(10_001)
        row = (await rows_by_name(w.desk))["q"]
        assert (row["depth"], row["depth_is"]) == (10_000, "at least")
        assert (row["dead_letters"], row["dead_letters_is"]) == (10_000, "at least")

    run_desk(database, body)


def test_a_name_that_nothing_knows_is_refused_with_those_there_are(database):
    """S2-61: the error names the known subscriptions; queue and subscriber both count."""

    async def body(w):
        for name in ("orders", "o'; drop table outbox; --", "\x00", "x" * 5000, "\ud800", ""):
            with pytest.raises(UnknownSubscription, match="No subscription") as refused:
                await w.desk.need_subscription(READER, name)
            assert isinstance(refused.value, DeskError)
            assert "is it the right database" in refused.value.remedy
        await plant_worker(
            w, "a", queues=["mail"], subscribers=[{"name": "send", "queues": ["mail", "more"]}]
        )
        await w.plant(queue="orders", subscriber="take_order", state="resolved")
        await w.add("live")
        await w.plant(queue="erased")
        await w.desk.purge(ANN, [2], hard=True, reason="r")
        for name in ("orders", "take_order", "live", "mail", "send", "more", "erased"):
            await w.desk.need_subscription(READER, name)
        await w.desk.need_subscription(READER, "of the app", "mail", also=["of the app"])
        with pytest.raises(UnknownSubscription) as refused:
            await w.desk.need_subscription(READER, "mail", "order")
        assert str(refused.value) == "No subscription found for stream category 'order'."
        assert refused.value.known == ("erased", "live", "mail", "more", "orders")
        assert "erased, live, mail, more, orders" in refused.value.remedy
        with pytest.raises(UnknownSubscription) as refused:
            await w.desk.need_subscription(READER, "\x1b[2J")
        assert str(refused.value).isprintable()
        for call in (w.desk.subscriptions(Actor("n")), w.desk.need_subscription(Actor("n"), "q")):
            with pytest.raises(NotAllowed):
                await call

    run_desk(database, body)


def test_without_desk_tables_and_on_a_table_of_the_peer(postgres):
    """What is not recorded is said; nothing is missing but that."""
    from tests.doors.test_peer_tables import DLQ, OUTBOX

    async def main(engine):
        async with engine.begin() as connection:
            for statement in (OUTBOX, DLQ.format(timer="")):
                await connection.execute(text(statement))
            await connection.execute(
                text(
                    "insert into outbox_dlq (original_id, queue, payload, deliveries_count, "
                    "created_at, failure_reason) values (7, 'q', '{}', 3, now(), 'rejected')"
                )
            )
            await connection.execute(text("insert into outbox (queue, payload) values ('r', '')"))
        desk = Desk(engine, "outbox", "outbox_dlq")
        found = await rows_by_name(desk)
        assert (found["q"]["dead_letters"], found["r"]["depth"]) == (1, 1)
        assert (found["q"]["live_workers"], found["q"]["workers"]) == (None, None)
        assert not (await desk.subscriptions(READER)).recorded
        with pytest.raises(UnknownSubscription):
            await desk.need_subscription(READER, "none")

    postgres.run(main)


def test_the_list_walks_from_queue_to_queue(postgres):
    """Few queues in large tables: no statement reads more than a few of their pages."""

    async def body(w):
        async with w.engine.begin() as connection:
            await connection.execute(
                text(
                    "insert into outbox (queue, payload, next_attempt_at) select "
                    "'q' || n % 3, '\\x7b7d', now() + interval '1 day' "
                    "from generate_series(1, 60000) n"
                )
            )
            await connection.execute(
                text(
                    "insert into outbox_dlq (original_id, queue, payload, deliveries_count, "
                    "created_at, failure_reason, subscriber) select n, 'd' || n % 3, '\\x7b7d', "
                    "1, now(), 'rejected', 'h' from generate_series(1, 60000) n"
                )
            )
        async with w.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("vacuum analyze outbox"))
            await connection.execute(text("vacuum analyze outbox_dlq"))
        statements = []
        event.listen(
            w.engine.sync_engine,
            "before_cursor_execute",
            lambda _c, _k, s, p, *_: statements.append((s, p)) if "RECURSIVE" in s else None,
        )
        found = await rows_by_name(w.desk)
        assert sorted(found) == ["d0", "d1", "d2", "q0", "q1", "q2"]
        assert len(statements) == 3
        async with w.engine.connect() as connection:
            for statement, parameters in list(statements):
                plan = await connection.exec_driver_sql(
                    f"explain (analyze, buffers, format json) {statement}", parameters
                )
                (top,) = plan.scalar_one()
                blocks = top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"]
                assert blocks < 60, statement

    run_desk(postgres, body)


# -- the outbox by filter


async def ids(w, words, **options):
    query = parse(words, now=await w.now(), rows=True)
    page = await w.desk.outbox_list(READER, query, **options)
    return [row.id for row in page.rows]


def test_a_list_of_live_messages_says_how_many_there_are(database, monkeypatch):
    monkeypatch.setattr("outlast.stores.desk.outbox_list.TOTAL_MAX", 5)

    async def body(w):
        async def total(words, **options):
            query = parse(words, now=await w.now(), rows=True)
            shown = (await w.desk.outbox_list(READER, query, **options)).as_json()
            return shown["total"], shown["total_is"]

        for number in range(4):
            await w.add("mail", payload=b'{"n": %d}' % number)
        assert await total("queue:mail", limit=2) == (4, "exact")
        assert await total("queue:mail", after=3) == (4, "exact")
        assert await total("queue:orders") == (0, "exact")
        assert await total("body.n:3") == (1, "exact")
        assert await total("-body.n:3", limit=2) == (3, "at least")
        for _ in range(4):
            await w.add("mail")
        assert await total("queue:mail", limit=2) == (5, "at least")

    run_desk(database, body)


def test_every_word_of_live_messages_finds_what_it_says(database):
    """The filter of the desk, asked of rows: each word and its negation."""

    async def body(w):
        a = await w.add("orders", headers={"Tenant": "x", "outlast-event-type": "paid"})
        b = await w.add("mail", payload=b'{"order": {"id": 7}}', headers=None, due_in=60)
        c = await w.add("mail", headers={"outlast-message-id": "m-1"})
        await w.plant(queue="mail")
        await w.desk.replay(ANN, [1])
        d = (await w.rows())[-1]["id"]
        (held,) = (await w.claim("orders", limit=1)).rows
        assert held.id == a
        async with w.engine.begin() as connection:
            await connection.execute(
                w.outbox.update().where(w.outbox.c.id == c).values(deliveries_count=2)
            )
            await connection.execute(
                w.outbox.update()
                .where(w.outbox.c.id == b)
                .values(created_at=await w.now() - timedelta(hours=3))
            )
        for words, expected in {
            "": [a, b, c, d],
            "queue:orders": [a],
            "stream:mail": [b, c, d],
            "subscription:mail": [b, c, d],
            "-queue:mail": [a],
            "queue:orders queue:mail": [a, b, c, d],
            f"id:{b} id:{c}": [b, c],
            f"-id:{b}": [a, c, d],
            "message:m-1": [c],
            f"message:{b}": [b],
            f"message:{c}": [],
            "-message:m-1": [a, b, d],
            "event:paid": [a],
            "-event:paid": [b, c, d],
            "since:2h": [a, c, d],
            "until:2h": [b],
            "-since:2h": [b],
            "header.tenant:x": [a],
            "-header.tenant:x": [b, c, d],
            "body.order.id:7": [b],
            "-body.order.id:7": [a, c, d],
            "state:pending": [b],
            "state:in_flight": [a],
            "state:retrying": [c],
            "state:replaying": [d],
            "-state:replaying": [a, b, c],
            "state:pending state:replaying": [b, d],
            "state:any": [a, b, c, d],
            "replays:>=1": [d],
            "replays:0": [a, b, c],
            "-replays:0": [d],
            "queue:mail state:pending": [b],
        }.items():
            assert await ids(w, words) == expected, words
        states = {r.id: r.state for r in (await w.desk.outbox_list(READER)).rows}
        assert states == {a: "in_flight", b: "pending", c: "retrying", d: "replaying"}

    run_desk(database, body)


def test_words_that_make_no_sense_for_live_messages_are_refused_with_their_place(database):
    """A pointer into the text, or the name of the option; the desk itself refuses them, too."""

    async def body(w):
        now = await w.now()
        for words in ("error:x", "category:X", "group:g", "version:1", "owner:o", "triage:t"):
            with pytest.raises(FilterError, match="asked of dead letters") as refused:
                parse(f"queue:q {words}", now=now, rows=True)
            assert refused.value.position == 8
            with pytest.raises(BadRequest, match="asked of dead letters"):
                await w.desk.outbox_list(READER, parse(words, now=now))
        with pytest.raises(FilterError, match='no state "open"; there are pending'):
            parse("state:open", now=now, rows=True)
        with pytest.raises(FilterError, match="no state is left"):
            parse("state:pending -state:pending", now=now, rows=True)
        with pytest.raises(FilterError, match="--category is asked of dead letters"):
            with_options(Query(), now=now, category=["X"], rows=True)
        for states in ("open", "discarded"):
            with pytest.raises(BadRequest, match="other states"):
                await w.desk.outbox_list(READER, parse(f"state:{states}", now=now))
        for limit in (0, 1001):
            with pytest.raises(BadRequest, match="limit"):
                await w.desk.outbox_list(READER, limit=limit)

    run_desk(database, body)


@pytest.mark.parametrize(
    "words", ["", "queue:a", "state:pending", "-body.n:1", "queue:a -body.n:1"]
)
def test_pages_of_rows_show_each_once(database, words):
    """By id, whatever is tested on the way."""

    async def body(w):
        expected = []
        for number in range(9):
            row_id = await w.add("a" if number % 3 else "b", payload=b'{"n": 2}')
            if number % 3 or "queue" not in words:
                expected.append(row_id)
        if not words.startswith("state"):
            await w.claim("a", limit=2)  # rows in hand stand among the waiting ones
        query = parse(words, now=await w.now(), rows=True)
        seen, after = [], 0
        while after is not None:
            page = await w.desk.outbox_list(READER, query, limit=2, after=after)
            assert len(page.rows) <= 2
            seen += [row.id for row in page.rows]
            after = page.after
        assert seen == expected

    run_desk(database, body)


def test_a_look_into_rows_is_bounded_and_goes_on(database):
    """10,000 rows are tested, then it says so and where to go on."""

    async def body(w):
        async with w.engine.begin() as connection:
            await connection.execute(insert(w.outbox), [{"queue": "q", "payload": b"{}"}] * 10_050)
        last = await w.add("q", headers={"tenant": "x"})
        query = parse("header.tenant:x", now=await w.now(), rows=True)
        page = await w.desk.outbox_list(READER, query)
        assert (page.rows, page.looked_at) == ((), 10_000)
        assert page.as_json()["looked_at"] == 10_000
        page = await w.desk.outbox_list(READER, query, after=page.after)
        assert ([row.id for row in page.rows], page.after, page.looked_at) == ([last], None, None)

    run_desk(database, body)


def test_hostile_words_are_values_for_rows(database):
    """No value of a filter is ever a part of a statement."""
    from tests.contract.test_desk_looking import HOSTILE

    async def body(w):
        await w.add("q")
        for value in (*HOSTILE, "9" * 30, "²"):
            for name in ("queue", "message", "event"):
                query = Query((Word(name, (Condition("=", value),)),))
                assert (await w.desk.outbox_list(READER, query)).rows == (), (name, value)
            query = Query((Word("header", (Condition("=", value),), (value,)),))
            assert (await w.desk.outbox_list(READER, query)).rows == ()

    run_desk(database, body)


def test_a_rare_queue_is_found_without_reading_the_others(postgres):
    """The page of one queue comes from its own part of an index."""

    async def body(w):
        async with w.engine.begin() as connection:
            await connection.execute(
                text(
                    "insert into outbox (queue, payload) select 'many', '\\x7b7d' "
                    "from generate_series(1, 60000)"
                )
            )
        row_id = await w.add("rare")
        async with w.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("vacuum analyze outbox"))
        sent = []
        event.listen(
            w.engine.sync_engine,
            "before_cursor_execute",
            lambda _c, _k, s, p, *_: sent.append((s, p)) if "UNION ALL" in s else None,
        )
        for words, expected in (("queue:rare", [row_id]), ("queue:many", list(range(1, 11)))):
            sent.clear()
            assert await ids(w, words, limit=10) == expected
            ((statement, parameters),) = sent
            async with w.engine.connect() as connection:
                plan = await connection.exec_driver_sql(
                    f"explain (analyze, buffers, format json) {statement}", parameters
                )
                (top,) = plan.scalar_one()
            blocks = top["Plan"]["Shared Hit Blocks"] + top["Plan"]["Shared Read Blocks"]
            assert blocks < 40, (words, blocks)

    run_desk(postgres, body)
