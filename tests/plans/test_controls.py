"""The bounds can be broken: statements and settings with known defects are found out."""

from functools import partial
from uuid import uuid4

import pytest

from outlast.stores.postgres import settles
from tests.plans import hot
from tests.plans.explain import PLANNINGS, SECONDS, measured_line
from tests.plans.tables import fill

ROWS = 100_000


def planted(sql, sound, defect):
    """The statement with a defect in place of what is sound."""
    assert sound in sql
    return sql.replace(sound, defect)


async def found_out(engine, filled, measured, *, settled=True):
    """Whether some planning breaks the bounds."""
    async with measured_line(engine, settled=settled) as line:
        for line.planning in PLANNINGS:
            if measured.faults(await line.measure(measured.send)):
                return True
    return False


@pytest.mark.parametrize("statistics", ["empty", "vacuumed"])
def test_without_the_settings_a_claim_reads_the_table(lonely, statistics):
    async def body(engine):
        filled = await fill(engine, "ready", statistics, rows=ROWS)
        claim = hot.claim(filled, 100)
        assert not await found_out(engine, filled, claim)
        assert await found_out(engine, filled, claim, settled=False)

    lonely.run(body)


CLAIM_DEFECTS = {
    "by id": ("order by o.next_attempt_at, o.id", "order by o.id"),
    "no limit inside": ("limit q.n for update", "for update"),
    "expired ones too": (
        "and o.acquired_token is null",
        "and (o.acquired_token is null or o.acquired_at < now() - interval '1 hour')",
    ),
    "token in the recheck": ("and t.acquired_at is null", "and t.acquired_token is null"),
    "located by id": ("t.ctid = any(array(select r.ctid", "t.id in (select r.id"),
}


@pytest.mark.parametrize("defect", CLAIM_DEFECTS)
def test_a_defect_in_the_claim_is_found_out(lonely, defect):
    async def body(engine):
        filled = await fill(engine, "ready", "vacuumed", rows=ROWS)
        claim = hot.claim(filled, 100)
        sound, bad = CLAIM_DEFECTS[defect]
        sql = planted(filled.statements.claim, sound, bad)
        if defect == "located by id":
            sql = planted(sql, "select o.ctid", "select o.id")
            sql = planted(sql, "r limit $4))", "r limit $4)")
        filled.statements.claim = sql
        assert await found_out(engine, filled, claim)

    lonely.run(body)


SETTLE_DEFECTS = {
    "the plain token": (
        "ack",
        "coalesce(t.acquired_token, '00000000-0000-0000-0000-000000000000'::uuid)",
        "t.acquired_token",
    ),
}


def test_zz():
    pass
