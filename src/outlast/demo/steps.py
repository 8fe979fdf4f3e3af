"""The commands that are printed at the end: ready to be pasted, in any folder.

In: the file, and what is in it. Out: lines that a shell takes as they stand, with the full paths of
the program and of the file; long ones go on behind a backslash. Nothing is run here.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from shlex import join, quote
from typing import NamedTuple

from rich.console import Console
from rich.text import Text
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.demo.screen import WIDTH_MAX
from outlast.demo.shop import EMAILS, outbox_dlq
from outlast.model.query import OPEN

_INDENT = "    "
_PURGE_REASON = "an old till cut it"
_REPLAY_REASON = "mended in 1.1"


class Step(NamedTuple):
    """One command: what it is for, and its words, in groups that stay on one line."""

    what: str
    words: Sequence[Sequence[str]]


class Dead(NamedTuple):
    """What the commands are about: the id of a letter to look at, and which kinds there are."""

    example: int
    has_unreadable: bool
    has_others: bool


async def dead_in(engine: AsyncEngine) -> Dead | None:
    """The dead letters that are open; None if there are none."""
    letter = outbox_dlq.c
    wanted = (
        select(letter.id, letter.queue, letter.failure_reason)
        .where(letter.state == OPEN)
        .order_by(letter.id)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(wanted)).all()
    if not rows:
        return None
    bugs = [row.id for row in rows if row.queue == EMAILS]
    unreadable = [row.failure_reason == "undecodable" for row in rows]
    return Dead(bugs[0] if bugs else rows[0].id, any(unreadable), not all(unreadable))


def program() -> list[str]:
    """This program, as any shell in any folder finds it."""
    started = Path(sys.argv[0]).absolute()
    if started.stem == "outlast" and started.is_file() and os.access(started, os.X_OK):
        return [str(started)]
    return [sys.executable, "-m", "outlast"]


def lines(*words: Sequence[str]) -> list[str]:
    """The command; no line is longer than the screen if it can be helped."""
    shown: list[str] = []
    line = _INDENT + join(program())
    for group in words:
        part = join(group)
        if len(line) + len(part) + 1 > WIDTH_MAX - 2 and line.strip():
            shown.append(f"{line} \\")
            line = f"{_INDENT}  {part}"
        else:
            line = f"{line} {part}"
    return [*shown, line]


def looking_steps(path: Path, found: Dead) -> list[Step]:
    """They change nothing."""
    where = ("--dsn", str(path))
    return [
        Step("What is dead, the newest first", [("dlq", "list"), where]),
        Step("By cause", [("dlq", "groups"), where]),
        Step(
            "One of them: why, where in the code, the message itself",
            [("dlq", "inspect", str(found.example)), where],
        ),
    ]


def play_steps(path: Path, found: Dead) -> list[Step]:
    """While the handlers that failed are at work."""
    where, one = ("--dsn", str(path)), str(found.example)
    return [
        *looking_steps(path, found),
        Step(
            "The same code gets it again: it is dead again",
            [("dlq", "replay", one, "--wait"), where],
        ),
        Step("Once more: refused, nothing has changed", [("dlq", "replay", one), where]),
        Step("What happened to it", [("dlq", "history", one), where]),
        Step("Who is at work", [("workers", "list"), where]),
    ]


def desk_steps(path: Path, found: Dead) -> list[Step]:
    """From a file full of dead letters to one without."""
    where = ("--dsn", str(path))
    steps = looking_steps(path, found)
    if found.has_unreadable:
        steps.append(
            Step(
                "Nobody can read these and no code can mend that, so put them away",
                [
                    ("dlq", "purge", "reason:undecodable", "--yes"),
                    ("--reason", _PURGE_REASON),
                    where,
                ],
            )
        )
    if found.has_others:
        steps += [
            Step(
                "Send the others again (they wait for a worker)",
                [
                    ("dlq", "replay-all", "-reason:undecodable", "--yes"),
                    ("--reason", _REPLAY_REASON),
                    where,
                ],
            ),
            Step(
                "Mend: version 1.1 of the handlers takes them, and tells what becomes of them",
                [("demo", "--fixed"), ("--file", str(path))],
            ),
        ]
    return [*steps, Step("Look again", [("dlq", "list"), where])]


def live_steps(path: Path) -> list[Step]:
    """The same beside a worker that stays."""
    return [
        Step("in one terminal", [("demo", "--fixed", "--keep"), ("--file", str(path))]),
        Step(
            "in another",
            [
                ("dlq", "replay-all", "-reason:undecodable", "--yes", "--wait"),
                ("--dsn", str(path)),
            ],
        ),
    ]


def print_steps(console: Console, steps: Iterable[Step]) -> None:
    """What each is for, as a comment of the shell, and the command."""
    for step in steps:
        console.print(Text(f"  # {step.what}", "dim"), soft_wrap=True)
        for line in lines(*step.words):
            console.print(Text(line), soft_wrap=True)


def removal(path: Path) -> str:
    """How to remove a folder of the demo's own."""
    return f"rm -r {quote(str(path.parent))}"
