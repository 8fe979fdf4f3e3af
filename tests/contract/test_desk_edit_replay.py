"""Transforms at work, and replays with an edit: revision and replay together, or neither."""

import asyncio
import threading

import pytest
from sqlalchemy import insert, text, update

from outlast.model.edit import Edit, Transform
from outlast.model.errors import CannotWrite
from outlast.model.outcome import ACK
from outlast.ops import Actor, BadRequest, EditRefused, NotAllowed
from outlast.ops.refusals import NotRecorded
from outlast.ops.replaying import ReplayOptions
from outlast.policy.filter_text import parse
from tests.contract.desks import ANN, run_desk
from tests.contract.test_desk_editing import PRICE, TO_ZERO, function, revisions_of
from tests.contract.test_desk_loop import FAST
from tests.contract.test_interleavings import engine_over, until
from tests.docs.pages import ROOT


def edited(edit, **more):
    return ReplayOptions(edit=edit, **more)


async def sent(w):
    return [(bytes(row["payload"]), row["headers"]) for row in await w.rows()]


async def made(w, transform, stored=PRICE, **more):
    """The newest payload after an edit by this function."""
    letter_id = await w.plant(payload=stored)
    code = transform if isinstance(transform, Transform) else function(transform)
    await w.desk.edit(ANN, letter_id, Edit(transform=code, **more))
    return bytes((await revisions_of(w))[-1].payload)


def test_inspect_correct_replay(database):
    """S4-75 S4-109 S2-21 U-03: a price of -5 is mended on the way; same message, fresh delivery."""

    async def body(w):
        seen = []

        async def deliver(delivery):
            seen.append(delivery)
            if b"-5" in delivery.payload:
                raise ValueError("the price is below zero")
            return ACK

        async with engine_over(w.store, ("handle", "q", deliver, FAST)):
            row_id = await w.add(payload=PRICE, headers={"content-type": "application/json"})

            async def died():
                return await w.letters()

            await until(died)
            (letter,) = await w.letters()
            options = edited(Edit(patch=TO_ZERO), reason="typo")
            answer = await w.desk.replay(ANN, [letter["id"]], options)
            assert answer.results[0].revision == 1
            waited = await w.desk.wait_for_outcome(ANN, [letter["id"]], 10)
            assert waited.outcomes == {letter["id"]: "succeeded"}
        assert b'"price":0,"total":1.10' in seen[-1].payload
        assert seen[-1].headers["outlast-message-id"] == str(row_id)
        assert seen[-1].headers["content-type"] == "application/json"
        assert (seen[-1].attempts_count, seen[-1].deliveries_count) == (0, 1)
        after = await w.one(letter["id"])
        assert bytes(after["payload"]) == PRICE
        kinds = [(x.kind, x.detail.get("revision")) for x in await w.told(letter["id"])]
        assert kinds[:2] == [("edited", 1), ("replayed", 1)]

    run_desk(database, body)


def test_a_price_may_be_fetched_from_where_it_comes_from(database):
    """S4-75: a transform may be async, and may ask the very database: no transaction is open."""

    async def body(w):
        letter_id = await w.plant(payload=PRICE)

        async def reprice(found):
            async with w.engine.begin() as connection:
                # on SQLite a second writer would wait for ever beside an open transaction
                await connection.execute(update(w.outbox).values(queue="q"))
                await connection.execute(text("create table if not exists prices (x int)"))
            return found | {"price": 12}

        edit = Edit(transform=function(reprice))
        answer = await w.desk.replay(ANN, [letter_id], edited(edit))
        assert (answer.replayed, answer.failed) == (1, 0)
        assert b'"price":12,' in (await sent(w))[0][0]
        other = await w.plant(payload=PRICE)
        answer = await w.desk.replay_all(ANN, None, edited(edit), everything=True)
        assert answer.replayed == 1
        assert {x.dlq_id for x in await revisions_of(w)} == {letter_id, other}

    run_desk(database, body)


def test_functions_take_and_give_what_the_page_says(database):
    """S4-75: body, or body and headers; bytes for what is no JSON; plain functions in a thread."""

    async def body(w):
        main = threading.get_ident()
        assert await made(w, lambda found: found | {"price": 0}) == (
            b'{"sku":"b-1","price":0,"total":1.10,"big":123456789012345678901234567890}'
        )

        def in_place(found):
            assert threading.get_ident() != main
            found["price"] = 0
            return found

        assert b'"price":0' in await made(w, in_place)
        assert await made(w, lambda raw: raw.strip(b"\xff"), b"\xff\xfeabc") == b"\xfeabc"
        repair = lambda raw: raw if isinstance(raw, dict) else {"was": raw.decode()}  # noqa: E731
        assert await made(w, repair, b"{'a'") == b'{"was":"{\'a\'"}'

        def both(found, headers):
            return found | {"tenant": headers["correlation_id"]}, headers | {"n": 1}

        assert b'"tenant":"c"' in await made(w, both)
        assert (await revisions_of(w))[-1].headers["n"] == 1

        def headers_in_place(found, headers):
            headers.pop("correlation_id", None)
            return found

        await made(w, headers_in_place)
        newest = (await revisions_of(w))[-1]
        assert newest.headers == {"content-type": "application/json"}
        assert bytes(newest.payload) == PRICE

        class Mender:
            async def __call__(self, found):
                return found | {"price": 1}

        assert b'"price":1' in await made(w, function(Mender()))

    run_desk(database, body)


def _forever(_):
    threading.Event().wait()


async def _sleeps(_):
    await asyncio.sleep(3600)


def _raises(error):
    def fix(_):
        raise error

    return fix


class _Mute(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        (_raises(KeyError("isbn")), "fixes:fix raised KeyError: 'isbn'"),
        (_raises(ValueError("password=hunter22")), "ValueError: password=•••"),
        (_raises(SystemExit(3)), "raised SystemExit: 3"),
        (_raises(KeyboardInterrupt()), "raised KeyboardInterrupt"),
        (_raises(StopIteration()), "raised StopIteration"),
        (_raises(RecursionError("deep")), "raised RecursionError: deep"),
        (_raises(_Mute()), "raised _Mute"),
        (_raises(ValueError("x" * 5000)), "x…$"),
        (lambda _: None, "returned None: return the body|returned None"),
        (lambda found: (found, {}), "returned a tuple"),
        (lambda _: {1: 2}, "a name in an object is a int"),
        (lambda _: {"a": [object()]}, "nothing for a object at /a/0"),
        (lambda _: float("nan"), "JSON has no nan"),
        (lambda _: b"x" * 2000, "2,000 bytes"),
        (lambda found, headers: (found, 5), "names with values"),
        (lambda found, headers: (found, {"outlast-replay": "9"}), "reserved"),
        (lambda found, headers: (found, {"a": "\x00"}), "NUL"),
        (lambda found, headers: (found, {5: "a"}), "header names are text"),
        (_forever, "did not end within"),
        (_sleeps, "did not end within"),
    ],
)
def test_an_error_of_a_function_is_the_result_of_the_letter(sqlite, fix, said):
    """S4-75: the exception is named, nothing is written, and no traceback reaches anybody."""

    async def body(w):
        letter_id = await w.plant(payload=PRICE)
        edit = Edit(transform=function(fix))
        with pytest.raises(EditRefused, match=said) as found:
            await w.desk.edit(ANN, letter_id, edit)
        assert "hunter22" not in str(found.value)
        answer = await w.desk.replay(ANN, [letter_id], edited(edit))
        assert (answer.failed, answer.exit_code) == (1, 1)
        assert answer.results[0].reason == str(found.value)
        assert await revisions_of(w) == []
        assert await w.rows() == []
        assert (await w.one(letter_id))["state"] == "open"

    run_desk(sqlite, body, edited_bytes_max=1000, transform_seconds=0.2)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"transform": lambda found: found | {"price": found["price"] - 1}}, "changes it again"),
        ({"transform": lambda found: found["price"] and {"p": 1} and found["sku"]}, "own result"),
        ({"patch": ({"op": "add", "path": "/list/-", "value": 1},)}, "changes it again"),
        ({"patch": ({"op": "move", "from": "/sku", "path": "/id"},)}, "nothing at /sku"),
        ({"patch": ({"op": "remove", "path": "/list/0"},)}, "changes it again"),
        ({"patch": ({"op": "copy", "from": "", "path": "/was"},)}, "changes it again"),
    ],
)
def test_what_does_more_when_applied_twice_is_refused(database, edit, said):
    """S4-77: f(f(x)) != f(x); the override is recorded."""

    async def body(w):
        stored = b'{"sku": "b-1", "price": -5, "list": [1, 2, 3]}'
        letter_id = await w.plant(payload=stored)
        given = edit if "patch" in edit else {"transform": function(edit["transform"])}
        for dry_run in (True, False):
            answer = await w.desk.replay(ANN, [letter_id], edited(Edit(**given), dry_run=dry_run))
            (result,) = answer.results
            assert result.outcome == "failed"
            assert "not idempotent" in result.reason
            assert said in result.reason
            assert "--not-idempotent" in result.remedy
        assert await w.rows() == []
        assert await revisions_of(w) == []
        over = Edit(**given, not_idempotent=True)
        answer = await w.desk.replay(ANN, [letter_id], edited(over))
        assert (answer.replayed, answer.results[0].revision) == (1, 1)
        assert "not looked at" in answer.results[0].warnings[-1]
        (told, _) = await w.told(letter_id)
        assert told.detail["not_idempotent"] is True

    run_desk(database, body)


@pytest.mark.parametrize(
    "patch",
    [
        (
            {"op": "test", "path": "/price", "value": -5},
            {"op": "replace", "path": "/price", "value": 0},
            {"op": "add", "path": "/list/-", "value": 4},
        ),
        ({"op": "remove", "path": "/price"}, {"op": "remove", "path": "/list/2"}),
        ({"op": "add", "path": "/price", "value": 5},),
    ],
)
def test_a_patch_that_asks_first_or_ends_alike_is_idempotent(database, patch):
    """S4-77: a failing test, or nothing left to remove, is its own work found again."""

    async def body(w):
        letter_id = await w.plant(payload=b'{"price": -5, "list": [1, 2, 3]}')
        assert (await w.desk.edit(ANN, letter_id, Edit(patch=patch))).revision == 1
        assert "not_idempotent" not in (await w.told(letter_id))[0].detail

    run_desk(database, body)


def test_a_failing_test_keeps_a_letter_where_it_is(database):
    """S4-75: conditional replay: those that are as expected go, the others say why not."""

    async def body(w):
        ids = [await w.plant(payload=b'{"price": %d}' % price) for price in (-5, 3, -5)]
        patch = ({"op": "test", "path": "/price", "value": -5}, *TO_ZERO)
        answer = await w.desk.replay_all(ANN, None, edited(Edit(patch=patch)), everything=True)
        assert (answer.replayed, answer.failed, answer.exit_code) == (2, 1, 1)
        (other,) = [r for r in answer.results if r.outcome == "failed"]
        assert other.dlq_id == ids[1]
        assert "operation 1 (test /price): the value there is another" in other.reason
        assert [payload for payload, _ in await sent(w)] == [b'{"price":0}'] * 2
        (whole,) = [x for x in await w.told() if x.dlq_id is None]
        assert whole.detail["edit"]["transform"]["name"] == "json-patch"

    run_desk(database, body)


@pytest.mark.parametrize("broken", ["outbox", "outbox_dlq_history"])
def test_revision_and_replay_land_together_or_not_at_all(database, broken):
    """Whatever fails after the revision takes the revision with it."""

    async def body(w):
        letter_id = await w.plant(payload=PRICE)
        await w.desk.list(ANN)
        async with w.engine.begin() as connection:
            await connection.execute(text(f"alter table {broken} rename to away"))
        for ids in (True, False):
            with pytest.raises(CannotWrite):
                if ids:
                    await w.desk.replay(ANN, [letter_id], edited(Edit(patch=TO_ZERO)))
                else:
                    await w.desk.replay_all(ANN, None, edited(Edit(patch=TO_ZERO)), everything=True)
        assert await revisions_of(w) == []
        letter = await w.one(letter_id)
        assert (letter["state"], letter["revision"] or 0) == ("open", 0)

    run_desk(database, body)


@pytest.mark.parametrize("bulk", [True, False])
def test_a_letter_that_changes_while_its_edit_is_made_is_left_alone(database, bulk):
    """Read, mended outside of the transaction, and checked again inside."""

    async def body(w):
        letter_id = await w.plant(payload=b'{"n": 0}')
        calm = await w.plant(payload=b'{"n": 0}')
        other = w.make_desk()

        async def meddle(found):
            if not await revisions_of(w):
                await other.edit(ANN, letter_id, Edit(payload=b'{"n": 7}'))
            return found | {"n": 1}

        options = edited(Edit(transform=function(meddle), not_idempotent=True))
        if bulk:
            answer = await w.desk.replay_all(ANN, None, options, everything=True)
        else:
            answer = await w.desk.replay(ANN, [letter_id, calm], options)
        assert (answer.replayed, answer.skipped, answer.exit_code) == (1, 1, 0)
        assert [payload for payload, _ in await sent(w)] == [b'{"n":1}']
        assert (await w.one(letter_id))["state"] == "open"
        # and again, of what the other made
        answer = await w.desk.replay(ANN, [letter_id], options)
        assert answer.results[0].revision == 2

    run_desk(database, body)


def test_a_replay_with_an_edit_that_changes_nothing_sends_what_is_there(database):
    """Bulk, again: letters that are mended already get no second revision."""

    async def body(w):
        mended = await w.plant(payload=b'{ "price": 0 }')
        revised = await w.plant(payload=b'{"price": -5}')
        await w.desk.edit(ANN, revised, Edit(patch=TO_ZERO))
        answer = await w.desk.replay_all(ANN, None, edited(Edit(patch=TO_ZERO)), everything=True)
        assert answer.replayed == 2
        assert all(r.revision is None for r in answer.results)
        assert all("changes nothing" in r.warnings[-1] for r in answer.results)
        assert [payload for payload, _ in await sent(w)] == [b'{ "price": 0 }', b'{"price":0}']
        assert [(x.dlq_id, x.revision) for x in await revisions_of(w)] == [(revised, 1)]
        assert mended != revised

    run_desk(database, body)


def test_with_original_the_first_message_is_edited(database):
    """`--original` with a change: made of the first bytes, added as the newest revision."""

    async def body(w):
        letter_id = await w.plant(payload=b'{"price": -5, "first": 1}')
        await w.desk.edit(ANN, letter_id, Edit(payload=b'{"price": -5, "second": 2}'))
        answer = await w.desk.replay(ANN, [letter_id], edited(Edit(patch=TO_ZERO), original=True))
        assert answer.results[0].revision == 2
        assert (await sent(w))[0][0] == b'{"price":0,"first":1}'
        told = [x.detail for x in await w.told(letter_id)]
        assert (told[1]["revision"], told[1]["of"]) == (2, 0)
        assert told[2]["revision"] == 2

    run_desk(database, body)


def test_plain_replays_send_the_newest_and_original_the_first(database):
    """S4-75: the original bytes are kept, and can be sent."""

    async def body(w):
        ids = [await w.plant(payload=PRICE) for _ in range(2)]
        for letter_id in ids:
            await w.desk.edit(ANN, letter_id, Edit(patch=TO_ZERO))
        await w.desk.replay(ANN, ids[:1])
        await w.desk.replay(ANN, ids[1:], ReplayOptions(original=True))
        (newest, _), (first, _) = await sent(w)
        assert b'"price":0' in newest
        assert first == PRICE

    run_desk(database, body)


async def unchanged(w):
    """A letter that the gate keeps: its version still runs, nothing has changed."""
    started = await w.now()
    letter_id = await w.plant(
        payload=PRICE,
        failure_category="VALIDATION",
        consumer_version="1",
        last_failure_at=await w.now(),
    )
    async with w.engine.begin() as connection:
        worker = {
            "instance": "w",
            "version": "1",
            "started_at": started,
            "report": {"queues": ["q"]},
        }
        await connection.execute(insert(w.tables["worker"]).values(worker | {"seen_at": started}))
    return letter_id


@pytest.mark.parametrize("way", ["replay", "edit", "headers"])
def test_an_edit_opens_the_gate_that_nothing_has_changed(database, way):
    """S4-109: refused as it is; with the data corrected it goes. The refusal names the way."""

    async def body(w):
        letter_id = await unchanged(w)
        answer = await w.desk.replay(ANN, [letter_id])
        (result,) = answer.results
        assert (result.gate, answer.exit_code) == ("unchanged", 3)
        assert f"outlast dlq edit {letter_id}" in result.remedy
        assert f"outlast dlq replay {letter_id} --patch" in result.remedy
        same = Edit(patch=({"op": "replace", "path": "/price", "value": -5},))
        answer = await w.desk.replay(ANN, [letter_id], edited(same))
        assert answer.results[0].gate == "unchanged"
        if way == "edit":
            await w.desk.edit(ANN, letter_id, Edit(patch=TO_ZERO))
            answer = await w.desk.replay(ANN, [letter_id])
        else:
            edit = Edit(patch=TO_ZERO) if way == "replay" else Edit(set_headers={"a": "b"})
            answer = await w.desk.replay(ANN, [letter_id], edited(edit))
        assert (answer.replayed, answer.exit_code) == (1, 0)

    run_desk(database, body)


def test_the_model_is_asked_about_what_would_be_sent(sqlite):
    """S4-109: of edited bytes, not of the original; a refusal is a warning, not a gate."""
    asked = []

    def test_body(letter, queue):
        asked.append(letter.payload)
        return "refused" if b'"price":-1' in letter.payload else "accepted"

    async def body(w):
        letter_id = await unchanged(w)
        worse = Edit(patch=({"op": "replace", "path": "/price", "value": -1},))
        answer = await w.desk.replay(ANN, [letter_id], edited(worse, dry_run=True))
        assert any("refuses the edited body" in x for x in answer.results[0].warnings)
        answer = await w.desk.replay(ANN, [letter_id], edited(Edit(patch=TO_ZERO), dry_run=True))
        assert not any("refuses" in x for x in answer.results[0].warnings)
        assert [b'"price":-1' in p for p in asked] == [True, False]

    run_desk(sqlite, body, body_test=test_body)


def test_a_dry_run_shows_each_change_and_writes_nothing(database):
    """S4-75 S4-77: the diff of each letter, idempotence looked at, no row and no revision."""

    async def body(w):
        ids = [await w.plant(payload=b'{"price": %d}' % n) for n in (-5, -6)]
        answer = await w.desk.replay_all(
            ANN, None, edited(Edit(patch=TO_ZERO), dry_run=True), everything=True
        )
        assert [r.outcome for r in answer.results] == ["would_replay"] * 2
        assert '-  "price": -6' in answer.results[1].diff
        assert '+  "price": 0' in answer.as_json()["results"][0]["diff"]
        assert await revisions_of(w) == []
        assert await w.rows() == []
        assert await w.told() == []
        done = await w.desk.replay(ANN, ids, edited(Edit(patch=TO_ZERO)))
        assert all(r.diff == () for r in done.results)

    run_desk(database, body)


def test_the_changes_of_a_large_dry_run_are_shown_for_the_first(sqlite):
    async def body(w):
        await w.plant_many(130, payload=b'{"price": -5}')
        options = edited(Edit(patch=TO_ZERO), dry_run=True)
        answer = await w.desk.replay_all(ANN, None, options, everything=True)
        assert answer.replayed == 130
        assert sum(bool(r.diff) for r in answer.results) == 100

    run_desk(sqlite, body)


def test_a_bulk_replay_with_an_edit_takes_everything_once(database):
    """Many chunks, two runs at once: each letter one revision and one row."""

    async def body(w):
        await w.plant_many(120, payload=b'{"price": -5}')
        desks = [w.make_desk(), w.make_desk()]
        answers = await asyncio.gather(
            *(d.replay_all(ANN, None, edited(Edit(patch=TO_ZERO)), everything=True) for d in desks)
        )
        assert sum(a.replayed for a in answers) == 120
        assert sum(a.failed for a in answers) == 0
        assert {payload for payload, _ in await sent(w)} == {b'{"price":0}'}
        assert len(await w.rows()) == len(await revisions_of(w)) == 120

    run_desk(database, body)


def test_a_replay_with_an_edit_needs_both_scopes_and_the_table(sqlite):
    """A change needs scope `edit`, a plan and a continued run too."""

    async def body(w):
        letter_id = await w.plant()
        replayer = Actor("bo", frozenset({"replay", "inspect"}))
        options = edited(Edit(payload=b"1"))
        query = parse("queue:q", now=await w.now())
        for attempt in (
            w.desk.replay(replayer, [letter_id], options),
            w.desk.replay_all(replayer, query, options),
            w.desk.plan_replay(replayer, query, options),
            w.desk.replay(Actor("cy", frozenset({"edit"})), [letter_id], options),
        ):
            with pytest.raises(NotAllowed):
                await attempt
        plan = await w.desk.plan_replay(replayer, query)
        with pytest.raises(NotAllowed, match="'edit'"):
            await w.desk.replay_all(replayer, None, options, cursor=plan.cursor)
        with pytest.raises(BadRequest, match="changes nothing"):
            await w.desk.replay(ANN, [letter_id], edited(Edit()))
        async with w.engine.begin() as connection:
            await connection.execute(text("drop table outbox_dlq_revision"))
        with pytest.raises(NotRecorded, match="revision table"):
            await w.make_desk().replay(ANN, [letter_id], options)
        assert await w.rows() == []

    run_desk(sqlite, body)


def test_a_missing_revision_is_told_and_nothing_else_is_sent(database):
    """Somebody deleted it: not the original in its place, unless that is said."""

    async def body(w):
        letter_id = await w.plant(payload=PRICE, revision=2)
        answer = await w.desk.replay(ANN, [letter_id], edited(Edit(patch=TO_ZERO)))
        assert "revision 2" in answer.results[0].reason
        with pytest.raises(EditRefused, match="revision 2") as found:
            await w.desk.edit(ANN, letter_id, Edit(patch=TO_ZERO))
        assert "--original" in found.value.remedy
        answer = await w.desk.replay(ANN, [letter_id], edited(Edit(patch=TO_ZERO), original=True))
        assert (answer.replayed, answer.results[0].revision) == (1, 3)

    run_desk(database, body)


def test_the_bodies_of_one_transaction_are_bounded(sqlite, monkeypatch):
    """A letter that would be too much says so; alone it goes."""
    from outlast.ops import editing

    monkeypatch.setattr(editing, "DRAFTS_BYTES_MAX", 25)

    async def body(w):
        ids = [await w.plant(payload=b'{"price": %d}' % -n) for n in (1, 100_000_000, 2)]
        grow = Edit(patch=({"op": "add", "path": "/x", "value": 1},))
        answer = await w.desk.replay_all(ANN, None, edited(grow), everything=True)
        outcomes = {r.dlq_id: r.outcome for r in answer.results}
        assert outcomes == dict(zip(ids, ("replayed", "failed", "failed"), strict=True))
        assert "too large together" in answer.results[1].reason
        assert (await w.desk.replay(ANN, [ids[1]], edited(grow))).replayed == 1

    run_desk(sqlite, body)


def _right_currency(found):
    return found | {"rate": {"EUR": 1, "USD": 2}[found["currency"]]}


@pytest.mark.parametrize(
    ("named", "stored", "edit", "mended"),
    [
        ("bad data", b'{"price": -5}', Edit(patch=TO_ZERO), b'{"price":0}'),
        (
            "schema has changed",
            b'{"name": "Ann"}',
            Edit(
                transform=function(
                    lambda found: {("full_name" if k == "name" else k): found[k] for k in found}
                )
            ),
            b'{"full_name":"Ann"}',
        ),
        (
            "wrong for a while",
            b'{"currency": "USD", "rate": 1}',
            Edit(transform=function(_right_currency)),
            b'{"currency":"USD","rate":2}',
        ),
    ],
)
def test_when_to_mend_is_said_and_done(sqlite, named, stored, edit, mended):
    """S4-76: what was meant can be told, the schema moved on, what it was made from was wrong."""
    page = (ROOT / "docs" / "operate" / "editing.md").read_text("utf-8")
    assert named in page.partition("## When to mend")[2].partition("## ")[0]

    async def body(w):
        letter_id = await w.plant(payload=stored)
        assert (await w.desk.replay(ANN, [letter_id], edited(edit))).replayed == 1
        assert [payload for payload, _ in await sent(w)] == [mended]

    run_desk(sqlite, body)
