"""At 100,000 rows, whatever the planner was told about the table, a statement costs its batch."""

from collections.abc import Iterator
from itertools import product

import pytest

from tests.plans import hot
from tests.plans.explain import PLANNINGS, measured_line
from tests.plans.tables import CHURNED, Filled, fill

ROWS = 100_000
# two plannings, ten settles plain and skipping; and the take-overs
OURS = len(PLANNINGS) * 10 * sum(hot.GROUPS)
EXPIRED = len(PLANNINGS) * sum(hot.GROUPS)

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
    return [hot.walk(filled, 1), hot.walk(filled, 100), hot.peek(filled, 100)]


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
    """T10: claim, look, take-over and every settle, plain and passing over locked rows, of
    10, 100 and 500 rows, in custom and generic plans: O(batch) buffers, no scan of the table."""

    async def body(engine):
        filled = await fill(engine, shape, statistics, rows=ROWS, ours=OURS, expired=EXPIRED)
        faults = []
        async with measured_line(engine) as line:
            allowed = DEAD_FIRST if statistics == "churned" else 0
            for planning in PLANNINGS:
                line.planning = planning
                # before anything is written: what is rolled back leaves dead entries too
                for measured in looks(filled):
                    faults += measured.faults(await line.measure(measured.send), allowed)
                allowed = DEAD_MARKED if statistics == "churned" else 0
            for planning in PLANNINGS:
                line.planning = planning
                for measured in (*claims(filled, shape), *settles(filled)):
                    faults += measured.faults(await line.measure(measured.send), allowed)
        assert not faults, "\n".join(faults)

    lonely.run(body)
