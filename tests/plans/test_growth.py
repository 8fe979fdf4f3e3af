"""A larger table makes no statement dearer than one more level of an index does.

`OUTLAST_PLANS_ROWS` makes the larger table larger still.
"""

import os

import pytest

from tests.plans import hot
from tests.plans.explain import PLANNINGS, measured_line
from tests.plans.tables import READY_BEHIND, drop, fill

SMALL = 20_000
LARGE = int(os.environ.get("OUTLAST_PLANS_ROWS", "300000"))
RATIO = 1.3
DESCENTS = 6
"""How often a settle comes down an index for one row: to find it, to write it, to answer."""
OURS = len(PLANNINGS) * 12 * 100


async def costs(engine, shape, rows):
    """Buffers of each statement of 100 rows."""
    filled = await fill(engine, shape, rows=rows, ours=OURS)
    found = {}
    async with measured_line(engine) as line:
        for planning in PLANNINGS:
            line.planning = planning
            queues = 10 if shape == "queues" else 1
            claim = hot.claim(filled, 100 // queues, queues)
            for measured in (claim, *hot.group_settles(filled, 100)):
                found[planning, measured.name] = (await line.measure(measured.send)).buffers
    await drop(engine)
    return found


def allowed(name, small):
    """Of a claim the stated ratio; of a settle one more level of every index it comes down."""
    return RATIO * small if name.startswith("claim") else small + DESCENTS * 100


@pytest.mark.parametrize("shape", ["ready", "ahead", "leased", "queues"])
def test_buffers_do_not_grow_with_the_table(lonely, shape):
    """T10: a claim of 100 costs at most 1.3 times as much, a settle one level of index more."""

    async def body(engine):
        small, large = await costs(engine, shape, SMALL), await costs(engine, shape, LARGE)
        grown = {
            key: (small[key], large[key])
            for key in small
            if large[key] > allowed(key[1], small[key])
        }
        assert not grown, f"buffers at {SMALL} and at {LARGE} rows: {grown}"

    lonely.run(body)


def test_rows_scheduled_ahead_cost_a_claim_nothing(lonely):
    """T14: with 300,000 rows scheduled ahead a claim costs what it costs in a table of that size
    without them (within 5 %), and it finds its rows as fast as where there is nothing else."""

    async def cost(engine, shape, rows):
        filled = await fill(engine, shape, rows=rows)
        found = {}
        async with measured_line(engine) as line:
            for planning in PLANNINGS:
                line.planning = planning
                found[planning] = await line.measure(hot.claim(filled, 100).send)
        await drop(engine)
        return found

    async def body(engine):
        ahead, ready = await cost(engine, "ahead", LARGE), await cost(engine, "ready", LARGE)
        alone = await cost(engine, "ready", READY_BEHIND)
        for planning in PLANNINGS:
            plan = ahead[planning]
            assert plan.buffers == pytest.approx(ready[planning].buffers, rel=0.05)
            assert plan.found_in() == pytest.approx(alone[planning].found_in(), rel=0.05)

    lonely.run(body)
