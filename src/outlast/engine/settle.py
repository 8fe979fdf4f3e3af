"""Settle: one write for each outcome, grouped with what is ready, under the lease's token.

Comes in: rows in hand with their outcome. Goes out: statements on a line, events, and rows that
leave the hand. A verdict is never changed once it was sent: it is sent again, or given up.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from outlast.engine.hand import InHand
from outlast.engine.reconnect import Reconnector
from outlast.engine.verdicts import Kind
from outlast.model.delivery import Answer
from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    OutcomeUnknown,
    RowLocked,
    RowRefused,
    StoreFailure,
    TryLater,
)
from outlast.policy import jitter
from outlast.ports.store import Line

_BACK_OFF_FIRST = 0.1
_BACK_OFF_MOST = 5.0

Duty = tuple[Callable[[], float | None], Callable[[], Awaitable[None]]]
"""What a line does besides, between two statements: when it is due, and how it is done."""


class Lane:
    """One line and the kinds of verdict it writes, in order, one statement at a time."""

    def __init__(
        self,
        line: Line,
        kinds: Sequence[Kind],
        *,
        timeout: Callable[[], float],
        reconnector: Reconnector,
        logger: logging.Logger,
        duties: Sequence[Duty] = (),
    ) -> None:
        self._line: Line = line
        self._kinds = kinds
        self._timeout = timeout
        self._reconnector = reconnector
        self._logger = logger
        self._duties = duties
        self._ready: dict[Kind, deque[InHand]] = {kind: deque() for kind in kinds}
        self._waiting: list[tuple[float, Kind, list[InHand]]] = []
        self._bell = asyncio.Event()
        self._back_off = _BACK_OFF_FIRST

    def put(self, kind: Kind, entry: InHand) -> None:
        """A verdict is ready: it goes with the next statement."""
        self._ready[kind].append(entry)
        if not self._bell.is_set():
            self._bell.set()

    def ring(self) -> None:
        """A duty may be due sooner than it was."""
        self._bell.set()

    def give_up(self) -> None:
        """The line is no more: what still waits leaves the hand, and its lease runs out."""
        for _, kind, entries in self._waiting:
            self._ready[kind].extend(entries)
        self._waiting = []
        for kind, ready in self._ready.items():
            if ready:
                self._logger.warning(
                    "%s of %d rows was not written before the end; their leases run out",
                    kind.name,
                    len(ready),
                )
            while ready:
                kind.left(ready.popleft())

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._pause()
            try:
                await self._do_duties()
                self._bring_back()
                for kind in self._kinds:
                    await self._write_ready(kind)
            except (Disconnected, OutcomeUnknown) as failure:
                await self._restore(failure)
            except Exception:  # a defect here must not end settling
                self._logger.exception("settling on line %r failed unexpectedly", self._line)
                await asyncio.sleep(_BACK_OFF_FIRST)

    async def _restore(self, failure: StoreFailure) -> None:
        if isinstance(failure, OutcomeUnknown) and failure.timed_out:
            return
        await self._reconnector.restore(self._line, failure)

    async def _pause(self) -> None:
        """Until something is ready, a back-off ends, or a duty is due."""
        if any(self._ready.values()):
            # what arrives in this turn of the loop goes with the same statement
            await asyncio.sleep(0)
            return
        self._bell.clear()
        wake_at = [due for due, _, _ in self._waiting]
        wake_at += [at for next_at, _ in self._duties if (at := next_at()) is not None]
        if not wake_at:
            await self._bell.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(wake_at)):
                await self._bell.wait()

    def _bring_back(self) -> None:
        now = asyncio.get_running_loop().time()
        still: list[tuple[float, Kind, list[InHand]]] = []
        for due, kind, entries in self._waiting:
            if due <= now:
                self._ready[kind].extend(entries)
            else:
                still.append((due, kind, entries))
        self._waiting = still

    async def _write_ready(self, kind: Kind) -> None:
        ready = self._ready[kind]
        # what comes meanwhile waits for its next turn: an endless stream of one kind would keep
        # the others waiting
        left = len(ready)
        while left:
            group = [ready.popleft() for _ in range(min(left, kind.group_max(ready[0])))]
            left -= len(group)
            try:
                await self._write(kind, group, skip=any(e.needs_skip for e in group))
            except BaseException as failure:
                # the same verdict under the same token, and no other
                self._again(kind, self._out_of_sight(group), self._pause_after(failure))
                raise
            await self._do_duties()

    def _pause_after(self, failure: BaseException) -> float:
        if isinstance(failure, OutcomeUnknown) and failure.timed_out:
            # whatever it waited for may still be there: others first, and its lease is refreshed
            return self._timeout() / 4
        # at once when the line stands again, later after a defect of ours
        return 0.0 if isinstance(failure, StoreFailure) else _BACK_OFF_MOST

    def _out_of_sight(self, group: Sequence[InHand]) -> list[InHand]:
        """Those that are in hand and wait nowhere."""
        waiting = {entry for _, _, entries in self._waiting for entry in entries}
        return [e for e in group if e in e.subscription.hand and e not in waiting]

    async def _do_duties(self) -> None:
        for next_at, do in self._duties:
            at = next_at()
            if at is not None and asyncio.get_running_loop().time() >= at:
                await do()

    async def _write(self, kind: Kind, group: list[InHand], *, skip: bool) -> None:
        if skip and kind.one_by_one_when_locked and len(group) > 1:
            await self._write_singly(kind, group, skip=True)
            return
        try:
            answer = await self._send(kind, group, skip)
        except RowLocked as failure:
            if skip:
                # not even with SKIP LOCKED: the table is locked
                self._later(kind, group, failure)
            else:
                await self._write(kind, group, skip=True)
        except RowRefused as failure:
            if len(group) == 1:
                kind.give_up(group[0], failure)
            else:
                await self._write_singly(kind, group, skip=skip)
        except StoreFailure as failure:
            self._failed(kind, group, failure)
        else:
            if not answer.held:
                self._back_off = _BACK_OFF_FIRST
            self._landed(kind, group, answer)

    async def _write_singly(self, kind: Kind, group: list[InHand], *, skip: bool) -> None:
        # what is written leaves the group: whatever ends this repeats the others only, and what
        # could not be written comes behind them
        for _ in range(len(group)):
            entry = group.pop(0)
            try:
                await self._write(kind, [entry], skip=skip)
            except BaseException:
                group.append(entry)
                raise
            await self._do_duties()

    async def _send(self, kind: Kind, group: list[InHand], skip: bool) -> Answer:
        for entry in group:
            entry.in_flight = True
        try:
            return await kind.write(group, self._timeout(), skip)
        except asyncio.CancelledError:
            for entry in group:
                entry.unknown = True
            raise
        finally:
            for entry in group:
                entry.in_flight = False

    def _failed(self, kind: Kind, group: list[InHand], failure: StoreFailure) -> None:
        if isinstance(failure, TryLater):
            self._later(kind, group, failure)
        elif isinstance(failure, CannotWrite):
            for entry in group:
                kind.give_up(entry, failure)
        else:
            if isinstance(failure, OutcomeUnknown):
                for entry in group:
                    entry.unknown = True
                    entry.needs_skip = entry.needs_skip or failure.timed_out
            raise failure

    def _landed(self, kind: Kind, group: list[InHand], answer: Answer) -> None:
        if not answer.lost and not answer.held:
            for entry in group:
                kind.landed(entry)
            return
        lost, held = set(answer.lost), set(answer.held)
        waiting: list[InHand] = []
        for entry in group:
            pair = (entry.delivery.id, entry.delivery.token)
            if pair in held:
                entry.needs_skip = True
                waiting.append(entry)
            elif pair in lost:
                kind.lost(entry)
            else:
                kind.landed(entry)
        if waiting:
            self._later(kind, waiting, None)

    def _later(self, kind: Kind, group: list[InHand], failure: StoreFailure | None) -> None:
        """Again with back-off, for what still has its lease."""
        now = asyncio.get_running_loop().time()
        alive = [entry for entry in group if now < entry.deadline and not entry.lost]
        for entry in group:
            if entry not in alive:
                kind.lost(entry)
        if not alive:
            return
        if failure is not None:
            self._logger.warning("%s of %d rows waits: %s", kind.name, len(alive), failure)
        self._again(kind, alive, jitter.spread(self._back_off, 0.4))
        self._back_off = min(self._back_off * 2, _BACK_OFF_MOST)

    def _again(self, kind: Kind, group: list[InHand], seconds: float) -> None:
        due = asyncio.get_running_loop().time() + seconds
        self._waiting.append((due, kind, group))
