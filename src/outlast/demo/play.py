"""Runs the demo: a database file, the shop at work, the picture, the drain, the proof.

In: `Settings`. Out: the exit status, 0 if the ledger balances. An existing file is never touched.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import FrameType
from typing import Any

from rich.console import Console
from rich.text import Text
from sqlalchemy import URL, case, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outlast.demo import ledger, report
from outlast.demo.meter import Meter, Picture
from outlast.demo.record import Record
from outlast.demo.screen import Screen, make_screen
from outlast.demo.shop import Base, Shop, outbox
from outlast.model.errors import OutlastError

_FRAME_SECONDS = 0.2
_SETTLE_SECONDS = 10.0
"""How long the last retries and timers get, and how far ahead one may lie to be waited for."""
_STOPPING = "stopping; what is in hand is finished"


class CannotKeepFile(OutlastError):  # noqa: N818 - reads as the sentence it becomes
    """The file of `--file` cannot be made."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    seconds: float = 10.0
    rate: float = 50.0
    """Orders per second."""
    file: Path | None = None
    """Where the database is kept; a temporary directory otherwise."""


def run(settings: Settings, console: Console | None = None) -> int:
    """The whole demo; the exit status."""
    console = console or Console(highlight=False)
    with _database(settings.file) as path, _own_log() as log_lines:
        balance = asyncio.run(_Demo(settings, console, path).play())
    if not balance.holds:
        for line in log_lines[:3]:
            console.print(Text(f"  log: {line}", "dim"), soft_wrap=True)
    report.print_next(console, settings.file)
    return 0 if balance.holds else 1


@contextmanager
def _database(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with TemporaryDirectory(prefix="outlast-demo-", ignore_cleanup_errors=True) as directory:
            yield Path(directory) / "shop.db"
        return
    try:
        kept.touch(exist_ok=False)
    except FileExistsError:
        raise CannotKeepFile(
            f"{kept} exists already, and the demo never touches it: delete it or name another"
        ) from None
    except OSError as error:
        raise CannotKeepFile(f"cannot make {kept}: {error.strerror or error}") from None
    yield kept


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _own_log() -> Iterator[list[str]]:
    """Warnings of the library go beside the picture, not through it."""
    logger, lines = logging.getLogger("outlast"), _Lines()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(lines)
    try:
        yield lines.lines
    finally:
        logger.removeHandler(lines)
        logger.propagate = propagate


@contextmanager
def _signals(stop: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) asks to stop; the second does what it always does."""
    former: dict[int, Any] = {}

    def restore() -> None:
        while former:
            signal.signal(*former.popitem())

    def asked(number: int, frame: FrameType | None) -> None:
        del number, frame
        restore()
        stop()

    with suppress(ValueError):  # not in the main thread: nobody presses Ctrl-C here
        for number in (signal.SIGINT, signal.SIGTERM):
            former[number] = signal.signal(number, asked)
    try:
        yield
    finally:
        restore()


class _Demo:
    def __init__(self, settings: Settings, console: Console, path: Path) -> None:
        self._settings = settings
        self._console = console
        self._path = path
        self._record = Record()
        self._meter = Meter()
        self._stop = asyncio.Event()
        self._began = monotonic()
        self._phase = f"orders come in for {settings.seconds:g} s; Ctrl-C stops early"

    async def play(self) -> ledger.Balance:
        """Run the shop, then prove."""
        self._console.print(
            Text.assemble(
                ("outlast demo", "bold"),
                ": a shop, its outbox and its handlers on one SQLite file.\n"
                "An order and its messages are one transaction. Some transactions are rolled\n"
                "back, some handlers fail and are tried again, some messages die.\n",
            )
        )
        engine = create_async_engine(URL.create("sqlite+aiosqlite", database=str(self._path)))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            shop = Shop(engine, self._record, self._meter)
            loop = asyncio.get_running_loop()
            with _signals(lambda: loop.call_soon_threadsafe(self._stop.set)):
                await self._work(engine, shop)
            return await self._prove(shop)
        finally:
            await engine.dispose()

    async def _work(self, engine: AsyncEngine, shop: Shop) -> None:
        with make_screen(self._console, self._settings.seconds) as screen:
            async with shop.broker:
                self._began = monotonic()
                picture = asyncio.create_task(self._show(engine, shop, screen))
                await self._take_orders(shop)
                self._phase = "no more orders; the last retries and timers"
                await self._settle(engine)
                self._phase = _STOPPING
            picture.cancel()
            with suppress(asyncio.CancelledError):
                await picture
            screen.finish(await self._picture(engine, shop, "stopped"))

    async def _take_orders(self, shop: Shop) -> None:
        number, due = 0, monotonic()
        while not self._stop.is_set() and monotonic() - self._began < self._settings.seconds:
            number += 1
            await shop.place(number)
            # a machine that cannot keep up takes fewer orders, it does not catch up in a burst
            due = max(due + 1 / self._settings.rate, monotonic())
            await self._pause(due - monotonic())

    async def _settle(self, engine: AsyncEngine) -> None:
        deadline = monotonic() + _SETTLE_SECONDS
        while not self._stop.is_set() and monotonic() < deadline:
            if not (await self._look(engine)).soon:
                return
            await self._pause(_FRAME_SECONDS)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), max(0.0, seconds))

    async def _show(self, engine: AsyncEngine, shop: Shop, screen: Screen) -> None:
        try:
            while True:
                screen.show(await self._picture(engine, shop))
                await asyncio.sleep(_FRAME_SECONDS)
        except (SystemExit, BrokenPipeError):
            # nobody reads any more: stop as for Ctrl-C, the next line printed ends the process
            self._stop.set()

    async def _picture(self, engine: AsyncEngine, shop: Shop, phase: str | None = None) -> Picture:
        look = await self._look(engine)
        return Picture(
            elapsed=monotonic() - self._began,
            committed=shop.committed,
            delivered=self._meter.delivered,
            retried=self._meter.retried,
            dead=self._meter.dead,
            waiting=look.waiting,
            oldest_seconds=look.oldest_seconds,
            per_second=self._meter.per_second(),
            phase=phase or (_STOPPING if self._stop.is_set() else self._phase),
        )

    async def _look(self, engine: AsyncEngine) -> "_Look":
        now = datetime.now(UTC)
        at = outbox.c.next_attempt_at
        async with engine.connect() as connection:
            row = await connection.execute(
                select(
                    func.count(),
                    func.count(case((at <= now + timedelta(seconds=_SETTLE_SECONDS), 1))),
                    func.min(at),
                )
            )
        waiting, soon, oldest = row.one()
        return _Look(waiting, soon, max(0.0, (now - oldest).total_seconds()) if oldest else 0.0)

    async def _prove(self, shop: Shop) -> ledger.Balance:
        async with shop.sessions() as session:
            found = await report.causes(session)
            stock = await ledger.take_stock(session, self._record, shop.rolled_back)
        balance = ledger.balance(stock)
        report.print_causes(self._console, found)
        report.print_balance(self._console, balance)
        return balance


@dataclass(frozen=True, slots=True)
class _Look:
    waiting: int
    soon: int
    oldest_seconds: float
