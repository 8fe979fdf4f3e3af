"""The engine of one broker: assembled when the broker starts, gone when it has stopped.

A broker without subscribers opens nothing. Subscribers come and go while it runs.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from outlast.engine.engine import GRACE_SECONDS, Engine
from outlast.engine.options import EngineOptions
from outlast.model.errors import NotConnected
from outlast.model.events import Emit
from outlast.ports.store import Store

if TYPE_CHECKING:
    from outlast.faststream.subscriber import OutboxSubscriber

T = TypeVar("T")


def this_instance() -> str:
    """Who this process is, unless told otherwise."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Consuming:
    """What the subscribers of one broker run on."""

    def __init__(
        self,
        store: Callable[[], Store],
        *,
        options: EngineOptions,
        emit: Emit | None,
        log: Emit | None,
        logger: logging.Logger | None,
        graceful_timeout: float | None,
    ) -> None:
        self._store = store
        self._options = options
        self._emit = emit
        self._log = log
        self._logger = logger
        self._timeout = GRACE_SECONDS if graceful_timeout is None else graceful_timeout
        self._engine: Engine | None = None
        self._begun = False
        self._has_subscribers = False
        self._opening = asyncio.Lock()

    def on(self, store: Callable[[], Store]) -> "Consuming":
        """The same on another store."""
        return Consuming(
            store,
            options=self._options,
            emit=self._emit,
            log=self._log,
            logger=self._logger,
            graceful_timeout=self._timeout,
        )

    def inline(self, make: Callable[..., T]) -> T:
        """Something else with the same options and ears."""
        return make(self._options, emit=self._emit, log=self._log)

    def prepare(self) -> None:
        """Make the engine, so that subscribers can be added before it starts."""
        self._has_subscribers = False
        # a lock belongs to the loop it was waited for in
        self._opening = asyncio.Lock()
        self._engine = Engine(
            self._store(), self._options, emit=self._emit, log=self._log, logger=self._logger
        )

    async def begin(self) -> None:
        """Start it, if there is anything to consume. Raises what an operator can act on."""
        self._begun = True
        if self._engine is not None and self._has_subscribers:
            await self._engine.start()

    async def add(self, subscriber: "OutboxSubscriber") -> None:
        """Consume the queues of this subscriber."""
        engine = self._engine
        if engine is None:
            raise NotConnected("start the broker before its subscribers")
        if subscriber.subscription is not None or not subscriber.calls:
            return
        subscriber.bind(engine.attempt, keeps_letters=engine.store.has_dead_letters)
        subscriber.subscription = engine.subscribe(
            subscriber.verdicts.subscriber or "",
            subscriber.options,
            subscriber.deliver,
            subscriber.verdicts,
        )
        self._has_subscribers = True
        if self._begun:
            async with self._opening:
                if not engine.is_running:
                    await self._start_late(engine, subscriber)

    async def _start_late(self, engine: Engine, subscriber: "OutboxSubscriber") -> None:
        try:
            await engine.start()
        except BaseException:
            # an engine is started once: the next subscriber gets another
            subscriber.subscription = None
            self.prepare()
            raise

    async def remove(self, subscriber: "OutboxSubscriber") -> None:
        """Drain it and forget it."""
        subscription, subscriber.subscription = subscriber.subscription, None
        if subscription is not None and self._engine is not None:
            await self._engine.stop_subscription(subscription, self._timeout)

    def request_stop(self, subscriber: "OutboxSubscriber") -> None:
        """Stop it soon; for its own handlers."""
        subscription, subscriber.subscription = subscriber.subscription, None
        subscriber.running = False
        if subscription is not None and self._engine is not None:
            self._engine.request_stop(subscription, self._timeout)

    async def end(self) -> None:
        """Drain what is left and close the connections."""
        engine, self._engine = self._engine, None
        self._begun = False
        if engine is not None:
            await engine.stop(self._timeout)

    @property
    def is_healthy(self) -> bool:
        """Whether every loop lives; true while there is nothing to run."""
        engine = self._engine
        return engine is None or not engine.is_running or engine.is_healthy
