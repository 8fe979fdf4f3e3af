"""Upkeep on a virtual clock: it never fails, says each change once, and waits longer in need."""

import asyncio
import logging
from itertools import pairwise

import pytest

from outlast.model.errors import CannotWrite, Disconnected, SchemaError, TryLater
from outlast.ops import SCOPES, Actor, BadRequest, NotAllowed, NotRecorded
from outlast.ops.upkeep import PASS_SECONDS, PAUSE_MAX_SECONDS, STOP_SECONDS, upkeep
from outlast.policy import jitter
from tests import virtual

KEEPER = Actor("serve", SCOPES)


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch):
    monkeypatch.setattr(jitter, "uniform", lambda _least, _most: 0.0)


class Options:
    chunk = 10


class ScriptedDesk:
    """`reconcile` and `sweep` do what they are told to; every call is noted with its time."""

    options = Options()

    def __init__(self):
        self.calls = []
        self.trouble = {"reconcile": None, "sweep": None}
        self.found = []

    async def _act(self, name):
        self.calls.append((asyncio.get_running_loop().time(), name))
        trouble = self.trouble[name]
        if trouble == "hang":
            await asyncio.Event().wait()
        elif trouble is not None:
            raise trouble

    async def reconcile(self, actor):
        await self._act("reconcile")

    async def sweep(self, actor):
        await self._act("sweep")
        return self.found.pop(0) if self.found else 0

    def times(self, name="sweep"):
        first = self.calls[0][0]
        return [round(at - first, 3) for at, called in self.calls if called == name]


def run(script, *, every=5.0):
    """Run upkeep beside `script(desk, stop)`; the desk afterwards."""
    desk = ScriptedDesk()

    async def main():
        stop = asyncio.Event()
        keeping = asyncio.create_task(upkeep(desk, KEEPER, stop, every=every))
        await script(desk)
        assert not keeping.done(), "upkeep has ended by itself"
        stop.set()
        await keeping

    virtual.run(main())
    return desk


def lines(caplog):
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "outlast.upkeep" and record.levelno > logging.DEBUG
    ]


@pytest.fixture(autouse=True)
def heard(caplog):
    caplog.set_level(logging.DEBUG, "outlast.upkeep")


def test_both_are_done_at_once_and_then_every_few_seconds(caplog):
    async def script(desk):
        await asyncio.sleep(16)

    desk = run(script)
    assert desk.times("reconcile") == desk.times("sweep") == [0, 5, 10, 15]
    assert not lines(caplog)


def test_a_pass_sweeps_on_while_there_is_much_and_not_for_ever():
    async def script(desk):
        desk.found = [10, 10, 3]
        await asyncio.sleep(4)
        assert len(desk.times()) == 3
        desk.found = [10] * 1000
        await asyncio.sleep(4)
        assert len(desk.times()) == 3 + 20

    run(script)


def test_an_absent_database_is_told_once_and_asked_less_and_less(caplog):
    async def script(desk):
        desk.trouble["reconcile"] = desk.trouble["sweep"] = Disconnected("no route\x1b to host")
        await asyncio.sleep(400)
        desk.trouble["sweep"] = desk.trouble["reconcile"] = TryLater("starting up")
        await asyncio.sleep(100)
        assert len(lines(caplog)) == 1
        desk.trouble = dict.fromkeys(desk.trouble)
        await asyncio.sleep(200)

    desk = run(script)
    times = desk.times("reconcile")
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert pauses[:6] == [10, 20, 40, 60, 60, 60]
    assert max(pauses) == PAUSE_MAX_SECONDS
    assert pauses[-5:] == [5] * 5
    assert lines(caplog) == [
        ("WARNING", "upkeep waits for the database: no route\\x1b to host"),
        ("INFO", "upkeep goes on: the database is back"),
    ]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (CannotWrite("permission denied for table d [42501]"), "permission denied for table d"),
        (NotRecorded("table d has no column state", "add it"), "has no column state (add it)"),
        (NotAllowed("discard", "serve may not delete"), "serve may not delete"),
        (SchemaError("table d does not exist"), "table d does not exist"),
        (BadRequest("line one\nline two"), "line one"),
        (ZeroDivisionError("a mistake of ours"), "a mistake of ours"),
        (RecursionError(), "cannot delete what was kept long enough"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_done_is_told_once_and_the_other_chore_goes_on(caplog, trouble, said):
    async def script(desk):
        desk.trouble["sweep"] = trouble
        await asyncio.sleep(1000)
        assert len(lines(caplog)) == 1
        assert 15 < len(desk.times("sweep")) < 25
        assert len(desk.times("reconcile")) == 200
        desk.trouble["sweep"] = None
        await asyncio.sleep(100)

    desk = run(script)
    (level, line), recovered = lines(caplog)
    assert level == "WARNING"
    assert line.startswith("upkeep cannot delete what was kept long enough: ")
    assert said in line
    assert "two" not in line
    assert recovered == ("INFO", "upkeep can delete what was kept long enough again")
    assert desk.times()[-1] - desk.times()[-2] == 5


def test_another_trouble_is_another_line(caplog):
    async def script(desk):
        desk.trouble["sweep"] = NotRecorded("no column")
        await asyncio.sleep(100)
        desk.trouble["sweep"] = CannotWrite("no right")
        await asyncio.sleep(200)

    run(script)
    assert [line.rpartition(": ")[2] for _, line in lines(caplog)] == ["no column", "no right"]


def test_a_server_that_does_not_answer_is_given_up_and_told(caplog):
    async def script(desk):
        desk.trouble["reconcile"] = "hang"
        await asyncio.sleep(PASS_SECONDS + 1)
        desk.trouble["reconcile"] = None
        await asyncio.sleep(30)

    desk = run(script)
    assert desk.times("reconcile")[:2] == [0, PASS_SECONDS + 10]
    assert lines(caplog) == [
        ("WARNING", "upkeep waits for the database: no answer in 60 seconds"),
        ("INFO", "upkeep goes on: the database is back"),
    ]


def test_stop_interrupts_a_pause_at_once_and_a_pass_after_a_while():
    async def idle():
        desk, stop, loop = ScriptedDesk(), asyncio.Event(), asyncio.get_running_loop()
        keeping = asyncio.create_task(upkeep(desk, KEEPER, stop))
        await asyncio.sleep(1)
        stop.set()
        before = loop.time()
        await keeping
        assert loop.time() == before

    async def busy():
        desk, stop, loop = ScriptedDesk(), asyncio.Event(), asyncio.get_running_loop()
        desk.trouble["sweep"] = "hang"
        keeping = asyncio.create_task(upkeep(desk, KEEPER, stop))
        await asyncio.sleep(1)
        stop.set()
        before = loop.time()
        await keeping
        assert loop.time() == pytest.approx(before + STOP_SECONDS)

    virtual.run(idle())
    virtual.run(busy())


def test_who_cancels_it_leaves_nothing_running():
    async def main():
        desk = ScriptedDesk()
        desk.trouble["sweep"] = "hang"
        keeping = asyncio.create_task(upkeep(desk, KEEPER, asyncio.Event()))
        await asyncio.sleep(1)
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
        assert asyncio.all_tasks() == {asyncio.current_task()}

    virtual.run(main())
