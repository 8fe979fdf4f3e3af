"""The bounds can be broken: statements and settings with known defects are found out."""

from functools import partial

import pytest

from tests.plans import hot
from tests.plans.explain import PLANNINGS, measured_line
from tests.plans.tables import drop, fill

ROWS = 20_000


def planted(sql, sound, defect):
    """The statement with a defect in place of what is sound."""
    assert sound in sql
    return sql.replace(sound, defect)


async def found_out(engine, measure, *, settled=True):
    """Whether the bounds are broken in some planning."""
    async with measured_line(engine, settled=settled) as line:
        for line.planning in PLANNINGS:
            measured = measure()
            if measured.faults(await line.measure(measured.send)):
                return True
    return False


@pytest.mark.parametrize("statistics", ["empty", "vacuumed"])
def test_without_the_settings_a_claim_reads_the_table(lonely, statistics):
    async def body(engine):
        filled = await fill(engine, "ready", statistics, rows=ROWS)
        claim = partial(hot.claim, filled, 100)
        assert not await found_out(engine, claim)
        assert await found_out(engine, claim, settled=False)

    lonely.run(body)


CLAIM_DEFECTS = {
    "in another order": ("order by o.next_attempt_at, o.id", "order by o.id"),
    "no limit for each queue": ("limit q.n for update", "for update"),
    "expired leases too": (
        "and o.acquired_token is null",
        "and (o.acquired_token is null or o.acquired_at < now() - interval '1 hour')",
    ),
    "the token in the recheck": ("and t.acquired_at is null", "and t.acquired_token is null"),
}


@pytest.mark.parametrize("defect", CLAIM_DEFECTS)
def test_a_defect_in_the_claim_is_found_out(lonely, defect):
    async def body(engine):
        found = []
        for statistics in ("empty", "vacuumed"):
            filled = await fill(engine, "ready", statistics, rows=ROWS)
            filled.statements.claim = planted(filled.statements.claim, *CLAIM_DEFECTS[defect])
            found.append(await found_out(engine, partial(hot.claim, filled, 100)))
            await drop(engine)
        assert any(found)

    lonely.run(body)


def ack_by_plain_token(sql):
    sql.ack = planted(
        sql.ack,
        "((t.id, coalesce(t.acquired_token, '00000000-0000-0000-0000-000000000000'::uuid)) in",
        "t.acquired_token = any($2::uuid[]) and ((t.id, t.acquired_token) in",
    )
    return "ack"


def retry_by_join(sql):
    sql.retry_skipping = planted(
        sql.retry_skipping, "t.id = any(array(select l.id from l))", "t.id in (select l.id from l)"
    )
    return "retry skipping"


def ack_by_join(sql):
    sql.ack_skipping = planted(
        sql.ack_skipping,
        "t where t.id = any(array(select l.id from l))",
        "t using l where t.id = l.id",
    )
    return "ack skipping"


@pytest.mark.parametrize("plant", [ack_by_plain_token, ack_by_join])
def test_a_defect_in_a_settle_is_found_out(lonely, plant):
    async def body(engine):
        found = []
        for statistics in ("churned", "vacuumed"):
            filled = await fill(engine, "leased", statistics, rows=ROWS, ours=2 * 10 * 100)
            name = plant(filled.statements)
            settles = iter(())

            def settle():
                return next(m for m in hot.group_settles(filled, 100) if m.name == name)

            found.append(await found_out(engine, settle))
            await drop(engine)
        assert any(found)

    lonely.run(body)


def test_a_take_over_by_join_is_found_out(lonely):
    async def body(engine):
        filled = await fill(engine, "ready", "fresh", rows=ROWS, expired=1_000)
        filled.statements.take_over = planted(
            filled.statements.take_over,
            "where t.id = any(array(select l.id from l))",
            "from l where t.id = any($2::bigint[]) and t.id = l.id",
        )
        assert await found_out(engine, partial(hot.take_over, filled, 500))

    lonely.run(body)
