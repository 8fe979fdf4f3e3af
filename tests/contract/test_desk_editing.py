"""Edits: a revision beside an original that never changes, or a sentence that says why not."""

import asyncio
import hashlib
import sys
from dataclasses import replace

import pytest
from sqlalchemy import select, text

from outlast.model.edit import Edit, Transform
from outlast.ops import Actor, BadRequest, EditConflict, EditRefused, LetterNotFound, NotAllowed
from outlast.ops.refusals import NotRecorded
from outlast.ops.transforms import load_patch, load_transform
from tests.contract.desks import ANN, run_desk

PRICE = b'{"sku": "b-1", "price": -5, "total": 1.10, "big": 123456789012345678901234567890}'
TO_ZERO = ({"op": "replace", "path": "/price", "value": 0},)


def function(code, name="fixes:fix", **more):
    return Transform(name, None, "sha256:0", code, **more)


async def revisions_of(w):
    table = w.tables["revision"]
    async with w.engine.connect() as connection:
        return (await connection.execute(select(table).order_by(table.c.revision))).all()


async def refused(w, letter_id, edit, match, kind=EditRefused, **more):
    with pytest.raises(kind, match=match) as found:
        await w.desk.edit(ANN, letter_id, edit, **more)
    assert await revisions_of(w) == []
    return found.value


def test_a_patch_adds_a_revision_and_the_original_stays(database):
    """S4-75 U-04 U-17: only what was patched changes, to the digit; who, why and how is kept."""

    async def body(w):
        letter_id = await w.plant(payload=PRICE)
        before = await w.one(letter_id)
        seen = await w.desk.inspect(ANN, letter_id)
        done = await w.desk.edit(
            ANN, letter_id, Edit(patch=TO_ZERO), expected=seen.etag, reason="typo at the supplier"
        )
        new = b'{"sku":"b-1","price":0,"total":1.10,"big":123456789012345678901234567890}'
        assert (done.revision, done.transform) == (1, "json-patch")
        assert done.digest == "sha256:" + hashlib.sha256(new).hexdigest()
        assert '-  "price": -5,' in done.diff
        assert '+  "price": 0,' in done.diff
        (row,) = await revisions_of(w)
        assert (bytes(row.payload), row.actor) == (new, "ann")
        assert (row.reason, row.transform) == ("typo at the supplier", "json-patch")
        assert row.digest == done.transform_digest
        assert row.headers == before["headers"]
        after = await w.one(letter_id)
        assert after["revision"] == 1
        kept = set(before) - {"revision"}
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        (told,) = await w.told(letter_id)
        assert (told.kind, told.actor, told.reason) == ("edited", "ann", "typo at the supplier")
        assert told.detail["revision"] == 1
        assert told.detail["of"] == 0
        assert told.detail["digest"] == done.transform_digest
        assert "b-1" not in repr(told.detail)
        now = await w.desk.inspect(ANN, letter_id)
        assert now.etag == done.etag != seen.etag
        assert now.as_json()["etag"] == done.etag
        assert now.payload.value["price"] == -5
        assert now.revisions[0].payload.value["price"] == 0

    run_desk(database, body)


def test_an_edit_is_made_of_the_newest_revision(database):
    """U-17: lineage: each says which it was made of."""

    async def body(w):
        letter_id = await w.plant(payload=PRICE)
        await w.desk.edit(ANN, letter_id, Edit(patch=TO_ZERO))
        add = Edit(patch=({"op": "add", "path": "/note", "value": "x"},))
        assert (await w.desk.edit(ANN, letter_id, add)).revision == 2
        by_hand = await w.desk.edit(ANN, letter_id, Edit(payload=b"\x00\xff"))
        assert (by_hand.revision, by_hand.transform) == (3, None)
        first, second, third = await revisions_of(w)
        assert b'"price":0' in bytes(first.payload)
        assert b'"price":0' in bytes(second.payload)
        assert b'"note":"x"' in bytes(second.payload)
        assert bytes(third.payload) == b"\x00\xff"
        assert [x.detail["of"] for x in await w.told(letter_id)] == [0, 1, 2]

    run_desk(database, body)


def test_an_edit_that_changes_nothing_writes_nothing(database):
    """The bytes stay, spaces and all; nothing grows by asking twice."""

    async def body(w):
        letter_id = await w.plant(payload=b'{ "price" : 0, "n": 1.0 }')
        etag = (await w.desk.inspect(ANN, letter_id)).etag
        for edit in (
            Edit(patch=TO_ZERO),
            Edit(payload=b'{ "price" : 0, "n": 1.0 }'),
            Edit(transform=function(lambda found: dict(found))),
            Edit(unset_headers=("x",)),
        ):
            done = await w.desk.edit(ANN, letter_id, edit)
            assert (done.revision, done.diff, done.etag) == (0, (), etag)
            assert "nothing changes: no revision is written" in done.warnings
        assert await revisions_of(w) == []
        assert await w.told(letter_id) == []

    run_desk(database, body)


def test_a_dry_run_shows_and_writes_nothing(database):
    """S4-75: the diff is shown before."""

    async def body(w):
        letter_id = await w.plant(payload=PRICE)
        done = await w.desk.edit(ANN, letter_id, Edit(patch=TO_ZERO), dry_run=True)
        assert done.as_json()["dry_run"] is True
        assert done.revision == 1
        assert '+  "price": 0,' in done.as_json()["diff"]
        assert await revisions_of(w) == []
        assert (await w.one(letter_id))["revision"] in {0, None}
        assert await w.told() == []

    run_desk(database, body)


def test_of_two_edits_at_once_one_wins_and_the_other_is_told(database):
    """An edit is of what was seen: never over somebody else's."""

    async def body(w):
        letter_id = await w.plant(payload=b'{"n": 0}')
        etag = (await w.desk.inspect(ANN, letter_id)).etag
        desks = [w.make_desk(), w.make_desk()]
        both = asyncio.Barrier(2)

        async def meet(found):
            async with asyncio.timeout(10):
                await both.wait()
            return found | {"n": 1}

        edit = Edit(transform=function(meet), not_idempotent=True)
        answers = await asyncio.gather(
            *(d.edit(ANN, letter_id, edit, expected=etag) for d in desks), return_exceptions=True
        )
        conflicts = [a for a in answers if isinstance(a, EditConflict)]
        assert len(conflicts) == 1
        assert "dlq inspect" in conflicts[0].remedy
        assert len(await revisions_of(w)) == 1
        with pytest.raises(EditConflict):
            await w.desk.edit(ANN, letter_id, Edit(payload=b"{}"), expected=etag)
        newest = (await w.desk.inspect(ANN, letter_id)).etag
        assert (
            await w.desk.edit(ANN, letter_id, Edit(payload=b"{}"), expected=newest)
        ).revision == 2

    run_desk(database, body)


def test_a_letter_that_failed_again_meanwhile_is_another(database):
    async def body(w):
        letter_id = await w.plant(payload=b"{}")
        seen = await w.desk.inspect(ANN, letter_id)
        await w.change(letter_id, last_failure_at=await w.now())
        await refused(w, letter_id, Edit(payload=b"1"), "changed", EditConflict, expected=seen.etag)
        await w.desk.mark(ANN, [letter_id], owner="bo")
        seen = await w.desk.inspect(ANN, letter_id)
        await w.desk.mark(ANN, [letter_id], note="a note is no change of the message")
        assert (await w.desk.edit(ANN, letter_id, Edit(payload=b"1"), expected=seen.etag)).revision

    run_desk(database, body)


@pytest.mark.parametrize("state", ["replaying", "resolved", "discarded"])
def test_only_listed_letters_are_edited(database, state):
    """A letter on its way keeps what was sent."""

    async def body(w):
        letter_id = await w.plant(state=state, replayed_as=5)
        error = await refused(w, letter_id, Edit(payload=b"1"), str(letter_id))
        assert error.state == state
        assert "outlast" in error.remedy
        with pytest.raises(LetterNotFound):
            await w.desk.edit(ANN, letter_id + 1, Edit(payload=b"1"))

    run_desk(database, body)


def test_without_a_revision_table_an_edit_says_what_is_missing(database):
    """Design 3.2: refused with the reason; once the table is there, the same desk edits."""

    async def body(w):
        letter_id = await w.plant()
        await w.desk.list(ANN)
        with pytest.raises(NotRecorded, match="no revision table") as found:
            await w.desk.edit(ANN, letter_id, Edit(payload=b"1"))
        assert "db print" in found.value.remedy
        from sqlalchemy import MetaData

        from outlast.tables import make_operations_tables

        metadata = MetaData()
        make_operations_tables(metadata)
        async with w.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        assert (await w.desk.edit(ANN, letter_id, Edit(payload=b"1"))).revision == 1

    run_desk(database, body, beside=False)


def test_headers_are_set_and_taken_away(database):
    """Those of the message; the reserved ones belong to us, and the content type is kept."""

    async def body(w):
        headers = {
            "content-type": "application/json",
            "tenant": "a",
            "old": "1",
            "outlast-message-id": "m-1",
        }
        letter_id = await w.plant(headers=headers)
        edit = Edit(set_headers={"tenant": "b", "Old": "2"}, unset_headers=("old", "none"))
        done = await w.desk.edit(ANN, letter_id, edit)
        assert '-tenant: "a"' in done.diff
        assert '+tenant: "b"' in done.diff
        assert "there is no header 'none'" in done.warnings
        assert any("told apart by case" in warning for warning in done.warnings)
        (row,) = await revisions_of(w)
        kept = {"content-type": "application/json", "outlast-message-id": "m-1"}
        assert row.headers == kept | {"tenant": "b", "Old": "2"}
        assert bytes(row.payload) == b'{"n": 1}'
        assert (await w.told(letter_id))[0].detail["set_headers"] == ["Old", "tenant"]
        await w.desk.replay(ANN, [letter_id])
        (sent,) = await w.rows()
        assert sent["headers"]["outlast-message-id"] == "m-1"
        assert sent["headers"]["tenant"] == "b"

    run_desk(database, body)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (Edit(), "changes nothing"),
        (Edit(patch=()), "no operation"),
        (Edit(payload=b"", patch=TO_ZERO), "three ways"),
        (Edit(payload="text"), "bytes"),
        (Edit(payload=b"x" * 101), "101 bytes"),
        (Edit(patch=({"op": "add", "path": "x", "value": 1},)), "operation 1"),
        (Edit(set_headers={"outlast-replay": "1"}), "reserved"),
        (Edit(set_headers={"OUTLAST-Message-Id": "1"}), "reserved"),
        (Edit(unset_headers=("outlast-message-id",)), "reserved"),
        (Edit(unset_headers=("Outlast-Message-Id",)), "reserved"),
        (Edit(set_headers={"": "1"}), "name"),
        (Edit(set_headers={"a": "x\x00y"}), "NUL"),
        (Edit(set_headers={"a\x00": "x"}), "NUL"),
        (Edit(set_headers={"a": "\ud800"}), "surrogate"),
        (Edit(set_headers={"a": b"x"}), "bytes"),
        (Edit(set_headers={"a": "x" * 2_000_000}), "headers take"),
        (Edit(set_headers={"a": "x"}, unset_headers=("a",)), "at once"),
        (Edit(unset_headers=tuple(f"h{n}" for n in range(500))), "at most"),
    ],
)
def test_an_edit_that_is_wrong_for_every_letter_is_refused_at_once(sqlite, edit, said):
    async def body(w):
        letter_id = await w.plant()
        await refused(w, letter_id, edit, said, BadRequest)

    run_desk(sqlite, body, edited_bytes_max=100)


def test_an_edit_needs_its_scope_and_to_read_what_is_masked_needs_reveal(sqlite):
    """A patch must not be a way around the mask: nor a guess at it, nor a copy of it."""

    async def body(w):
        letter_id = await w.plant(payload=b'{"password": "hunter22", "user": {"token": "t"}}')
        nobody = Actor("bo", frozenset({"inspect", "replay", "discard", "reveal"}))
        with pytest.raises(NotAllowed, match="'edit'"):
            await w.desk.edit(nobody, letter_id, Edit(payload=b"1"))
        editor = Actor("cy", frozenset({"edit"}))
        for step in (
            {"op": "test", "path": "/password", "value": "hunter22"},
            {"op": "test", "path": "", "value": {"password": "hunter22"}},
            {"op": "copy", "from": "/password", "path": "/note"},
            {"op": "move", "from": "/user/token", "path": "/user/name"},
        ):
            with pytest.raises(NotAllowed, match="'reveal'"):
                await w.desk.edit(editor, letter_id, Edit(patch=(step,)), dry_run=True)
        for step in (
            {"op": "replace", "path": "/password", "value": "other"},
            {"op": "remove", "path": "/user/token"},
            {"op": "copy", "from": "/password", "path": "/user/password"},
        ):
            done = await w.desk.edit(editor, letter_id, Edit(patch=(step,)), dry_run=True)
            assert "hunter22" not in repr(done)
        done = await w.desk.edit(
            ANN, letter_id, Edit(patch=({"op": "copy", "from": "/password", "path": "/note"},))
        )
        assert "hunter22" not in repr(done)
        assert any("•••" in line for line in done.diff)

    run_desk(sqlite, body)


def test_a_mask_is_never_saved(database):
    """What stood on the screen in place of a secret must not take its place in the message."""

    async def body(w):
        stored = b'{"password": "hunter22", "note": "\xe2\x80\xa2\xe2\x80\xa2\xe2\x80\xa2"}'
        letter_id = await w.plant(payload=stored, headers={"authorization": "Bearer abcdef"})
        shown = (await w.desk.inspect(ANN, letter_id)).payload.text
        assert "•••" in shown
        for edit in (
            Edit(payload=shown.encode()),
            Edit(payload=b'{"password": "\\u2022\\u2022\\u2022", "note": "x"}'),
            Edit(payload=b'{"password": "hunter22", "n": {"\\u2022\xe2\x80\xa2\\u2022": 1}}'),
            Edit(payload="password=•••\nnote=•••".encode()),
            Edit(patch=({"op": "replace", "path": "/password", "value": "•••"},)),
            Edit(set_headers={"authorization": "Bearer •••"}),
            Edit(transform=function(lambda found: found | {"password": "•••"})),
        ):
            await refused(w, letter_id, edit, "would save •••")
        # what the message itself says stays
        moved = Edit(patch=({"op": "move", "from": "/note", "path": "/about/note"},))
        await refused(w, letter_id, moved, "there is nothing at /about")
        kept = Edit(patch=({"op": "add", "path": "/n", "value": 1},))
        assert (await w.desk.edit(ANN, letter_id, kept)).revision == 1

    run_desk(database, body)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (b"\xff\x00", "no JSON"),
        (b"", "no JSON"),
        (b'{"n": NaN}', "JSON has no NaN"),
        (b'{"price": 1, "price": 2}', "'price' twice"),
        (b"[" * 300 + b"]" * 300, "nested deeper"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"price"', "no JSON"),
        (b"[1, 2]", "there is no|no item"),
    ],
)
def test_hostile_bodies_cannot_be_patched_and_say_why(database, stored, said):
    async def body(w):
        letter_id = await w.plant(payload=stored)
        await refused(w, letter_id, Edit(patch=TO_ZERO), said)
        done = await w.desk.edit(ANN, letter_id, Edit(payload=b'{"whole": "anew"}'))
        assert done.revision == 1

    run_desk(database, body)


def test_a_large_body_is_patched_exactly(database):
    """5 MB, every number to the digit, and the diff stays short."""

    async def body(w):
        rows = ",".join(f'{{"id":{n},"p":{n}.10,"t":"\u00e9 \\\\ \\n"}}' for n in range(125_000))
        letter_id = await w.plant(payload=f'{{"price":-5,"rows":[{rows}]}}'.encode())
        done = await w.desk.edit(ANN, letter_id, Edit(patch=TO_ZERO))
        (row,) = await revisions_of(w)
        assert bytes(row.payload) == f'{{"price":0,"rows":[{rows}]}}'.encode()
        assert len(row.payload) > 5_000_000
        assert any("larger than is shown" in line for line in done.diff)
        assert len(done.diff) < 5

    run_desk(database, body)


def test_numbers_of_a_patch_stay_as_written(database):
    """`1.10` of the patch is `1.10` in the message."""

    async def body(w):
        letter_id = await w.plant(payload=b'{"n": 1}')
        patch = load_patch('[{"op": "replace", "path": "/n", "value": [1.10, 1E400, -0]}]')
        await w.desk.edit(ANN, letter_id, Edit(patch=patch))
        assert bytes((await revisions_of(w))[0].payload) == b'{"n":[1.10,1E400,-0]}'
        for wrong in ("{}", "[1]", "[", '[{"op": "add", "path": "/a"}]', b"\xff", "\ud800"):
            with pytest.raises(BadRequest, match="patch"):
                load_patch(wrong)

    run_desk(database, body)


def test_hard_purge_leaves_no_byte_of_a_revision(database):
    """Erasure: neither the original nor what an edit made of it."""

    async def body(w):
        letter_id = await w.plant(payload=b'{"mail": "ann@example.org"}')
        patch = ({"op": "replace", "path": "/mail", "value": "very-own-bytes"},)
        await w.desk.edit(ANN, letter_id, Edit(patch=patch, set_headers={"h": "very-own-bytes"}))
        await w.desk.purge(ANN, [letter_id], hard=True, reason="erasure")
        for table in w.tables.values():
            async with w.engine.connect() as connection:
                rows = (await connection.execute(select(table))).all()
            assert "very-own-bytes" not in repr(rows)
            assert "example.org" not in repr(rows)

    run_desk(database, body)


def test_the_history_row_and_the_revision_land_together(database):
    """No edit without its line, no line without its edit."""

    async def body(w):
        from outlast.model.errors import CannotWrite

        letter_id = await w.plant(payload=PRICE)
        await w.desk.list(ANN)
        async with w.engine.begin() as connection:
            await connection.execute(text("alter table outbox_dlq_history rename to away"))
        with pytest.raises(CannotWrite):
            await w.desk.edit(ANN, letter_id, Edit(patch=TO_ZERO))
        assert await revisions_of(w) == []
        assert not (await w.one(letter_id))["revision"]

    run_desk(database, body)


def test_a_function_is_found_by_its_name(tmp_path, monkeypatch):
    """U-17: name, version of its module, digest of its source; another source, another digest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = (
        "__version__ = '1.4'\ndef fix(body):\n    return body\nclass K:\n    def m(self): ...\n"
    )
    (tmp_path / "own_fixes.py").write_text(source)
    found = load_transform("own_fixes:fix")
    assert (found.name, found.version, found.label) == ("own_fixes:fix", "1.4", "own_fixes:fix 1.4")
    body = "def fix(body):\n    return body\n"
    assert found.digest == "sha256:" + hashlib.sha256(body.encode()).hexdigest()
    (tmp_path / "other_fixes.py").write_text("def fix(body):\n    return body or None\n")
    assert load_transform("other_fixes:fix").digest != found.digest
    assert load_transform("other_fixes:fix").version is None
    (tmp_path / "broken_fixes.py").write_text("raise SystemExit('stop')\n")
    for name, said in (
        ("own_fixes", "module:function"),
        ("own_fixes:", "module:function"),
        ("own_fixes:fix; import os", "module:function"),
        ("../own_fixes:fix", "module:function"),
        ("no_such_module:fix", "ModuleNotFoundError"),
        ("broken_fixes:fix", "SystemExit: stop"),
        ("own_fixes:fax", "no function 'fax'"),
        ("own_fixes:__version__", "no function"),
        ("x" * 300 + ":f", "module:function"),
    ):
        with pytest.raises(BadRequest, match=said):
            load_transform(name)
    (tmp_path / "many_fixes.py").write_text(
        "def three(a, b, c): ...\ndef none(): ...\ndef named(body, *, how): ...\n"
    )
    for name in ("three", "none", "named"):
        with pytest.raises(BadRequest, match="called with the body"):
            load_transform(f"many_fixes:{name}")


def test_the_label_of_a_revision_names_function_and_version(sqlite):
    async def body(w):
        letter_id = await w.plant(payload=PRICE)
        fix = replace(function(lambda found: found | {"price": 0}), version="2.1")
        done = await w.desk.edit(ANN, letter_id, Edit(transform=fix))
        assert done.transform == "fixes:fix 2.1"
        (row,) = await revisions_of(w)
        assert (row.transform, row.digest) == ("fixes:fix 2.1", "sha256:0")
        (told,) = await w.told(letter_id)
        assert told.detail["transform"] == {"name": "fixes:fix", "version": "2.1"}

    run_desk(sqlite, body)


def test_a_letter_that_somebody_holds_is_waited_for_for_a_while(postgres):
    """A lock of somebody else ends in a sentence, not in waiting."""

    async def body(w):
        letter_id = await w.plant(payload=PRICE)
        async with w.engine.begin() as holder:
            await holder.execute(select(w.dlq).where(w.dlq.c.id == letter_id).with_for_update())
            edit = Edit(patch=TO_ZERO)
            await refused(w, letter_id, edit, "somebody else is changing", EditConflict)
        assert (await w.desk.edit(ANN, letter_id, edit)).revision == 1

    run_desk(postgres, body)
