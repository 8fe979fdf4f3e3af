"""A replayed row never runs where its letter could not move with it: it waits, and is told."""

import asyncio
import re
from itertools import pairwise

import pytest

from outlast.model.errors import CannotWrite, Disconnected
from outlast.model.outcome import Terminal
from outlast.stores.memory.store import MemoryStore
from tests import virtual
from tests.engine.bench import Rig
from tests.engine.faults import FaultyStore

REPLAY = {"outlast-replay": 7}


def lacking(body, *, dead_letters):
    """A rig whose store cannot end replays; `rig.mend()` gives it what it lacks."""

    async def main():
        memory = MemoryStore(virtual.now)
        memory.has_dead_letters, memory.has_replays = dead_letters, False
        rig = Rig(FaultyStore(memory))
        rig.memory = memory
        rig.mended = False

        async def recheck(_timeout):
            memory.has_replays = rig.mended

        memory.recheck_letters = recheck

        def replay(**values):
            letter = {"id": 7, "state": "replaying", "total_deliveries": 1}
            row_id = rig.add(headers=REPLAY, **values)
            memory.dlq_rows[:] = [letter | {"replayed_as": row_id}]
            return row_id

        rig.replay = replay
        await body(rig)
        await rig.engine.stop(0.0)

    virtual.run(main())


async def fails(_delivery):
    return Terminal("rejected")


@pytest.mark.parametrize("dead_letters", [False, True], ids=["no table", "no columns"])
@pytest.mark.parametrize("most", [None, 1, 2])
def test_a_replayed_row_is_neither_run_nor_dropped_nor_counted(dead_letters, most):
    async def body(rig):
        rig.handle(fails, max_deliveries=most)
        rig.replay()
        await rig.engine.start()
        await asyncio.sleep(600)
        (row,) = rig.memory.rows
        assert rig.started == []
        assert rig.names() == []
        assert row.acquired_token is None
        assert (row.deliveries_count, row.attempts_count) == (0, 0)
        assert 0 < (row.next_attempt_at - virtual.now()).total_seconds() <= 36
        # backed off, not spun; where columns lack it comes once more, when they were looked at
        most_often = (600 / 24 + 1) * (1 + dead_letters)
        assert 600 / 36 <= rig.store.count("postpone") <= most_often
        assert rig.memory.dlq_rows[0]["state"] == "replaying"

    lacking(body, dead_letters=dead_letters)


def test_others_of_the_queue_go_on_and_the_error_is_told_now_and_then():
    async def body(rig):
        async def handler(_delivery):
            return None

        rig.handle(handler, max_workers=2)
        for n in range(500):
            rig.add(headers=REPLAY)
            if n % 5 == 0:
                rig.add()
        await rig.engine.start()
        await rig.until(lambda: len(rig.memory.rows) == 500, seconds=10)
        assert len(rig.started) == 100
        await asyncio.sleep(95)
        errors = [r for r in rig.logs if r.levelname == "ERROR"]
        assert 3 <= len(errors) <= 5
        assert "dlq_table" in errors[0].getMessage()
        assert "dead letter 7" in errors[0].getMessage()
        # each row but the first was refused at least once before the second line
        (others,) = re.findall(r"\((\d+) more such rows", errors[1].getMessage())
        assert int(others) >= 499

    lacking(body, dead_letters=False)


def test_it_waits_for_a_worker_that_has_a_dead_letter_table():
    async def body(rig):
        rig.handle(fails)
        rig.replay()
        await rig.engine.start()
        await asyncio.sleep(40)
        whole = MemoryStore(virtual.now)
        whole.rows, whole.dlq_rows = rig.memory.rows, rig.memory.dlq_rows
        whole._letters._letters = rig.memory.dlq_rows
        other = Rig(whole)

        async def delivers(_delivery):
            return None

        other.handle(delivers)
        await other.engine.start()
        await rig.until(lambda: not rig.memory.rows, seconds=600, step=0.05)
        assert rig.started == []
        assert len(other.started) == 1
        assert rig.memory.dlq_rows[0]["state"] == "resolved"
        await other.engine.stop(0.0)

    lacking(body, dead_letters=False)


def test_columns_that_a_migration_brings_are_found_by_the_next_replayed_row():
    async def body(rig):
        async def delivers(_delivery):
            return None

        rig.handle(delivers)
        await rig.engine.start()
        await asyncio.sleep(20)
        assert rig.store.count("recheck_letters") == 0
        rig.mended = True
        rig.replay()
        await rig.until(lambda: rig.memory.dlq_rows[0]["state"] == "resolved", seconds=2)
        assert rig.store.count("recheck_letters") == 1
        assert rig.memory.rows == []
        assert "outlast db print" in rig.log_text()
        assert "replays run here" in rig.log_text()

    lacking(body, dead_letters=True)


def test_the_columns_are_looked_at_at_most_once_in_five_seconds():
    async def body(rig):
        rig.handle(fails)
        await rig.engine.start()
        for _ in range(200):
            rig.add(headers=REPLAY)
            await asyncio.sleep(0.5)
        looks = [at for at, name, _, _ in rig.store.calls if name == "recheck_letters"]
        assert 15 <= len(looks) <= 21
        assert min(b - a for a, b in pairwise(looks)) >= 5
        assert len(rig.memory.rows) == 200

    lacking(body, dead_letters=True)


@pytest.mark.parametrize(
    "failure", [CannotWrite("permission denied"), Disconnected("gone")], ids=["refused", "lost"]
)
def test_a_look_that_fails_is_made_again(failure):
    async def body(rig):
        async def delivers(_delivery):
            return None

        rig.handle(delivers)
        rig.store.fail("recheck_letters", failure)
        rig.mended = True
        rig.replay()
        await rig.engine.start()
        await rig.until(lambda: not rig.memory.rows, seconds=60, step=0.05)
        assert rig.memory.dlq_rows[0]["state"] == "resolved"

    lacking(body, dead_letters=True)


def test_a_worker_that_is_able_runs_it_at_once():
    """The guard is for the others."""

    async def body(rig):
        rig.memory.has_replays = True

        async def delivers(_delivery):
            return None

        rig.handle(delivers)
        rig.replay()
        await rig.engine.start()
        await rig.until(lambda: rig.memory.dlq_rows[0]["state"] == "resolved", seconds=0.5)
        assert rig.store.count("postpone") == rig.store.count("recheck_letters") == 0

    lacking(body, dead_letters=True)
