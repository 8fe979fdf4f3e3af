"""Doubts of a reader about replayed rows on the engine: each row ends once, and ends."""

import asyncio

import pytest

from outlast.model.errors import CannotWrite, Disconnected, OutcomeUnknown, RowRefused
from outlast.model.outcome import Terminal
from tests.engine.test_guard import fails, lacking
from tests.engine.test_replays import replayed


async def letters_of(rig, count):
    """So many letters, each with its replay not yet sent."""
    for n in range(count - 1):
        rig.answers = [Terminal("rejected")]
        rig.memory.insert(queue="q", payload=b"other")
        await rig.until(lambda n=n: len(rig.memory.dlq_rows) == n + 2)
    rig.events.clear()
    return list(rig.memory.dlq_rows)


def send(rig, letter):
    headers = {"outlast-replay": letter["id"]}
    row_id = rig.memory.insert(queue="q", payload=b"", headers=headers)
    letter.update(state="replaying", replayed_as=row_id)
    return row_id


@pytest.mark.parametrize("how", ["lost", "unknown"])
def test_a_row_that_is_repeated_plainly_leaves_its_group_for_good(how):
    """The line is lost under its neighbour: the repeat of the group is not also the row's own."""

    async def body(rig):
        letters = await letters_of(rig, 3)
        plain, sent = rig.memory.resolve, []

        async def resolve(passes, timeout, *, skip=False):
            sent.append([p.letter_id for p in passes])
            if len(sent) == 1 and len(passes) > 1:
                raise RowRefused("a value of one of them")
            if len(sent) == 2:
                raise RowRefused("a value of this one")
            if len(sent) == 3:
                if how == "unknown":
                    await plain(passes, timeout, skip=skip)
                raise (OutcomeUnknown if how == "unknown" else Disconnected)("gone")
            return await plain(passes, timeout, skip=skip)

        gate = rig.store.gate("resolve")
        rig.memory.resolve = resolve
        for letter in letters:
            send(rig, letter)
        gate.set()
        await rig.until(lambda: not rig.memory.rows)
        await asyncio.sleep(10)
        first = letters[0]["id"]
        assert sum(first in group for group in sent) == 2, sent
        ended = [name for name in rig.names() if name != "dispatched"]
        assert sorted(ended) in (["acked"] * 3, ["acked", "acked", "settle_unknown"])
        assert [x["state"] for x in letters] == ["replaying", "resolved", "resolved"]

    replayed(body)


def test_a_locked_letter_without_a_bound_of_the_database_holds_up_itself_alone():
    """Behind a pooler only the client's timeout ends a wait; everybody else ends meanwhile."""

    async def body(rig):
        letters = await letters_of(rig, 6)
        locked, locked_until = letters[0]["id"], rig.now() + 300
        stores = {name: getattr(rig.memory, name) for name in ("resolve", "refresh", "reopen")}

        def waiting(name):
            async def call(passes, timeout, *, skip=False):
                if rig.now() < locked_until and any(p.letter_id == locked for p in passes):
                    await asyncio.sleep(timeout)
                    raise OutcomeUnknown("no answer", timed_out=True)
                return await stores[name](passes, timeout, skip=skip)

            return call

        for name in stores:
            setattr(rig.memory, name, waiting(name))
        for letter in letters[:4]:
            send(rig, letter)
        await rig.until(lambda: rig.names().count("dispatched") == 4)
        rig.answers = [KeyError("isbn"), Terminal("rejected")]
        for letter in letters[4:]:
            send(rig, letter)
        await rig.until(
            lambda: (
                [x["state"] for x in letters[1:4]] == ["resolved"] * 3
                and letters[5]["state"] == "open"
                and letters[4]["error_type"] == "KeyError"
            ),
            seconds=200,
            step=0.1,
        )
        assert letters[0]["state"] == "replaying"
        await rig.until(lambda: letters[0]["state"] == "resolved", step=0.1)
        assert "lease_lost" not in rig.names()

    replayed(body)


def test_a_row_that_cannot_be_put_off_is_told_as_nothing_that_began():
    """Its lease runs out; an end is told only of what was dispatched."""

    async def body(rig):
        rig.handle(fails)
        rig.store.fail("postpone", CannotWrite("permission denied"))
        rig.replay()
        await rig.engine.start()
        await rig.until(lambda: rig.store.count("postpone"))
        await asyncio.sleep(1)
        assert rig.names() == []
        await rig.until(lambda: rig.store.count("postpone") > 1, step=1)
        assert rig.started == []

    lacking(body, dead_letters=False)
