"""Between the engine and its store: writes down what every statement did, and springs the trap.

The trap strikes once or more at a chosen stage and count: SIGKILL of this very process, or
pg_terminate_backend of the line that is at work.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from outlast.model.delivery import Answer, Claim
from tests.crash.ledger import Ledger

STAGES = ("claimed", "handling", "handled", "settling", "settled")
"""Where a worker is killed: after the claim, in the handler, after it, during and after settle."""

LINES = ("claims", "settles", "letters", "listen")
"""Which backend is terminated."""


class Trap:
    """What happens at which stage and count. Without a stage it never strikes."""

    def __init__(
        self, ledger: Ledger, stage: str | None = None, at: Sequence[int] = (), dsn: str = ""
    ) -> None:
        self._ledger = ledger
        self._stage = stage
        self._at = set(at)
        self._dsn = dsn
        self._counts: Counter[str] = Counter()
        self._random = random.Random(os.getpid())
        self.struck = 0

    def is_due(self, stage: str) -> bool:
        self._counts[stage] += 1
        return stage == self._stage and self._counts[stage] in self._at

    def kill(self, stage: str) -> None:
        """This process ends here, without any cleaning up."""
        self._ledger.write("fault", kind=f"kill {stage}")
        os.kill(os.getpid(), signal.SIGKILL)

    def reach(self, stage: str) -> None:
        if self.is_due(stage):
            self.kill(stage)

    async def through(self, line: str, wires: Any, call: Awaitable[Any]) -> Any:
        """A statement, maybe with its backend terminated meanwhile."""
        if not self.is_due(line):
            return await call
        self.struck += 1
        self._ledger.write("fault", kind=f"terminate {line}")
        pid = wires["claims" if line == "listen" else line].last_pid
        # before it is sent, while it runs, or after it has ended
        moment = self._random.choice([0.0, 0.0005, 0.002])
        side = await asyncpg.connect(self._dsn)
        try:
            statement = asyncio.ensure_future(call)
            if moment:
                await asyncio.sleep(moment)
            await side.execute("select pg_terminate_backend($1)", pid)
            return await statement
        finally:
            await side.close()

    async def maybe_killed_during(self, call: Awaitable[Any]) -> Any:
        if not self.is_due("settling"):
            return await call
        statement = asyncio.ensure_future(call)
        await asyncio.wait({statement}, timeout=self._random.uniform(0.0, 0.003))
        self.kill("settling")


class HookedStore:
    """Delegates everything; claims and settles go through the ledger and the trap."""

    def __init__(self, inner: Any, ledger: Ledger, trap: Trap) -> None:
        self._inner = inner
        self._ledger = ledger
        self._trap = trap
        wires = getattr(inner, "_wires", None)
        if wires is not None:
            listen = inner._listen
            inner._listen = lambda: trap.through("listen", wires, listen())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _sent(self, line: str, call: Awaitable[Any]) -> Any:
        wires = getattr(self._inner, "_wires", None)
        return await self._trap.through(line, wires, call) if wires else await call

    # -- claims

    async def claim(self, wanted: Any, limit: int, token: UUID, timeout: float) -> Claim:
        call = self._inner.claim(wanted, limit, token, timeout)
        return self._claimed(await self._sent("claims", call))

    async def take_over(self, rows: Any, token: UUID, timeout: float) -> Claim:
        call = self._inner.take_over(rows, token, timeout)
        return self._claimed(await self._sent("claims", call))

    async def read_back(self, queues: Any, token: UUID, timeout: float) -> tuple[Claim, bool]:
        claim, final = await self._inner.read_back(queues, token, timeout)
        return self._claimed(claim), final

    def _claimed(self, claim: Claim) -> Claim:
        if claim.rows:
            rows = [[row.id, row.token.hex] for row in claim.rows]
            self._ledger.write("claimed", rows=rows)
            self._trap.reach("claimed")
        return claim

    # -- settles

    async def ack(self, pairs: Any, timeout: float, *, skip: bool = False) -> Answer:
        return await self._settle("ack", pairs, self._inner.ack(pairs, timeout, skip=skip))

    async def release(self, pairs: Any, timeout: float, *, skip: bool = False) -> Answer:
        return await self._settle("release", pairs, self._inner.release(pairs, timeout, skip=skip))

    async def retry(self, entries: Any, timeout: float, *, skip: bool = False) -> Answer:
        pairs = [(entry.id, entry.token) for entry in entries]
        return await self._settle("retry", pairs, self._inner.retry(entries, timeout, skip=skip))

    async def bury(self, letters: Any, timeout: float, *, skip: bool = False) -> Answer:
        pairs = [(letter.id, letter.token) for letter in letters]
        call = self._inner.bury(letters, timeout, skip=skip)
        return await self._settle("bury", pairs, call, line="letters")

    async def _settle(
        self, what: str, pairs: Any, call: Awaitable[Answer], *, line: str = "settles"
    ) -> Answer:
        group = [[row_id, token.hex] for row_id, token in pairs]
        sent = time.monotonic()
        self._ledger.write("settling", what=what, rows=group)
        answer: Answer = await self._trap.maybe_killed_during(self._sent(line, call))
        absent = {*answer.lost, *answer.held}
        landed = [[i, token.hex] for i, token in pairs if (i, token) not in absent]
        lost = [[i, token.hex] for i, token in answer.lost]
        self._ledger.write("settled", what=what, rows=landed, lost=lost, sent=sent)
        self._trap.reach("settled")
        return answer
