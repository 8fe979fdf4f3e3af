"""Runs the demo: a database file, the shop at work, the picture, the drain, the proof.

In: `Settings`. Out: the exit status, 0 if the ledger balances, and a file with dead letters that
stays. An existing file is never touched.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.text import Text
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.demo import ledger, report, steps
from outlast.demo.around import engine_on, new_file, own_log, run_to_the_end, signals
from outlast.demo.at_work import at_work
from outlast.demo.look import FRAME_SECONDS, SOON_SECONDS, look
from outlast.demo.meter import Meter, Picture
from outlast.demo.record import Record
from outlast.demo.screen import Screen, make_screen
from outlast.demo.shop import FIRST, Base, Shop

_STOPPING = "stopping; what is in hand is finished"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    seconds: float = 10.0
    rate: float = 50.0
    """Orders per second."""
    file: Path | None = None
    """Where the database is; otherwise in a new temporary folder."""
    keep: bool = False
    """Whether the handlers stay at work when the ledger is closed."""


def run(settings: Settings, console: Console | None = None) -> int:
    """The whole demo; the exit status."""
    console = console or Console(highlight=False)
    with new_file(settings.file) as path:
        demo = _Demo(settings, console, path)
        with own_log() as log_lines:
            balance = run_to_the_end(demo.play())
        if not balance.holds:
            for line in log_lines[:3]:
                console.print(Text(f"  log: {line}", "dim"), soft_wrap=True)
        is_kept_up = settings.keep and balance.holds and not demo.was_stopped
        if not is_kept_up:
            report.print_next(console, path, demo.dead, is_temporary=settings.file is None)
            return 0 if balance.holds else 1
        report.print_play(console, path, demo.dead)
    left = at_work(path, FIRST, keep=True, console=console).left
    report.print_next(console, path, left, is_temporary=settings.file is None)
    return 0


class _Demo:
    def __init__(self, settings: Settings, console: Console, path: Path) -> None:
        self._settings = settings
        self._console = console
        self._path = path
        self._record = Record()
        self._meter = Meter()
        self._stop = asyncio.Event()
        self.dead: steps.Dead | None = None
        """The letters that are open at the end."""
        self._began = monotonic()
        self._phase = f"orders come in for {settings.seconds:g} s; Ctrl-C stops early"

    @property
    def was_stopped(self) -> bool:
        """Whether somebody has ended it early."""
        return self._stop.is_set()

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
        engine = engine_on(self._path)
        try:
            loop = asyncio.get_running_loop()
            with signals(lambda: loop.call_soon_threadsafe(self._stop.set)):
                async with engine.begin() as connection:
                    await connection.run_sync(Base.metadata.create_all)
                shop = Shop(engine, self._record, self._meter)
                await self._work(engine, shop)
                self.dead = await steps.dead_in(engine)
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
        deadline = monotonic() + SOON_SECONDS
        while not self._stop.is_set() and monotonic() < deadline:
            if not (await look(engine)).soon:
                return
            await self._pause(FRAME_SECONDS)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), max(0.0, seconds))

    async def _show(self, engine: AsyncEngine, shop: Shop, screen: Screen) -> None:
        try:
            while True:
                screen.show(await self._picture(engine, shop))
                await asyncio.sleep(FRAME_SECONDS)
        except (SystemExit, BrokenPipeError):
            # nobody reads any more: stop as for Ctrl-C, the next line printed ends the process
            self._stop.set()

    async def _picture(self, engine: AsyncEngine, shop: Shop, phase: str | None = None) -> Picture:
        now = await look(engine)
        return Picture(
            elapsed=monotonic() - self._began,
            committed=shop.committed,
            delivered=self._meter.delivered,
            retried=self._meter.retried,
            dead=self._meter.dead,
            waiting=now.waiting,
            oldest_seconds=now.oldest_seconds,
            per_second=self._meter.per_second(),
            phase=phase or (_STOPPING if self._stop.is_set() else self._phase),
        )

    async def _prove(self, shop: Shop) -> ledger.Balance:
        async with shop.sessions() as session:
            found = await report.causes(session)
            stock = await ledger.take_stock(session, self._record, shop.rolled_back)
        balance = ledger.balance(stock)
        report.print_causes(self._console, found)
        report.print_balance(self._console, balance)
        return balance
