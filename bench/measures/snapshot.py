"""T9: drain rate chunk by chunk while one transaction holds a snapshot, publishers at work."""

import asyncio
import time
from typing import Any

import asyncpg

from bench.contenders import Entry
from bench.contenders.contract import Tally
from bench.crew import ask
from bench.gates import Finding
from bench.measures.cells import Cells, interleaved, median, ratios

CHUNK = 10_000
_BATCH = {"max_workers": 1, "fetch_batch_size": 100}
_HOME = "bench.contenders.outboxes:Outbox"
OURS = Entry("outlast f100", "ours", _HOME, {"module": "outlast", **_BATCH})
FSO = Entry(
    "fso f100 t100",
    "peers",
    _HOME,
    {"module": "faststream_outbox", **_BATCH, "terminal_flush_batch_size": 100},
)
_SECONDS_MAX = 150.0


async def held(request: dict[str, Any]) -> dict[str, Any]:
    """In the contender's process: chunks published and drained under one old snapshot."""
    from bench.contenders.outboxes import Outbox

    contender = Outbox(request["dsn"], request["settings"])
    await contender.create()
    control = await asyncpg.connect(request["dsn"])
    await control.execute("checkpoint")
    holder = await asyncpg.connect(request["dsn"])
    await holder.execute("begin isolation level repeatable read")
    await holder.fetchval("select count(*) from outbox")
    rates: list[float] = []
    tally = Tally()
    began = time.monotonic()
    async with contender.consuming(tally):
        while len(rates) * CHUNK < request["messages"]:
            tally.reached.clear()
            tally.wanted = tally.count + CHUNK
            from_here = time.monotonic()
            await contender.prefill(CHUNK)
            # the rows come without a NOTIFY of their own
            await control.execute("select pg_notify($1, 'orders')", request["channel"])
            try:
                await asyncio.wait_for(tally.reached.wait(), _SECONDS_MAX)
            except TimeoutError:
                break
            rates.append(CHUNK / (time.monotonic() - from_here))
            if time.monotonic() - began > _SECONDS_MAX:
                break
    await holder.close()
    await control.close()
    return {"rates": rates, "last_to_first": rates[-1] / rates[0], "last_rate": rates[-1]}


def measure(dsn: str, rounds: int, messages: int) -> Cells:
    """Both once a round."""
    from sqlalchemy import MetaData

    from outlast import make_outbox_table
    from outlast.tables import channel_name

    channel = channel_name(make_outbox_table(MetaData(), "outbox"))
    request = {
        "call": "bench.measures.snapshot:held",
        "dsn": dsn,
        "messages": messages,
        "channel": channel,
    }
    return interleaved("held snapshot", (OURS, FSO), rounds, lambda entry: ask(request, entry))


def findings(cells: Cells) -> list[Finding]:
    """Reported; gated later."""
    flat = [cell["last_to_first"] for cell in cells[OURS.name] if cell is not None]
    versus = ratios(cells, OURS.name, FSO.name, "last_rate")
    return [
        Finding(
            "T9",
            "held snapshot, rate of the last chunk / first, outlast",
            median(flat) if flat else None,
            ">=",
            0.8,
            gates=False,
        ),
        Finding(
            "T9",
            "held snapshot, rate of the last chunk, outlast / faststream-outbox",
            median(versus) if versus else None,
            ">=",
            15.0,
            gates=False,
        ),
    ]
