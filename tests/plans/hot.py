"""Every hot statement, at every size, sent by the store's own functions, with what it may cost."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from outlast.engine.look import LEASES_PER_WALK
from outlast.model.dead_letter import Letter
from outlast.model.delivery import Attempt, RetryEntry
from outlast.model.failure import Failure
from outlast.model.look import Expired, WalkStep, Want, peek_depth
from outlast.stores.postgres import claims, settles
from outlast.stores.postgres.statements import Statements
from tests.plans.explain import SECONDS, Plan
from tests.plans.tables import Filled

GROUPS = (10, 100, 500)
TTL = 60.0
_NOW = datetime.now(UTC)

Call = Callable[[Any], Awaitable[object]]


@dataclass(frozen=True)
class Measured:
    """One statement at one size."""

    name: str
    rows: int
    bound: int
    send: Call
    writes: bool = True
    """Whether it must write exactly `rows` rows."""
    passes_dead: bool = False
    """Whether it walks an index in which the dead wait for a vacuum."""

    def faults(self, plan: Plan, allowance: int = 0) -> list[str]:
        """What is wrong with the plan. The allowance is for the dead index entries it passes."""
        bound = self.bound + (allowance if self.passes_dead else 0)
        faults = plan.whole_table_scans()
        if plan.buffers > bound:
            faults.append(f"{plan.buffers} buffers, {bound} allowed")
        if plan.passed("outbox") > _SCANS * self.rows:
            faults.append(f"{plan.passed('outbox')} rows looked at")
        if plan.sorted_rows() > self.rows:
            faults.append(f"{plan.sorted_rows()} rows sorted")
        if self.writes and plan.written != self.rows:
            faults.append(f"{plan.written} rows written")
        return [f"{self.name} of {self.rows}: {fault}\n{plan}" for fault in faults]


_SCANS = 3
"""A statement finds its rows, writes them, and may look at them once more for its answer."""

# name: buffers for each row, and for the rest of the statement; about 1.3 times what was measured.
# A row that is written anew costs one descent in each index that holds it.
BOUNDS = {
    "claim": (14, 60),
    "take over": (19, 60),
    "extend": (15, 40),
    "ack": (6, 20),
    "retry": (15, 40),
    "release": (15, 40),
    "postpone": (15, 40),
    "bury": (28, 100),
    "extend skipping": (24, 60),
    "ack skipping": (13, 40),
    "retry skipping": (24, 60),
    "release skipping": (24, 60),
    "postpone skipping": (24, 60),
    "bury skipping": (33, 100),
}
_PER_QUEUE = 6


def _bound(name: str, rows: int) -> int:
    each, once = BOUNDS[name]
    return each * rows + once


def claim(filled: Filled, quota: int, queues: int = 1) -> Measured:
    wanted = [Want(queue, quota) for queue in filled.queues[:queues]]
    rows = quota * queues
    return Measured(
        f"claim from {queues}",
        rows,
        _bound("claim", rows) + _PER_QUEUE * queues,
        lambda line: claims.claim(line, filled.statements, wanted, rows, uuid4(), SECONDS),
        passes_dead=True,
    )


def group_settles(filled: Filled, rows: int) -> Iterator[Measured]:
    """Each settle of one group, plain and passing over locked rows."""
    sql = filled.statements
    for skip in (False, True):
        for name, send in (
            ("extend", _pairs(sql.extend, sql.extend_skipping)),
            ("ack", _pairs(sql.ack, sql.ack_skipping)),
            ("release", _pairs(sql.release, sql.release_skipping)),
            ("retry", partial(_retry, sql)),
            ("postpone", partial(_postpone, sql)),
            ("bury", partial(_bury, sql)),
        ):
            full = f"{name} skipping" if skip else name
            group = filled.take(rows)
            yield Measured(full, rows, _bound(full, rows), partial(send, group=group, skip=skip))


def _pairs(plain: str, skipping: str) -> Any:
    async def send(line: Any, group: list[tuple[int, UUID]], skip: bool) -> object:
        return await settles.pairs(line, plain, skipping, group, SECONDS, skip=skip)

    return send


async def _retry(sql: Statements, line: Any, group: list[tuple[int, UUID]], skip: bool) -> object:
    entries = [RetryEntry(i, k, 5.0, Attempt(1, _NOW, _NOW)) for i, k in group]
    return await settles.retries(line, sql.retry, sql.retry_skipping, entries, SECONDS, skip=skip)


async def _postpone(
    sql: Statements, line: Any, group: list[tuple[int, UUID]], skip: bool
) -> object:
    plain, skipping = sql.postpone, sql.postpone_skipping
    return await settles.postponed(line, plain, skipping, group, 30.0, SECONDS, skip=skip)


async def _bury(sql: Statements, line: Any, group: list[tuple[int, UUID]], skip: bool) -> object:
    failure = Failure(
        exception_type="ValueError",
        last_exception="ValueError('x')",
        error_type="ValueError",
        error_message="x" * 100,
        stack_trace="Traceback " * 20,
        category="VALIDATION",
        fingerprint="v1:" + "0" * 32,
        http_status=422,
    )
    letters = [
        Letter(
            id=row_id,
            token=token,
            reason="rejected",
            failure=failure,
            attempts_count=1,
            first_failure_at=_NOW,
            last_failure_at=_NOW,
            message_id=str(row_id),
            event_type="order.paid",
            subscriber="handle",
            consumer_instance="host:1",
            consumer_version="1.2.3",
        )
        for row_id, token in group
    ]
    return await settles.letters(line, sql.bury, sql.bury_skipping, letters, SECONDS, skip=skip)


def take_over(filled: Filled, rows: int) -> Measured:
    expired = [Expired(row_id, TTL) for row_id in filled.take_expired(rows)]
    return Measured(
        "take over",
        rows,
        _bound("take over", rows),
        lambda line: claims.take_over(line, filled.statements, expired, uuid4(), SECONDS),
    )


def peek(filled: Filled, queues: int) -> Measured:
    names, instants = filled.queues[:queues], peek_depth(queues) * queues
    return Measured(
        f"peek at {queues} queues",
        instants,
        2 * instants + _PER_QUEUE * queues + 20,
        lambda line: claims.look(line, filled.statements, names, (), SECONDS),
        writes=False,
        passes_dead=True,
    )


def walk(
    filled: Filled,
    queues: int,
    leases: int = LEASES_PER_WALK,
    after: tuple[datetime, int] | None = None,
) -> Measured:
    steps = [WalkStep(q, TTL, after, leases // queues) for q in filled.queues[:queues]]
    return Measured(
        f"walk of {queues} queues",
        leases,
        leases + _PER_QUEUE * queues + 60,
        lambda line: claims.look(line, filled.statements, (), steps, SECONDS),
        writes=False,
        passes_dead=True,
    )
