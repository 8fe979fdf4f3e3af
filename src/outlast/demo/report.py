"""The last page: the dead letters by cause, the ledger, and what to look at next.

In: a `Balance`, and the dead letters from the database. Out: at most 80 columns of text.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from outlast.demo import shop, steps
from outlast.demo.ledger import Balance
from outlast.demo.screen import WIDTH_MAX

_FRAME = re.compile(
    r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)$', re.MULTILINE
)
_ERROR_WIDTH = 41
_REASONS = {
    "retry_terminal": "the retry strategy gave up",
    "rejected": "the handler raised RejectMessage",
    "undecodable": "the body cannot be read, so no handler saw it",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Dead letters that died alike."""

    count: int
    queue: str
    reason: str
    error: str
    place: str


async def causes(session: AsyncSession) -> list[Cause]:
    """The dead letters, grouped by queue, reason and kind of error; the most frequent first."""
    letter = shop.outbox_dlq.c
    count = func.count().label("count")
    rows = await session.execute(
        select(
            count,
            letter.queue,
            letter.failure_reason,
            letter.error_type,
            func.min(letter.error_message),
            func.min(letter.stack_trace),
        )
        .group_by(letter.queue, letter.failure_reason, letter.error_type)
        .order_by(count.desc(), letter.queue)
    )
    return [
        Cause(count, queue, reason, _error(kind, message), _place(trace))
        for count, queue, reason, kind, message, trace in rows
    ]


def _error(kind: str | None, message: str | None) -> str:
    name = (kind or "no error").rpartition(".")[2]
    first_line = (message or "").partition("\n")[0]
    return f"{name}: {first_line}" if first_line else name


def _place(trace: str | None) -> str:
    """The innermost frame of a stored traceback, in one line."""
    frames = list(_FRAME.finditer(trace or ""))
    if not frames:
        return ""
    frame = frames[-1]
    return f"{Path(frame['file']).name}:{frame['line']} in {frame['function']}"


def print_causes(console: Console, found: list[Cause]) -> None:
    """Why messages died."""
    console.print()
    if not found:
        console.print("No dead letters: the demo was too short for one.", highlight=False)
        return
    console.print(Text("Dead letters, by cause", "bold"))
    table = Table(
        box=box.SIMPLE_HEAD,
        header_style="dim",
        show_edge=False,
        width=min(WIDTH_MAX, console.width),
    )
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("queue", no_wrap=True)
    table.add_column("reason", no_wrap=True)
    table.add_column("error, and where in the code", no_wrap=True, max_width=_ERROR_WIDTH)
    for cause in found:
        error = Text(cause.error, "red")
        if cause.place:
            error.append(f"\n{cause.place}", "dim")
        table.add_row(f"{cause.count:,}", cause.queue, cause.reason, error)
    console.print(table)
    for reason in dict.fromkeys(cause.reason for cause in found):
        if reason in _REASONS:
            console.print(Text(f"{reason}: {_REASONS[reason]}", "dim"))


def print_balance(console: Console, balance: Balance) -> None:
    """The proof."""
    console.print()
    console.print(Text("The ledger", "bold"))
    table = Table(
        box=box.HORIZONTALS, show_header=False, show_edge=False, width=min(WIDTH_MAX, console.width)
    )
    table.add_column("what", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("from", style="dim")
    table.add_row("committed", f"{balance.committed:,}", "the orders table", end_section=True)
    table.add_row("delivered", f"{balance.delivered:,}", "handlers that finished")
    table.add_row("dead", f"{balance.dead:,}", "rows of outbox_dlq")
    table.add_row("waiting", f"{balance.waiting:,}", "rows of outbox", end_section=True)
    table.add_row("together", f"{balance.accounted:,}", "", end_section=True)
    table.add_row("rolled back", f"{balance.rolled_back:,}", "the order service")
    table.add_row("rolled back, yet seen", f"{balance.rolled_back_seen:,}", "handlers and tables")
    table.add_row("delivered again", f"{balance.delivered_again:,}", "allowed: at least once")
    console.print(table)
    console.print()
    if balance.holds:
        console.print(
            Text(
                "It balances: committed = delivered + dead + waiting, message by message,\n"
                "and nobody has seen a message that was rolled back.",
                "green",
            )
        )
        return
    console.print(Text("It does NOT balance. This is a bug; please report it:", "bold red"))
    for finding in balance.findings:
        console.print(Text(f"  {finding}", "red"))


def print_play(console: Console, path: Path, dead: steps.Dead | None) -> None:
    """What to try while the handlers stay at work."""
    console.print()
    if dead is not None:
        console.print(Text("To play with, in another terminal", "bold"))
        steps.print_steps(console, steps.play_steps(path, dead))
        console.print()


def print_next(
    console: Console, path: Path, dead: steps.Dead | None, *, is_temporary: bool
) -> None:
    """Where the letters are, and the commands that work on them."""
    console.print()
    if dead is not None:
        console.print(Text("Work on the dead letters", "bold"))
        console.print(
            Text("No worker runs now. Paste these, one by one or all at once.", "dim"),
            soft_wrap=True,
        )
        steps.print_steps(console, steps.desk_steps(path, dead))
        if dead.has_others:
            console.print()
            console.print(Text("Or mend first, and wait for the outcome", "bold"))
            steps.print_steps(console, steps.live_steps(path))
        console.print()
    stays = f"The database stays in {path}"
    console.print(Text(f"{stays}; to remove it:" if is_temporary else stays), soft_wrap=True)
    if is_temporary:
        console.print(Text(f"  {steps.removal(path)}"), soft_wrap=True)
    code = _readable(Path(shop.__file__))
    console.print(Text(f"The code of this shop, one screen or two: {code}"), soft_wrap=True)


def _readable(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
