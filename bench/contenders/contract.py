"""What every contender offers, and what all of them are given: the same body, the same counting.

Runs inside the contender's own process and interpreter; standard library and asyncpg only.
"""

import asyncio
import json
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

BODY = {
    "order": 81_723,
    "customer": "c3f0e9c2-1f7e-4d55-9f6a-5d7b1f0f0a11",
    "lines": [{"sku": "A-1001", "count": 2}, {"sku": "B-2002", "count": 1}],
    "note": "leave it with the neighbour if nobody answers the door",
    "total": 149.9,
}
PAYLOAD = json.dumps(BODY).encode()
HEADERS = json.dumps(
    {"content-type": "application/json", "correlation_id": "6e7a1c0e-54be-4a1c-9d3c-1f1f0e0c8a77"}
)
QUEUE = "orders"


class Tally:
    """Counts handler calls; knows when the first began and when the wanted number was reached."""

    def __init__(self, wanted: int | None = None) -> None:
        self.count = 0
        self.wanted = wanted
        self.first_at: float | None = None
        self.first_cpu = 0.0
        self.reached = asyncio.Event()
        self.seen: dict[int, float] = {}

    def hit(self) -> None:
        if self.count == 0:
            self.first_at, self.first_cpu = time.monotonic(), time.process_time()
        self.count += 1
        if self.count == self.wanted:
            self.reached.set()

    def note(self, sequence: int | None) -> None:
        """For latency: when the handler of this message began (the clock all processes share)."""
        if sequence is not None:
            self.seen.setdefault(sequence, time.monotonic())


class Contender:
    """One library at one setting, on one scratch database."""

    is_empty_sql: str
    """One boolean: whether nothing is left."""

    def __init__(self, dsn: str, settings: dict[str, Any]) -> None:
        self.dsn = dsn
        self.settings = settings

    async def create(self) -> None:
        """Fresh tables; whatever was there is dropped."""
        raise NotImplementedError

    async def prefill(self, count: int) -> None:
        """Messages ready to be delivered; ends with ANALYZE."""
        raise NotImplementedError

    def consuming(self, tally: Tally) -> AbstractAsyncContextManager[None]:
        """Consumes inside the block, one `tally.hit()` a message."""
        raise NotImplementedError

    def publishing(self) -> AbstractAsyncContextManager[Any]:
        """Gives `publish(body)`: one message in its own transaction; answers when COMMIT began."""
        raise NotImplementedError
