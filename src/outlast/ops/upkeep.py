"""What the desk does by itself: end replays that nobody ended, delete what was kept long enough.

In: a desk, an actor, a bell that says stop. Out: nothing; it never fails. A database that is away,
a role that may not write, a table that lacks columns: one log line when that begins, one when it is
over, and longer pauses between. Several processes may do this at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from outlast.model.errors import Disconnected, OutcomeUnknown, RowLocked, TryLater
from outlast.ops.actor import Actor
from outlast.ops.desk import Desk
from outlast.ops.refusals import DeskError
from outlast.policy import jitter
from outlast.policy.neutral_text import neutral_text

EVERY_SECONDS = 5.0
PAUSE_MAX_SECONDS = 60.0

PASS_SECONDS = 60.0
"""A pass that takes longer is given up: a server that does not answer must not hold it for ever."""

STOP_SECONDS = 5.0
"""How long a pass may go on when it is asked to stop."""

_BITES = 20
"""Sweeps of one pass, while each finds as much as it may take."""

_SPREAD = 0.2
_SAID_CHARS_MAX = 500

_AWAY = (Disconnected, TryLater, OutcomeUnknown, RowLocked, TimeoutError, OSError)
"""What goes by without anybody doing anything here."""

logger = logging.getLogger("outlast.upkeep")


async def upkeep(
    desk: Desk, actor: Actor, stop: asyncio.Event, *, every: float = EVERY_SECONDS
) -> None:
    """Until `stop` is set. Needs the scopes `replay` and `discard`."""

    async def sweep() -> None:
        for _ in range(_BITES):
            if await desk.sweep(actor) < desk.options.chunk:
                return

    async def reconcile() -> None:
        await desk.reconcile(actor)

    rounds = _Rounds(
        [
            _Chore("end replays of unknown outcome", reconcile, every),
            _Chore("delete what was kept long enough", sweep, every),
        ],
        every,
    )
    work, stopped = asyncio.create_task(rounds.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        rounds.is_over = True
        if rounds.is_busy:
            await asyncio.wait({work}, timeout=STOP_SECONDS)
    finally:
        work.cancel()
        stopped.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)


class _Chore:
    """One thing to do, and whether it can be done at all."""

    def __init__(self, what: str, do: Callable[[], Awaitable[None]], every: float) -> None:
        self._what = what
        self._do = do
        self._every = self._pause = every
        self._due = 0.0
        self._told: type[BaseException] | None = None

    async def turn(self) -> None:
        """Do it, if its time has come. Raises only what concerns the other chores too."""
        clock = asyncio.get_running_loop().time
        if clock() < self._due:
            return
        try:
            await self._do()
        except Exception as error:
            # some refusals of the desk are errors of the system by type
            if isinstance(error, _AWAY) and not isinstance(error, DeskError):
                raise
            self._pause = min(self._pause * 2, PAUSE_MAX_SECONDS)
            self._due = clock() + self._pause
            self._tell(error)
        else:
            if self._told is not None:
                logger.info("upkeep can %s again", self._what)
            self._told, self._pause = None, self._every

    def _tell(self, error: Exception) -> None:
        if self._told is not type(error):
            self._told = type(error)
            logger.warning("upkeep cannot %s: %s", self._what, _said(error))
            logger.debug("why upkeep cannot %s", self._what, exc_info=error)


class _Rounds:
    """All chores, again and again."""

    def __init__(self, chores: Sequence[_Chore], every: float) -> None:
        self._chores = chores
        self._every = every
        self.is_busy = False
        self.is_over = False

    async def run(self) -> None:
        """Until it is over, or cancelled."""
        pause, is_away = self._every, False
        while not self.is_over:
            self.is_busy = True
            try:
                async with asyncio.timeout(PASS_SECONDS):
                    for chore in self._chores:
                        await chore.turn()
            except _AWAY as error:
                pause = min(pause * 2, PAUSE_MAX_SECONDS)
                if not is_away:
                    logger.warning("upkeep waits for the database: %s", _said(error))
                is_away = True
            else:
                if is_away:
                    logger.info("upkeep goes on: the database is back")
                pause, is_away = self._every, False
            self.is_busy = False
            if not self.is_over:
                # so that several processes do not come at the same instant for ever
                await asyncio.sleep(jitter.spread(pause, _SPREAD))


def _said(error: BaseException) -> str:
    sentence = str(error).partition("\n")[0] or f"no answer in {PASS_SECONDS:g} seconds"
    remedy = error.remedy if isinstance(error, DeskError) and error.remedy else ""
    whole = f"{sentence} ({remedy})" if remedy else sentence
    return neutral_text(whole[:_SAID_CHARS_MAX])
