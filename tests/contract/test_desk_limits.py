"""What grows has a limit: results of very many letters, kept answers, bodies in memory, looks."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select

from outlast.model.edit import Edit
from outlast.model.replay import LetterReplay
from outlast.ops import requests, tally
from outlast.ops.replaying import ReplayOptions
from outlast.policy.exact_json import dumps, loads, loads_shown, pretty, write_json
from outlast.policy.filter_text import parse
from outlast.stores.desk import numbers, selection, transactions, windows
from outlast.stores.desk.changing import LetterChange
from tests.contract.desks import ANN, run_desk


def query(words):
    return parse(words, now=datetime.now(UTC))


class Heard:
    """Every statement that the desk sends, and how often it ended a transaction."""

    def __init__(self, engine):
        self.statements, self.ends = [], 0
        event.listen(engine.sync_engine, "before_cursor_execute", self._statement)
        event.listen(engine.sync_engine, "rollback", self._end)

    def _statement(self, _connection, _cursor, statement, *_rest):
        self.statements.append(statement)

    def _end(self, _connection):
        self.ends += 1

    def reading_bodies(self):
        asked = [re.sub(r"length\([^)]*payload\)", "", x) for x in self.statements]
        return [x for x in asked if ".payload" in x]


@pytest.mark.parametrize("kind", ["replays", "changes"])
def test_of_too_many_results_those_that_need_somebody_are_kept(monkeypatch, kind):
    """100,000 letters make no list of 100,000, and no failure is lost behind successes."""
    monkeypatch.setattr(tally, "RESULTS_MAX", 4)
    good = {"replays": "replayed", "changes": "changed"}[kind]
    one = {"replays": LetterReplay, "changes": LetterChange}[kind]
    summed = tally.ReplayTally() if kind == "replays" else tally.ChangeTally("purged")
    outcomes = [good] * 6 + ["failed"] + [good] * 2 + ["failed"] * 2 + [good]
    for number, outcome in enumerate(outcomes):
        summed.add([one(number, outcome)])
    result = summed.result(None) if kind == "replays" else summed.result()
    assert [(x.dlq_id, x.outcome) for x in result.results] == [
        (0, good),
        *((number, "failed") for number in (6, 9, 10)),
    ]
    assert summed.handled == len(outcomes)
    for number in range(20):
        summed.add([one(number, "failed")])
    result = summed.result(None) if kind == "replays" else summed.result()
    assert [x.dlq_id for x in result.results] == [6, 9, 10, 0]
    assert result.failed == 23


def test_a_kept_answer_has_a_limit(database, monkeypatch):
    """A repeated request gets its first answer; of a very long one all but the letters."""
    monkeypatch.setattr(requests, "ANSWER_CHARS_MAX", 300)

    async def body(world):
        async def answered(name, results):
            async def run():
                return {"replayed": len(results), "results": results, "cursor": "c"}

            actor = replace(ANN, request_id=name)
            first = await world.desk.once(actor, "replayed", {"a": 1}, run)
            return first, await world.desk.once(actor, "replayed", {"a": 1}, run)

        few = [{"dlq_id": 1}]
        first, again = await answered("short", few)
        assert first == again
        many = [{"dlq_id": number, "reason": "x" * 20} for number in range(50)]
        first, again = await answered("long", many)
        assert first["results"] == many
        assert again == {"replayed": 50, "results": [], "results_left_out": 50, "cursor": "c"}
        assert max(len(json.dumps(row.detail)) for row in await world.told()) < 500

    run_desk(database, body)


def test_a_look_at_headers_reads_no_bodies(database):
    """S3-19: a filter over headers costs the same, however large the messages are."""

    async def body(world):
        await world.plant(headers={"x": "y"})
        await world.plant(headers={"x": "z"})
        heard = Heard(world.engine)
        page = await world.desk.list(ANN, query("header.x:y"))
        plan = await world.desk.plan_replay(ANN, query("header.x:y"))
        assert (len(page.letters), plan.total) == (1, 1)
        assert heard.reading_bodies() == []
        assert len((await world.desk.list(ANN, query("body.n:1"))).letters) == 2
        assert len(heard.reading_bodies()) == 1

    run_desk(database, body)


def test_bodies_are_read_in_bites_and_between_them_no_transaction_stays_open(database, monkeypatch):
    """However many bodies a filter reads, memory is flat and no transaction grows old."""
    monkeypatch.setattr(selection, "_READ_BYTES", 25)

    async def body(world):
        ids = [await world.plant(payload=b'{"n": %d}' % (10 + n % 2)) for n in range(10)]
        heard = Heard(world.engine)
        page = await world.desk.list(ANN, query("body.n:11"))
        assert [letter.id for letter in page.letters] == ids[1::2][::-1]
        assert len(heard.reading_bodies()) == 5
        assert heard.ends >= 5
        heard.ends = 0
        assert (await world.desk.plan_purge(ANN, query("body.n:11"))).total == 5
        assert heard.ends >= 5
        assert (await world.desk.purge_all(ANN, query("body.n:11"))).done == 5

    run_desk(database, body)


def test_a_chunk_is_as_large_as_what_is_sent(database):
    """An edit may make a small message large; what one transaction sends stays bounded."""

    async def body(world):
        ids = [await world.plant(payload=b"1") for _ in range(4)]
        for letter_id in ids[:3]:
            await world.desk.edit(ANN, letter_id, Edit(payload=b"x" * 1000), reason="r")
        desk, sums = world.make_desk(chunk_bytes=2500), []
        await desk.replay_all(
            ANN, query("queue:q"), progress=lambda bulk: sums.append(bulk.replayed)
        )
        assert sums == [2, 4]

    run_desk(database, body)


def test_versions_are_looked_up_once_for_a_run(database):
    """Distinct versions are those of the whole table: not to be asked chunk after chunk."""

    async def body(world):
        for _ in range(6):
            await world.plant(consumer_version="1.10")
        desk = world.make_desk(chunk=1)
        heard = Heard(world.engine)
        done = await desk.replay_all(ANN, query("version:>=1.5"), ReplayOptions(reason="r"))
        assert done.replayed == 6
        asked = [x for x in heard.statements if "DISTINCT" in x and "consumer_version" in x]
        assert len(asked) <= 6  # a plan, what it leaves out, and the run

    run_desk(database, body)


@pytest.mark.parametrize("bound", [3, 10])
def test_groups_and_numbers_say_that_they_looked_at_some(database, monkeypatch, bound):
    """S3-19: header and body words look at the newest letters; no surface passes that over."""
    monkeypatch.setattr(windows, "LOOK_MAX", bound)
    monkeypatch.setattr(numbers, "LOOK_MAX", bound)

    async def body(world):
        for _ in range(5):
            await world.plant(fingerprint="g")
        groups = (await world.desk.groups(ANN, query("body.n:1"))).as_json()
        stats = await world.desk.stats(ANN, query("body.n:1"))
        assert groups["items"][0]["count"] == stats.depth == min(bound, 5)
        note = ["looked at the newest 3 of 5"]
        assert groups.get("notes") == (note if bound < 5 else None)
        assert stats.looked == ((3, 5) if bound < 5 else None)
        assert "notes" not in (await world.desk.groups(ANN)).as_json()

    run_desk(database, body)


def test_a_row_that_somebody_holds_is_in_hand(postgres, monkeypatch):
    """Of several rows to be taken back, one that is locked does not hide the others."""
    monkeypatch.setattr(transactions, "LOCK_WAIT", "50ms")

    async def body(world):
        ids = [await world.plant() for _ in range(2)]
        sent = [x.row_id for x in (await world.desk.replay(ANN, ids)).results]
        async with world.engine.begin() as dba:
            held = select(world.outbox).where(world.outbox.c.id == sent[0]).with_for_update()
            await dba.execute(held)
            taken = await world.desk.outbox_cancel(ANN, sent)
            assert [x.outcome for x in taken] == ["in_hand", "recalled"]
            assert await world.desk.outbox_run_now(ANN, sent) == {sent[0]: False, sent[1]: False}

    run_desk(postgres, body)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_all_forms_of_json_say_the_same(value):
    """One line, a document, several lines: each is the same value, numbers to the digit."""
    value = json.loads(json.dumps(value, allow_nan=True).replace("Infinity", "1"))
    forms = [dumps(value), write_json(value), pretty(value)]
    assert all(json.loads(form) == value for form in forms)
    assert write_json(value).isprintable()
    exact = json.dumps({"a": value, "b": 0}).replace('"b": 0', '"b": [1.10, 1e5, -0, 3e400]')
    for form in (dumps, write_json, pretty):
        back = form(loads(exact.encode()))
        assert [x in back for x in ("1.10", "1e5", "-0", "3e400")] == [True] * 4
    assert loads_shown(exact.encode())["b"][3] == "3e400"
