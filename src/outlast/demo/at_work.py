"""Handlers at work on a kept file: the corrected ones, or those of the demo to play with.

In: the file, which handlers, and whether they stay. Out: what became of the letters that were sent
again, and an exit status: 1 if one failed again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from outlast.demo import steps
from outlast.demo.around import earlier_file, engine_on, own_log, run_to_the_end, signals
from outlast.demo.look import FRAME_SECONDS, look
from outlast.demo.record import Record
from outlast.demo.shop import FIXED, WHAT_IS_FIXED, Shop, outbox_dlq
from outlast.model.query import LISTED_STATES, REPLAYING, RESOLVED

_STATES = {RESOLVED: "delivered", REPLAYING: "waiting"} | dict.fromkeys(LISTED_STATES, "dead again")


@dataclass(slots=True)
class Outcome:
    """Letters that were sent again, by queue and by where they are now."""

    sent: dict[str, Counter[str]] = field(default_factory=dict)
    besides: int = 0
    """Other messages that were delivered."""
    left: steps.Dead | None = None
    """The letters that are open now."""

    @property
    def dead_again(self) -> int:
        """Letters that failed once more."""
        return sum(counts["dead again"] for counts in self.sent.values())


def run_fixed(file: Path | None, *, keep: bool, console: Console | None = None) -> int:
    """The corrected handlers on the file of an earlier demo."""
    console = console or Console(highlight=False)
    path = earlier_file(file)
    console.print(Text.assemble(("outlast demo --fixed", "bold"), ": what version 1.1 corrects"))
    for queue, what in WHAT_IS_FIXED.items():
        console.print(Text(f"  {queue:<10}{what}"))
    outcome = at_work(path, FIXED, keep=keep, console=console)
    return 1 if outcome.dead_again else 0


def at_work(path: Path, version: str, *, keep: bool, console: Console) -> Outcome:
    """These handlers, until nothing is due any more or, with `keep`, until Ctrl-C."""
    how_long = "until Ctrl-C" if keep else "until nothing is due"
    said = Text(f"Version {version} of the handlers is at work on {path} {how_long}.")
    with own_log():
        work = _serve(path, version, lambda: console.print(said, soft_wrap=True), keep=keep)
        outcome = run_to_the_end(work)
    _print_outcome(console, path, outcome)
    return outcome


async def _serve(path: Path, version: str, begun: Callable[[], None], *, keep: bool) -> Outcome:
    record, stop = Record(), asyncio.Event()
    loop = asyncio.get_running_loop()
    engine = engine_on(path)
    try:
        shop = Shop(engine, record, version=version)
        with signals(lambda: loop.call_soon_threadsafe(stop.set)):
            async with shop.sessions() as session:
                sent = await _being_replayed(session)
            async with shop.broker:
                begun()
                while not stop.is_set() and (keep or (await look(engine)).soon):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), None if keep else FRAME_SECONDS)
            async with shop.sessions() as session:
                touched, finished = sent | set(record.begun), set(record.finished)
                outcome = await _outcome(session, touched, finished)
            outcome.left = await steps.dead_in(engine)
            return outcome
    finally:
        await engine.dispose()


async def _being_replayed(session: AsyncSession) -> set[str]:
    found = select(outbox_dlq.c.message_id).where(outbox_dlq.c.state == REPLAYING)
    return set(await session.scalars(found))


async def _outcome(
    session: AsyncSession, touched: AbstractSet[str], finished: AbstractSet[str]
) -> Outcome:
    letter = outbox_dlq.c
    replayed = select(letter.message_id, letter.queue, letter.state).where(letter.replay_count > 0)
    outcome, letters = Outcome(), set()
    for message_id, queue, state in await session.execute(replayed):
        if message_id in touched and state in _STATES:
            outcome.sent.setdefault(queue, Counter())[_STATES[state]] += 1
            letters.add(message_id)
    outcome.besides = len(finished - letters)
    return outcome


def _print_outcome(console: Console, path: Path, outcome: Outcome) -> None:
    console.print()
    if outcome.sent:
        console.print(Text("What became of the dead letters that were sent again", "bold"))
        table = Table(box=box.SIMPLE_HEAD, header_style="dim", show_edge=False)
        table.add_column("queue", no_wrap=True)
        names = ("delivered", "dead again", "waiting")
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        for queue, counts in sorted(outcome.sent.items()):
            table.add_row(queue, *(f"{counts[name]:,}" for name in names))
        console.print(table)
    else:
        console.print(Text("No dead letter was sent again. This sends them:"))
        for line in steps.lines(
            ("dlq", "replay-all", "-reason:undecodable", "--yes"), ("--dsn", str(path))
        ):
            console.print(Text(line), soft_wrap=True)
    if outcome.besides:
        console.print(Text(f"Delivered besides: {outcome.besides:,} other message(s).", "dim"))
