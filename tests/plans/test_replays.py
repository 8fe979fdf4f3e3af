"""How a replay ends, beside 100,000 rows and 100,000 letters on their way: it costs its group."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import MetaData, text

from outlast.model.dead_letter import Letter
from outlast.model.delivery import Attempt
from outlast.model.failure import Failure
from outlast.model.replay_pass import Delivered, Failed, Retried
from outlast.stores.postgres import replays
from outlast.stores.postgres.replays import ReplayStatements
from outlast.tables import make_operations_tables
from tests.plans import hot
from tests.plans.explain import SECONDS, Plan, measured_line
from tests.plans.tables import Filled, fill

MANY = 100_000
GROUPS = (10, 100)
"""The engine's groups have at most 100."""
OURS = 3 * 6 * sum(GROUPS)

BOUNDS = {
    "resolve": (44, 150),
    "resolve skipping": (52, 150),
    "refresh": (48, 150),
    "refresh skipping": (56, 150),
    "reopen": (60, 200),
    "reopen skipping": (66, 200),
}
"""Buffers for each pass, and for the rest of the statement; about 1.3 times what was measured."""

_FAILURE = Failure(
    exception_type="ValueError",
    last_exception="ValueError('x')",
    error_type="ValueError",
    error_message="x" * 100,
    stack_trace="Traceback " * 20,
    category="VALIDATION",
    fingerprint="v1:" + "0" * 32,
    http_status=422,
)


async def send_letters(
    engine: Any, filled: Filled, letters: int, *, analysed: bool
) -> dict[int, int]:
    """Letters on their way: some by our rows, the others by rows of other workers."""
    ids = [row_id for row_id, _ in filled.ours]
    statement = (
        "INSERT INTO outbox_dlq (original_id, queue, payload, deliveries_count, created_at, "
        "failure_reason, fingerprint, message_id, state, replayed_as) "
        "SELECT g, 'q0', decode(repeat('ab', 200), 'hex'), 1, now(), 'rejected', "
        "'v1:' || md5((g % 100)::text), g::text, 'replaying', "
        "coalesce((CAST(:ids AS bigint[]))[g], 100000000 + g) "
        "FROM generate_series(1, CAST(:letters AS int)) g"
    )
    async with engine.begin() as connection:
        await connection.execute(text(statement), {"ids": ids, "letters": letters})
        if analysed:
            await connection.execute(text("ANALYZE outbox_dlq"))
        found = await connection.execute(
            text("SELECT replayed_as, id FROM outbox_dlq WHERE replayed_as < 100000000")
        )
        return {row.replayed_as: row.id for row in found}


def passes(
    kind: str, group: list[tuple[int, UUID]], letters: dict[int, int]
) -> list[Delivered | Retried | Failed]:
    # nobody's rows have nobody's letters
    linked = [(row_id, token, letters.get(row_id, -row_id)) for row_id, token in group]
    now = hot._NOW
    if kind == "resolve":
        return [Delivered(i, k, n, "host:1") for i, k, n in linked]
    if kind == "refresh":
        return [Retried(i, k, n, 5.0, Attempt(1, now, now), _FAILURE) for i, k, n in linked]
    return [
        Failed(n, Letter(i, k, "rejected", _FAILURE, 1, now, now, str(i), "e", "h", "host:1", "1"))
        for i, k, n in linked
    ]


def ends(
    sql: ReplayStatements, filled: Filled, letters: dict[int, int], rows: int
) -> Iterator[hot.Measured]:
    for skip in (False, True):
        for kind in ("resolve", "refresh", "reopen"):
            name = f"{kind} skipping" if skip else kind
            each, once = BOUNDS[name]
            group = passes(kind, filled.take(rows), letters)
            end = partial(getattr(replays, kind), sql=sql, passes=group, skip=skip)
            yield hot.Measured(
                name, rows, each * rows + once, lambda line, end=end: end(line, timeout=SECONDS)
            )


def faults_of(measured: hot.Measured, plan: Plan) -> list[str]:
    faults = measured.faults(plan)
    if plan.passed("outbox_dlq") > 2 * measured.rows:
        faults.append(f"{measured.name}: {plan.passed('outbox_dlq')} letters looked at\n{plan}")
    moved = sum(
        round(node["Actual Rows"] * node["Actual Loops"])
        for node in plan.nodes
        if node["Node Type"] == "ModifyTable"
        and node.get("Operation") == "Update"
        and node["Relation Name"] == "outbox_dlq"
    )
    if moved != measured.rows:
        faults.append(f"{measured.name}: {moved} letters moved\n{plan}")
    return faults


async def measure_all(
    engine: Any, *, analysed: bool, many: int = MANY, plant: Any = None
) -> list[str]:
    """What is wrong: with a plan kept from when the tables were empty, a generic and a custom."""
    async with AsyncExitStack() as opened:
        lines = [await opened.enter_async_context(measured_line(engine, "letters")) for _ in "123"]
        early, generic = lines[0], lines[1]
        early.planning = generic.planning = "force_generic_plan"
        made: list[ReplayStatements] = []

        async def plan_early(nobody: Filled) -> None:
            history = make_operations_tables(MetaData()).history
            async with engine.begin() as connection:
                await connection.run_sync(history.create)
                await connection.execute(text("ALTER TABLE outbox_dlq_history SET UNLOGGED"))
            made.append(ReplayStatements(nobody.statements, "outbox_dlq", "outbox_dlq_history"))
            if plant is not None:
                plant(made[0])
            for rows in GROUPS:
                for measured in ends(made[0], nobody, {}, rows):
                    await early.measure(measured.send)

        statistics = "fresh" if analysed else "empty"
        filled = await fill(
            engine, "ready", statistics, rows=many, ours=OURS, while_empty=plan_early
        )
        letters = await send_letters(engine, filled, many, analysed=analysed)
        assert len(letters) == OURS
        faults: list[str] = []
        for line in lines:
            for rows in GROUPS:
                for measured in ends(made[0], filled, letters, rows):
                    plan = await line.measure(measured.send)
                    faults += faults_of(measured, plan)
        return faults


@pytest.mark.parametrize("analysed", [False, True], ids=["analysed while empty", "fresh"])
def test_the_end_of_a_replay_costs_what_its_group_costs(lonely, analysed):
    """Ack, retry and failure for good of 10 and 100 replayed rows: O(group) buffers."""

    async def body(engine):
        faults = await measure_all(engine, analysed=analysed)
        assert not faults, "\n".join(faults)

    lonely.run(body)


def test_a_letter_that_is_looked_for_by_its_row_is_found_out(lonely):
    """No index has the row that a letter is sent as: each pass would read the table."""
    right = "q.id = a.letter and q.id = any($3::bigint[]) and "

    def plant(statements: ReplayStatements) -> None:
        for kind in ("resolve", "refresh", "reopen"):
            plain, skipping = getattr(statements, kind)
            assert right in plain
            assert right in skipping
            setattr(statements, kind, (plain.replace(right, ""), skipping.replace(right, "")))

    async def body(engine):
        assert await measure_all(engine, analysed=False, many=5_000, plant=plant)

    lonely.run(body)
