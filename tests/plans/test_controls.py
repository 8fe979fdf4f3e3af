"""The bounds can be broken: settings left out and planted defects are found out."""

from contextlib import AsyncExitStack

import pytest

from tests.plans import hot
from tests.plans.explain import measured_line
from tests.plans.tables import drop, fill

ROWS = 20_000


def a_claim(filled):
    return hot.claim(filled, 100)


def a_take_over(filled):
    return hot.take_over(filled, 500)


def a_settle(name):
    return lambda filled: next(m for m in hot.group_settles(filled, 100) if m.name == name)


def sound(_statements):
    """No defect."""


def replaced(name, right, wrong):
    """Plants what is wrong in place of what is right."""

    def plant(statements):
        sql = getattr(statements, name)
        assert right in sql
        setattr(statements, name, sql.replace(right, wrong))

    return plant


async def is_found_out(engine, statistics, plant, choose, *, settled=True, ours=0, expired=0):
    """Whether a bound breaks, with a plan made now or kept from when the table was empty."""
    async with AsyncExitStack() as opened:
        early, generic, _ = lines = [
            await opened.enter_async_context(measured_line(engine, settled=settled))
            for _ in range(3)
        ]
        early.planning = generic.planning = "force_generic_plan"

        async def plan_early(nobody):
            plant(nobody.statements)
            await early.measure(choose(nobody).send)

        filled = await fill(
            engine,
            "ready",
            statistics,
            rows=ROWS,
            ours=ours,
            expired=expired,
            while_empty=plan_early,
        )
        faults = []
        for line in lines:
            measured = choose(filled)
            faults += measured.faults(await line.measure(measured.send))
    await drop(engine)
    return bool(faults)


@pytest.mark.parametrize("statistics", ["empty", "tiny"])
def test_without_the_settings_a_kept_plan_reads_the_table(lonely, statistics):
    """A worker that started beside an empty table keeps the plan for it when 20,000 rows came."""

    async def body(engine):
        assert await is_found_out(engine, statistics, sound, a_claim, settled=False)
        assert not await is_found_out(engine, statistics, sound, a_claim)

    lonely.run(body)


CLAIM_DEFECTS = {
    "another order": ("order by o.next_attempt_at, o.id", "order by o.id"),
    "expired leases too": (
        "and o.acquired_token is null",
        "and (o.acquired_token is null or o.acquired_at < now() - interval '1 hour')",
    ),
    "a recheck of the token": ("and t.acquired_at is null", "and t.acquired_token is null"),
}


@pytest.mark.parametrize("defect", CLAIM_DEFECTS)
def test_a_defect_in_the_claim_is_found_out(lonely, defect):
    plant = replaced("claim", *CLAIM_DEFECTS[defect])

    async def body(engine):
        assert any(
            [await is_found_out(engine, known, plant, a_claim) for known in ("empty", "vacuumed")]
        )

    lonely.run(body)


_LOCKED = "where t.id = any(array(select l.id from l))"
_ZERO = "'00000000-0000-0000-0000-000000000000'::uuid"
SETTLE_DEFECTS = {
    "ack": (
        "((t.id, coalesce(t.acquired_token, " + _ZERO + ")) in (select i, k from",
        "t.acquired_token = any($2) and ((t.id, t.acquired_token) in (select i, k from",
    ),
    "ack skipping": (f"t {_LOCKED}", "t using l where t.id = l.id"),
    "extend skipping": (_LOCKED, "from l where t.id = l.id"),
}


@pytest.mark.parametrize("name", SETTLE_DEFECTS)
def test_a_defect_in_a_settle_is_found_out(lonely, name):
    plant = replaced(name.replace(" ", "_"), *SETTLE_DEFECTS[name])

    async def body(engine):
        assert await is_found_out(engine, "vacuumed", plant, a_settle(name), ours=3_000)

    lonely.run(body)


def test_a_take_over_by_joins_is_found_out(lonely):
    def plant(statements):
        replaced("take_over", "for update skip", "for update of o skip")(statements)
        replaced(
            "take_over",
            "where o.id = any",
            ("join unnest($2::bigint[], $3::float8[]) a(id, ttl) on a.id = o.id where o.id = any"),
        )(statements)
        by_place = "($3::float8[])[array_position($2::bigint[], o.id)]"
        replaced("take_over", by_place, "a.ttl")(statements)
        by_join = "from l where t.id = any($2::bigint[]) and t.id = l.id"
        replaced("take_over", _LOCKED, by_join)(statements)

    async def body(engine):
        assert await is_found_out(engine, "fresh", plant, a_take_over, expired=2_000)

    lonely.run(body)
