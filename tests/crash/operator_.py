"""An operator process: works the desk at random until it is killed or told to stop.

Every act is written down. What the desk refuses is fine; what it cannot explain is not.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from outlast.model.edit import Edit
from outlast.model.errors import Disconnected, RowLocked, StoreFailure
from outlast.ops import SCOPES, Actor, Desk, DeskError, DeskOptions
from outlast.ops.replaying import ReplayOptions
from outlast.policy.filter_text import parse
from tests.crash.scene import Scene, dlq, outbox

MEND = Edit(patch=({"op": "replace", "path": "/k", "value": "ok"},))
"""What makes a message deliverable."""

LISTED = 60


class Operator:
    """One act after the other."""

    def __init__(self, scene: Scene, desk: Desk) -> None:
        self._desk = desk
        self._random = random.Random(os.getpid())
        self._me = Actor(f"operator-{os.getpid()}", SCOPES)
        self._ledger = scene.ledger()
        self._acts: list[tuple[int, str, Callable[[], Awaitable[Any]]]] = [
            (20, "replay", self._replay),
            (6, "replay all", self._replay_all),
            (8, "mend", self._mend),
            (5, "mend and replay", self._mend_and_replay),
            (8, "discard", self._discard),
            (8, "restore", self._restore),
            (1, "erase", self._erase),
            (12, "recall", self._recall),
            (1, "cancel", self._cancel),
            (4, "mark", self._mark),
            (3, "sweep", self._sweep),
            (3, "reconcile", self._reconcile),
        ]

    async def run(self, over: asyncio.Event) -> None:
        self._ledger.write("operator ready")
        weights = [weight for weight, _, _ in self._acts]
        while not over.is_set():
            _, name, act = self._random.choices(self._acts, weights)[0]
            try:
                done = await act()
            except (DeskError, RowLocked, Disconnected) as refusal:
                self._ledger.write("refused", act=name, why=str(refusal)[:200])
            except StoreFailure as failure:
                # two writers on one file, or the row is in somebody's hands: it says so
                self._ledger.write("refused", act=name, why=repr(failure)[:200])
            else:
                if done:
                    self._ledger.write("act", act=name, done=done)
            await asyncio.sleep(self._random.uniform(0.0, 0.03))

    async def _some(self, filter_text: str, most: int) -> list[int]:
        page = await self._desk.list(self._me, _query(filter_text), limit=LISTED)
        ids = [letter.id for letter in page.letters]
        return self._random.sample(ids, min(len(ids), self._random.randint(1, most)))

    async def _replay(self) -> int:
        ids = await self._some("state:open", 8)
        force = self._random.random() < 0.2
        way = ReplayOptions(force=force, reason="at random" if force else None)
        return (await self._desk.replay(self._me, ids, way)).replayed

    async def _replay_all(self) -> int:
        bulk = await self._desk.replay_all(self._me, everything=True, most=40)
        return bulk.replayed

    async def _mend(self) -> int:
        done = 0
        for letter_id in await self._some("state:open", 3):
            done += (await self._desk.edit(self._me, letter_id, MEND)).revision > 0
        return done

    async def _mend_and_replay(self) -> int:
        ids = await self._some("state:open", 5)
        return (await self._desk.replay(self._me, ids, ReplayOptions(edit=MEND))).replayed

    async def _discard(self) -> int:
        return (await self._desk.purge(self._me, await self._some("state:open", 5))).done

    async def _restore(self) -> int:
        return (await self._desk.restore(self._me, await self._some("state:discarded", 5))).done

    async def _erase(self) -> int:
        ids = await self._some("state:any", 1)
        return (await self._desk.purge(self._me, ids, hard=True)).done

    async def _recall(self) -> int:
        return await self._take_back("replaying", 6, "recalled")

    async def _cancel(self) -> int:
        return await self._take_back("pending", 1, "cancelled")

    async def _take_back(self, state: str, most: int, wanted: str) -> int:
        page = await self._desk.outbox_list(self._me, limit=500)
        ids = [row.id for row in page.rows if row.state == state]
        some = self._random.sample(ids, min(len(ids), most))
        return sum(
            answer.outcome == wanted for answer in await self._desk.outbox_cancel(self._me, some)
        )

    async def _mark(self) -> int:
        ids = await self._some("state:escalated", 10)
        if not ids:
            ids = await self._some("state:open state:needs_review", 3)
        reopen = self._random.random() < 0.8
        bulk = await self._desk.mark(self._me, ids, reopen=reopen, review=not reopen)
        return bulk.done

    async def _sweep(self) -> int:
        return await self._desk.sweep(self._me)

    async def _reconcile(self) -> int:
        await self._desk.reconcile(self._me)
        return 1


def _query(filter_text: str) -> Any:
    return parse(filter_text, now=datetime.now(UTC))


async def main(scene: Scene, role: dict[str, Any]) -> None:
    """Until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    database = scene.engine()
    options = DeskOptions(
        keep_discarded_seconds=role["kept"], lease_seconds=scene.lease, replays_max=3
    )
    await Operator(scene, Desk(database, outbox, dlq, options=options)).run(over)
    await database.dispose()
