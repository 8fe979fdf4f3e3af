"""T5: what one publish adds to the caller's transaction, against the plainest statement."""

import time
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from bench.contenders import FSO_DEFAULT, OURS_DEFAULT, Entry
from bench.contenders.contract import BODY, HEADERS, PAYLOAD, QUEUE
from bench.crew import ask
from bench.gates import Finding
from bench.measures.cells import Cells, interleaved, median, ratios

_TRANSACTIONS = 150
_EACH = 10
_BATCH = 1_000
_BATCHES = 8
_PLAIN = text(
    "insert into outbox (queue, payload, headers) "
    "values (:queue, :payload, cast(:headers as jsonb))"
)


async def publish_cost(request: dict[str, Any]) -> dict[str, Any]:
    """In the contender's process: CPU a publish beyond that of an empty transaction; batches."""
    from bench.contenders.outboxes import Outbox

    contender = Outbox(request["dsn"], request["settings"])
    await contender.create()
    engine = contender.engine()
    broker = contender.broker(engine)

    async def nothing(session: AsyncSession) -> None:
        await session.connection()

    async def plain(session: AsyncSession) -> None:
        connection = await session.connection()
        values = {"queue": QUEUE, "payload": PAYLOAD, "headers": HEADERS}
        for _ in range(_EACH):
            await connection.execute(_PLAIN, values)

    async def published(session: AsyncSession) -> None:
        for _ in range(_EACH):
            await broker.publish(BODY, queue=QUEUE, session=session)

    async def cpu(work: Any, times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            async with AsyncSession(engine) as session, session.begin():
                await work(session)
        return (time.process_time() - began) / times * 1e6

    async def batch(session: AsyncSession) -> None:
        await broker.publish_batch(*[BODY] * _BATCH, queue=QUEUE, session=session)

    for work in (nothing, plain, published, batch):
        await cpu(work, 2)
    empty, of_plain, of_publish = [], [], []
    for _ in range(5):
        empty.append(await cpu(nothing, _TRANSACTIONS // 5))
        of_plain.append(await cpu(plain, _TRANSACTIONS // 5))
        of_publish.append(await cpu(published, _TRANSACTIONS // 5))
    began = time.monotonic()
    batch_cpu = await cpu(batch, _BATCHES)
    seconds = time.monotonic() - began
    await engine.dispose()
    return {
        "plain_us": (median(of_plain) - median(empty)) / _EACH,
        "publish_us": (median(of_publish) - median(empty)) / _EACH,
        "batch_rate": _BATCH * _BATCHES / seconds,
        "batch_us": batch_cpu / _BATCH,
    }


QUIET = Entry(
    "outlast notify=False",
    "ours",
    OURS_DEFAULT.home,
    {**OURS_DEFAULT.settings, "broker": {"notify": False}},
)
ENTRIES = (OURS_DEFAULT, QUIET, FSO_DEFAULT)


def measure(dsn: str, rounds: int) -> Cells:
    """Every contender once a round."""
    call = "bench.measures.publishing:publish_cost"

    def run(entry: Entry) -> dict[str, Any]:
        return ask({"call": call, "dsn": dsn}, entry)

    return interleaved("publish", ENTRIES, rounds, run)


def findings(cells: Cells) -> list[Finding]:
    """Reported; gated later."""
    lines = []
    for entry in ENTRIES:
        costs = [c["publish_us"] / c["plain_us"] for c in cells[entry.name] if c is not None]
        lines.append(
            Finding(
                "T5",
                f"CPU a publish, {entry.name} / connection.execute(text)",
                median(costs) if costs else None,
                "<=" if entry is OURS_DEFAULT else None,
                1.3 if entry is OURS_DEFAULT else None,
                gates=False,
            )
        )
    batch = ratios(cells, OURS_DEFAULT.name, FSO_DEFAULT.name, "batch_rate")
    lines.append(
        Finding(
            "T5",
            "publish_batch of 1,000, outlast / faststream-outbox",
            median(batch) if batch else None,
            ">=",
            2.0,
            gates=False,
        )
    )
    return lines
