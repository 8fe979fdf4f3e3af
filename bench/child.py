"""The contender's process: reads one request, runs it, answers in JSON lines.

Started by `crew.py` with the contender's own interpreter. What libraries print goes to stderr, so
that the answers stay whole.
"""

import asyncio
import importlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from bench.contenders.contract import BODY, Contender, Tally

_LIMIT_SECONDS = 180.0
_POLL_SECONDS = 0.002


class Line:
    """JSON lines to and from the parent."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def tell(self, **answer: Any) -> None:
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    async def heard(self) -> str:
        return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _waited_for_a_core() -> float:
    """Seconds this thread was runnable and another process had the core; 0 where unknown."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


async def drain(contender: Contender, request: dict[str, Any]) -> dict[str, Any]:
    """A fresh backlog, drained until the table is empty; measured from the first handler on."""
    count = request["messages"]
    await contender.create()
    control = await asyncpg.connect(contender.dsn)
    await control.execute("checkpoint")
    await contender.prefill(count)
    tally = Tally(count)
    wal = await control.fetchval("select pg_current_wal_insert_lsn()::text")
    async with contender.consuming(tally):
        waited = _waited_for_a_core()
        await asyncio.wait_for(tally.reached.wait(), _LIMIT_SECONDS)
        while not await control.fetchval(contender.is_empty_sql):
            await asyncio.sleep(_POLL_SECONDS)
        ended, cpu = time.monotonic(), time.process_time() - tally.first_cpu
        waited = _waited_for_a_core() - waited
        written = await control.fetchval(
            "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)", wal
        )
    await control.close()
    assert tally.first_at is not None
    seconds = ended - tally.first_at
    return {
        "rate": count / seconds,
        "cpu_us": cpu / count * 1e6,
        "cpu_share": cpu / seconds,
        "waited_share": waited / seconds,
        "wal_bytes": float(written) / count,
        "extra_deliveries": tally.count - count,
        "rss_mb": psutil.Process().memory_info().rss / 2**20,
    }


async def listen(contender: Contender, line: Line) -> dict[str, Any]:
    """Consume an empty queue until told to stop; when each handler began, by sequence."""
    await contender.create()
    tally = Tally()
    async with contender.consuming(tally):
        await asyncio.sleep(0.5)
        line.tell(ready=True)
        await line.heard()
    return {"seen": tally.seen}


async def publish(contender: Contender, request: dict[str, Any]) -> dict[str, Any]:
    """So many messages at a steady rate, each in its own transaction; when each COMMIT began."""
    sent: dict[int, float] = {}
    async with contender.publishing() as send:
        await send({**BODY, "sequence": -1})
        await asyncio.sleep(0.5)
        began = time.monotonic()
        for number in range(request["samples"]):
            wait = began + number / request["rate"] - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            sent[number] = await send({**BODY, "sequence": number})
    return {"sent": sent}


async def footprint(contender: Contender, request: dict[str, Any]) -> dict[str, Any]:
    """Resident memory of an idle worker, and the most while it works on a deep backlog."""
    await contender.create()
    process = psutil.Process()
    async with contender.consuming(Tally()):
        await asyncio.sleep(2.0)
        idle = process.memory_info().rss
    await contender.prefill(request["messages"])
    tally, most = Tally(request["handled"]), 0
    async with contender.consuming(tally):
        while not tally.reached.is_set():
            await asyncio.sleep(0.05)
            most = max(most, process.memory_info().rss)
    return {"idle_mb": idle / 2**20, "backlog_mb": most / 2**20}


async def _run(request: dict[str, Any], line: Line) -> None:
    if "call" in request:
        module, name = request["call"].split(":")
        line.tell(**await getattr(importlib.import_module(module), name)(request))
        return
    module, name = request["home"].split(":")
    kind = getattr(importlib.import_module(module), name)
    contender: Contender = kind(request["dsn"], request["settings"])
    match request["do"]:
        case "drain":
            answer = await drain(contender, request)
        case "listen":
            answer = await listen(contender, line)
        case "publish":
            answer = await publish(contender, request)
        case _:
            answer = await footprint(contender, request)
    line.tell(**answer)


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    request = json.loads(sys.stdin.readline())
    line = Line()
    asyncio.run(_run(request, line))


if __name__ == "__main__":
    main()
