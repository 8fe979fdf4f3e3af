"""T10, T14: shared buffers of one claim of 100, whatever else the table holds. Exact counters."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import asyncpg
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from bench.contenders.contract import HEADERS, PAYLOAD, QUEUE
from bench.gates import Finding
from outlast import make_outbox_table
from outlast.stores.postgres.statements import Statements
from outlast.stores.postgres.wire import SETTINGS

BATCH = 100
_ROWS_OF_A_QUEUE = 100
_READY_ROWS = 20_000
_LATER_ROWS = 10_000

_INSERT = (
    "insert into outbox (queue, payload, headers, next_attempt_at, acquired_token, acquired_at) "
    "select {queue}, $1, $2::text::jsonb, {due}, {token}, {taken} from generate_series(1, $3) g"
)
_READY = {
    "queue": f"'{QUEUE}'",
    "due": "now()",
    "token": "null::uuid",
    "taken": "null::timestamptz",
}
_FUTURE = {**_READY, "due": "now() + interval '1 hour' + g * interval '1 millisecond'"}
_LEASED = {**_READY, "token": "gen_random_uuid()", "taken": "now()"}


async def _fill(connection: Any, values: dict[str, str], rows: int) -> None:
    await connection.execute(_INSERT.format(**values), PAYLOAD, HEADERS, rows)


async def _world(connection: Any, world: str, rows: int) -> str:
    """Fill the table; the queue to claim from."""
    await connection.execute("truncate outbox")
    if world == "queues":
        count = rows // _ROWS_OF_A_QUEUE
        values = {**_READY, "queue": f"'q' || (g % {count})", "due": "now() - g * interval '1 us'"}
        await _fill(connection, values, rows)
    elif world == "ready":
        await _fill(connection, _READY, rows)
    else:
        await _fill(connection, _FUTURE if world == "future" else _LEASED, rows)
        await _fill(connection, _READY, _READY_ROWS)
    await connection.execute("vacuum analyze outbox")
    return "q7" if world == "queues" else QUEUE


async def _claim_buffers(connection: Any, sql: str, queue: str) -> tuple[int, int]:
    """Buffers and rows of one claim, rolled back. The second one: the first sets hint bits."""
    found = (0, 0)
    for _ in range(2):
        transaction = connection.transaction()
        await transaction.start()
        plan = await connection.fetchval(
            "explain (analyze, buffers, format json) " + sql, uuid4(), [queue], [BATCH], BATCH
        )
        await transaction.rollback()
        top = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
        buffers = top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0)
        found = (int(buffers), int(top["Actual Rows"]))
    return found


async def _measure(dsn: str, rows: int, ahead: int) -> dict[str, Any]:
    metadata = MetaData()
    table = make_outbox_table(metadata, "outbox")
    sql = Statements(table, None).claim
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as transaction:
        await transaction.exec_driver_sql("drop table if exists outbox, outbox_dlq")
        await transaction.run_sync(metadata.create_all)
    await engine.dispose()
    connection = await asyncpg.connect(dsn, command_timeout=600)
    await connection.execute("; ".join(SETTINGS))
    found: dict[str, Any] = {"rows": rows, "ahead": ahead, "worlds": {}, "later": {}}
    for world in ("ready", "future", "leased", "queues"):
        figures = []
        for size in (_READY_ROWS, rows):
            queue = await _world(connection, world, size)
            buffers, claimed = await _claim_buffers(connection, sql, queue)
            figures.append(buffers)
            assert claimed == BATCH, (world, size, claimed)
        found["worlds"][world] = figures
        print(f"bench: plans, {world}: {figures}", flush=True)
    elsewhere = {**_FUTURE, "queue": "'elsewhere'"}
    for where, values in (("nowhere", None), ("elsewhere", elsewhere), ("here", _FUTURE)):
        await connection.execute("truncate outbox")
        if values is not None:
            await _fill(connection, values, ahead)
        await _fill(connection, _READY, _LATER_ROWS)
        await connection.execute("vacuum analyze outbox")
        found["later"][where] = await _drain_buffers(connection, sql)
        print(f"bench: plans, scheduled {where}: {found['later'][where]:.0f}", flush=True)
    await connection.execute("drop table outbox")
    await connection.close()
    return found


async def _drain_buffers(connection: Any, sql: str) -> float:
    """Claim and delete until nothing is ready; buffers a claim."""
    total = claims = 0
    while True:
        plan = await connection.fetchval(
            "explain (analyze, buffers, format json) " + sql, uuid4(), [QUEUE], [BATCH], BATCH
        )
        top = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
        if not top["Actual Rows"]:
            return total / claims
        total += top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0)
        claims += 1
        await connection.execute("delete from outbox where acquired_token is not null")


def measure(dsn: str, rows: int, ahead: int) -> dict[str, Any]:
    """Buffers of a claim at 20,000 rows and at `rows`, in four worlds; and behind `ahead` rows."""
    return asyncio.run(_measure(dsn, rows, ahead))


def findings(found: dict[str, Any]) -> list[Finding]:
    """T10 in each world, T14 within 5 %."""
    lines = []
    for world, (few, many) in found["worlds"].items():
        what = f"buffers a claim, {found['rows']:,} rows / {_READY_ROWS:,}, {world}"
        lines.append(
            Finding("T10", what, many / few, "<=", 1.3, note=f"{few:,} and {many:,} buffers")
        )
    later, ahead = found["later"], found["ahead"]
    here = later["here"]
    what = f"buffers a claim behind {ahead:,} scheduled rows / the same rows in another queue"
    note = f"{later['elsewhere']:,.0f} and {here:,.0f} buffers"
    lines.append(Finding("T14", what, here / later["elsewhere"], "<=", 1.05, note=note))
    what = f"buffers a claim behind {ahead:,} scheduled rows / in a table without them"
    note = f"{later['nowhere']:,.0f} and {here:,.0f} buffers: the larger primary key is deeper"
    lines.append(Finding("T14", what, here / later["nowhere"], gates=False, note=note))
    return lines
