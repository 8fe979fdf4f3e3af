"""A look costs its chunk, its queues and the dead entries it passes; it holds no snapshot."""

from contextlib import asynccontextmanager

from outlast.engine.look import LEASES_PER_WALK
from outlast.model.look import WalkStep
from outlast.stores.postgres import claims
from tests.plans import hot
from tests.plans.explain import PLANNINGS, SECONDS, measured_line
from tests.plans.tables import CHURNED, fill, vacuum
from tests.plans.test_hot_statements import DEAD_FIRST, ROWS, settles


@asynccontextmanager
async def held_snapshot(engine):
    """A transaction somebody forgot: what died after it began cannot be removed."""
    async with engine.connect() as connection:
        old = await connection.execution_options(isolation_level="REPEATABLE READ")
        await old.exec_driver_sql("SELECT 1")
        yield


def test_each_chunk_of_a_walk_costs_its_chunk(lonely):
    """100,000 live leases are walked 1,000 at a time; a later chunk costs what the first
    does, and together they pass every lease once."""

    async def body(engine):
        filled = await fill(engine, "leased", rows=ROWS, expired=10)
        async with measured_line(engine) as line:
            place, expired, chunks = None, [], 0
            while chunks == 0 or place is not None:
                measured = hot.walk(filled, 1, after=place)
                if chunks in {0, 1, 50, 99}:
                    for line.planning in PLANNINGS:
                        plan = await line.measure(measured.send)
                        assert not measured.faults(plan)
                        assert plan.passed("outbox") == LEASES_PER_WALK
                step = WalkStep("q0", hot.TTL, place, LEASES_PER_WALK)
                sight = await claims.look(line.answering(), filled.statements, (), [step], SECONDS)
                (walked,) = sight.walked
                expired += walked.expired
                place, chunks = walked.after, chunks + 1
        assert chunks == ROWS // LEASES_PER_WALK + 1
        assert sorted(expired) == sorted(filled.expired)

    lonely.run(body)


def test_a_held_snapshot_costs_the_dead_entries_it_keeps(lonely):
    """F-B15: behind 80,000 dead messages that a forgotten transaction keeps, claim and look cost
    those entries and no more, settles nothing; without it they cost their batch."""

    async def body(engine):
        ours = 2 * 12 * sum(hot.GROUPS)
        expired = 2 * sum(hot.GROUPS)
        async with held_snapshot(engine):
            filled = await fill(engine, "ready", "churned", rows=20_000, ours=ours, expired=expired)
            await measure(engine, filled, passed=DEAD_FIRST + CHURNED // 100)
        # what the measurements above wrote and rolled back goes too
        await vacuum(engine, "TRUNCATE off")
        await measure(engine, filled, passed=0)

    async def measure(engine, filled, *, passed):
        faults, most = [], 0
        async with measured_line(engine) as line:
            for measured in (
                hot.peek(filled, 100),
                hot.walk(filled, 100),
                *(hot.claim(filled, size) for size in hot.GROUPS),
                *settles(filled),
            ):
                plan = await line.measure(measured.send)
                faults += measured.faults(plan, passed)
                if measured.passes_dead:
                    most = max(most, plan.buffers - measured.bound)
        assert not faults, "\n".join(faults)
        # the dead were there
        assert (most > 0) == (passed > 0)

    lonely.run(body)


def test_a_look_holds_no_snapshot(lonely):
    """After each of its statements the connection is idle and keeps nothing alive."""

    async def body(engine):
        filled = await fill(engine, "leased", rows=3_000)
        steps = [WalkStep("q0", hot.TTL, None, 1_000)]
        async with measured_line(engine) as line, engine.connect() as other:
            pid = line.connection.get_server_pid()

            async def state():
                answer = await other.exec_driver_sql(
                    f"SELECT state, backend_xmin IS NULL FROM pg_stat_activity WHERE pid = {pid}"
                )
                found = tuple(answer.one())
                await other.rollback()
                return found

            seen = []

            class Watched:
                async def fetch(self, *arguments):
                    rows = await line.answering().fetch(*arguments)
                    seen.append(await state())
                    return rows

            await claims.look(Watched(), filled.statements, ["q0"], steps, SECONDS)
            assert seen == [("idle", True)] * 2

            # and this is what a snapshot would look like
            async with line.connection.transaction(isolation="repeatable_read"):
                await claims.look(Watched(), filled.statements, ["q0"], (), SECONDS)
            assert seen[2] == ("idle in transaction", False)

    lonely.run(body)
