"""T11: dead letters and retries, a hundred in one statement against one at a time."""

import time
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from bench.contenders import OURS_DEFAULT
from bench.contenders.contract import QUEUE
from bench.crew import ask
from bench.gates import Finding
from bench.measures.cells import Cells, interleaved, median

_TIMEOUT = 30.0
_TOGETHER = 100


async def failures(request: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own: rows a second through the store, by kind and size of group."""
    from bench.contenders.outboxes import Outbox
    from outlast.model.dead_letter import Letter
    from outlast.model.delivery import Attempt, Delivery, RetryEntry
    from outlast.model.failure import Failure
    from outlast.model.look import Want
    from outlast.stores.postgres.store import PostgresStore

    contender = Outbox(request["dsn"], {"module": "outlast"})
    await contender.create()
    engine = contender.engine()
    store = PostgresStore(engine, contender.table, contender.letters)
    await store.open(lambda _queue: None)
    now = datetime.now(UTC)
    failure = Failure(
        exception_type="ValueError",
        last_exception="ValueError('no such customer')",
        error_type="ValueError",
        error_message="no such customer",
        stack_trace="Traceback (most recent call last): …\n" * 10,
        category="VALIDATION",
        fingerprint="v1:" + "0" * 32,
        http_status=None,
    )

    def letter(row: Delivery) -> Letter:
        return Letter(
            id=row.id,
            token=row.token,
            reason="rejected",
            failure=failure,
            attempts_count=1,
            first_failure_at=now,
            last_failure_at=now,
            message_id=str(row.id),
            event_type=None,
            subscriber="handle",
            consumer_instance="bench:1",
            consumer_version=None,
        )

    async def rate(kind: str, group: int, count: int) -> float:
        await contender.create()
        await contender.prefill(count)
        claim = await store.claim([Want(QUEUE, count)], count, uuid4(), _TIMEOUT)
        rows = claim.rows
        assert len(rows) == count
        began = time.monotonic()
        for start in range(0, count, group):
            some = rows[start : start + group]
            if kind == "letters":
                answer = await store.bury([letter(row) for row in some], _TIMEOUT)
            else:
                entries = [RetryEntry(r.id, r.token, 60.0, Attempt(1, now, now)) for r in some]
                answer = await store.retry(entries, _TIMEOUT)
            assert not answer.lost
        return count / (time.monotonic() - began)

    found = {}
    for kind in ("letters", "retries"):
        await rate(kind, _TOGETHER, _TOGETHER)
        found[f"{kind}_one"] = await rate(kind, 1, 1_000)
        found[f"{kind}_together"] = await rate(kind, _TOGETHER, 10_000)
    await store.close()
    await engine.dispose()
    return found


def measure(dsn: str, rounds: int) -> Cells:
    """Once a round."""
    request = {"call": "bench.measures.failing:failures", "dsn": dsn}
    return interleaved("letters", (OURS_DEFAULT,), rounds, lambda entry: ask(request, entry))


def findings(cells: Cells) -> list[Finding]:
    """Reported; gated later."""
    done = [cell for cell in cells[OURS_DEFAULT.name] if cell is not None]
    return [
        Finding(
            "T11",
            f"{kind}, {_TOGETHER} in one statement / one at a time",
            median([c[f"{kind}_together"] / c[f"{kind}_one"] for c in done]) if done else None,
            ">=",
            10.0,
            gates=False,
        )
        for kind in ("letters", "retries")
    ]
