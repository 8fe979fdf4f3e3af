"""An engine over the memory store on the virtual clock, with everything it told.

`with_engine(body)` runs `body(rig)`; `rig.handle(...)` subscribes a handler written as a coroutine
function of the delivery that returns None (ack), an outcome, or raises.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from outlast.engine.engine import Engine
from outlast.engine.hand import Subscription
from outlast.engine.options import EngineOptions, SubscriptionOptions
from outlast.model.delivery import Delivery
from outlast.model.outcome import ACK, Outcome
from outlast.policy.retry import ConstantRetry
from outlast.policy.verdict import Verdicts
from outlast.stores.memory.store import MemoryStore
from tests import virtual


class Rig:
    """One engine and its surroundings."""

    def __init__(self, store: Any = None, **options: Any) -> None:
        self.store = store or MemoryStore(virtual.now)
        self.events: list[tuple[float, str, dict[str, Any]]] = []
        self.started: list[tuple[float, Delivery]] = []
        self.logs: list[logging.LogRecord] = []
        self.engine = self.new_engine(**options)

    def new_engine(self, **options: Any) -> Engine:
        logger = logging.Logger("outlast.test")  # noqa: LOG001 - nobody else may hear it
        handler = logging.Handler()
        handler.emit = self.logs.append  # type: ignore[method-assign]
        logger.addHandler(handler)
        options = {"consumer_instance": "test:1", "blocked_loop_seconds": 60.0} | options
        return Engine(self.store, EngineOptions(**options), emit=self._told, logger=logger)

    def _told(self, name: str, tags: Any) -> None:
        self.events.append((self.now(), name, dict(tags)))

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time() - 1000.0

    def handle(
        self,
        handler: Callable[[Delivery], Awaitable[Any]],
        queues: Any = "q",
        *,
        engine: Engine | None = None,
        name: str = "handle",
        **options: Any,
    ) -> Subscription:
        async def deliver(delivery: Delivery) -> Outcome:
            self.started.append((self.now(), delivery))
            return await handler(delivery) or ACK

        options.setdefault("retry_strategy", ConstantRetry(delay_seconds=5))
        settings = SubscriptionOptions(queues=queues, **options)
        verdicts = Verdicts(settings.retry_strategy, name)
        return (engine or self.engine).subscribe(name, settings, deliver, verdicts)

    def add(self, queue: str = "q", **values: Any) -> int:
        row_id = self.store.insert(queue=queue, payload=values.pop("payload", b"{}"), **values)
        assert row_id is not None
        return row_id

    def told(self, *names: str) -> list[dict[str, Any]]:
        return [tags for _, name, tags in self.events if name in names]

    def names(self) -> list[str]:
        return [name for _, name, _ in self.events if name != "fetched"]

    def log_text(self) -> str:
        return "\n".join(record.getMessage() for record in self.logs)

    async def until(
        self, done: Callable[[], Any], seconds: float = 600.0, step: float = 0.001
    ) -> None:
        """Wait on the virtual clock until it holds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not done():
            last = self.events[-5:]
            assert loop.time() < end, f"not within {seconds} s: {last} {self.log_text()}"
            await asyncio.sleep(step)


def with_engine(body: Callable[[Rig], Awaitable[None]], **options: Any) -> None:
    """Run the body with a rig whose engine it starts itself; stop it afterwards."""

    async def main() -> None:
        rig = Rig(**options)
        await body(rig)
        await rig.engine.stop(0.0)
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        assert left == []

    virtual.run(main())
