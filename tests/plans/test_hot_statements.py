"""At 100,000 rows, whatever the planner was told about the table, a statement costs its batch."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import product

import pytest

from tests.plans import hot
from tests.plans.explain import measured_line
from tests.plans.tables import CHURNED, Filled, fill

ROWS = 100_000
# three measurements of twelve settles, and of take-overs
OURS = 3 * 12 * sum(hot.GROUPS)
EXPIRED = 3 * sum(hot.GROUPS)

WORLDS = [
    *product(("ready", "ahead", "leased", "queues"), ("empty", "churned", "vacuumed", "fresh")),
    ("ready", "in hand"),
    ("ready", "tiny"),
    ("leased", "in hand"),
    ("queues", "tiny"),
]

DEAD_FIRST = CHURNED // 20
"""Who first passes the dead visits their pages (one in about 25 rows) and marks their entries."""
DEAD_MARKED = CHURNED // 100
"""Marked entries still fill pages of the index (200 on each) until a vacuum takes them."""


def looks(filled: Filled) -> list[hot.Measured]:
    walks = [hot.walk(filled, queues) for queues in (1, 100)]
    return [*walks, *(hot.peek(filled, queues) for queues in (1, 10, 100))]


def claims(filled: Filled, shape: str) -> Iterator[hot.Measured]:
    if shape == "queues":
        yield from (hot.claim(filled, 10), hot.claim(filled, 80))
        yield from (hot.claim(filled, 1, 100), hot.claim(filled, 4, 100))
        yield hot.claim(filled, 1, 1_000)
    else:
        yield from (hot.claim(filled, size) for size in hot.GROUPS)


def settles(filled: Filled) -> Iterator[hot.Measured]:
    for size in hot.GROUPS:
        yield hot.take_over(filled, size)
        yield from hot.group_settles(filled, size)


@pytest.mark.parametrize(("shape", "statistics"), WORLDS)
def test_a_statement_costs_what_its_batch_costs(lonely, shape, statistics):
    """T10: claim, look, take-over and every settle, plain and passing over locked rows, of 10, 100
    and 500 rows: O(batch) buffers, no scan of the table. The plan is generic, made while the table
    was empty and kept; or made now, generic or custom."""
    first, dead = (DEAD_FIRST, DEAD_MARKED) if statistics == "churned" else (0, 0)

    async def body(engine):
        async with AsyncExitStack() as opened:
            lines = [await opened.enter_async_context(measured_line(engine)) for _ in range(3)]
            early, generic = lines[0], lines[1]
            early.planning = generic.planning = "force_generic_plan"

            async def plan_early(nobody):
                for measured in (*looks(nobody), *claims(nobody, shape), *settles(nobody)):
                    await early.measure(measured.send)

            filled = await fill(
                engine,
                shape,
                statistics,
                rows=ROWS,
                ours=OURS,
                expired=EXPIRED,
                while_empty=plan_early,
            )
            faults = []
            # looks before anything is written: what is rolled back leaves dead entries too
            for line in lines:
                allowed = first if line is early else dead
                for measured in looks(filled):
                    faults += measured.faults(await line.measure(measured.send), allowed)
            for line in lines:
                for measured in (*claims(filled, shape), *settles(filled)):
                    faults += measured.faults(await line.measure(measured.send), dead)
        assert not faults, "\n".join(faults)

    lonely.run(body)
