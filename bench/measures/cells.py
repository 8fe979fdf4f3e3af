"""Cells of one table: every contender once a round, in an order shuffled anew."""

import os
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bench.contenders import Entry
from bench.crew import ContenderError

Cells = dict[str, list[dict[str, Any] | None]]
"""By contender, one answer a round; None where its process ended without one."""


def interleaved(
    what: str, entries: Sequence[Entry], rounds: int, run: Callable[[Entry], dict[str, Any]]
) -> Cells:
    """Run every entry in every round. A broken contender does not end the run."""
    cells: Cells = {entry.name: [] for entry in entries}
    for number in range(rounds):
        order = list(entries)
        random.Random(number).shuffle(order)
        for entry in order:
            try:
                answer = run(entry)
                answer["load"] = os.getloadavg()[0]
                cells[entry.name].append(answer)
            except ContenderError as failure:
                print(f"bench: {failure}", file=sys.stderr)
                cells[entry.name].append(None)
        print(f"bench: {what}, round {number + 1} of {rounds}", flush=True)
    return cells


def values(cells: Cells, name: str, key: str) -> list[float]:
    """What a contender reached in the rounds it finished."""
    return [cell[key] for cell in cells.get(name, ()) if cell is not None]


def median(numbers: Sequence[float]) -> float:
    """0.0 of nothing: a ratio to it is refused by `ratios`."""
    return statistics.median(numbers) if numbers else 0.0


def best(cells: Cells, entries: Sequence[Entry], key: str = "rate", *, least: bool = False) -> str:
    """The setting with the best median."""
    pick = min if least else max
    return pick((e.name for e in entries), key=lambda name: median(values(cells, name, key)))


def ratios(cells: Cells, ours: str, theirs: str, key: str = "rate") -> list[float]:
    """Round by round, ours divided by theirs."""
    return [
        a[key] / b[key]
        for a, b in zip(cells[ours], cells[theirs], strict=True)
        if a is not None and b is not None and b[key]
    ]
