"""Rows that an operator left in an odd state, on PostgreSQL."""

from sqlalchemy import text

from outlast.model.look import WalkStep
from tests.contract.worlds import TIMEOUT, run_sql


def test_a_row_parked_for_ever_blinds_no_look(postgres):
    """`next_attempt_at = 'infinity'` at the head of a queue: the others are seen, the walk goes."""

    async def body(world):
        async with world.engine.begin() as connection:
            for queue, at in (("parked", "infinity"), ("first", "-infinity")):
                await connection.execute(
                    text(
                        "insert into outbox (queue, payload, next_attempt_at) "
                        f"values ('{queue}', '', '{at}')"
                    )
                )
        await world.add("timer", due_in=60.0)
        dead = await world.add("dead")
        await world.claim("dead")
        await world.age_lease(dead, 100.0)
        names = ["parked", "first", "timer", "dead"]
        walk = [WalkStep(name, 30.0, None, 10) for name in names]
        sight = await world.store.look(names, walk, TIMEOUT)
        assert sight.due["parked"][0] > 1e9
        assert sight.due["first"][0] < 0
        assert 50 < sight.due["timer"][0] <= 60
        assert [w.expired for w in sight.walked if w.queue == "dead"] == [(dead,)]

    run_sql(postgres, body)
