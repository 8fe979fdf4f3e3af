"""The one connection of a store, and the hop to its thread.

In: a function over a `Hop`. Out: its answer, or a `StoreFailure`. A hop that nobody waits for any
more never commits, and never leaves a transaction open. No statement of the outbox is here.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import aiosqlite

from outlast.model.errors import Disconnected, OutcomeUnknown, OutlastError
from outlast.stores.sqlite import upstream
from outlast.stores.sqlite.clock import NOW
from outlast.stores.sqlite.failures import GivenUp, translate
from outlast.stores.sqlite.names import Names
from outlast.tables.instant import from_text

T = TypeVar("T")

_CLOSE_SECONDS = 2.0


class Hop:
    """One visit to the database thread; `give_up` is the event loop's, the rest the thread's."""

    def __init__(self, raw: sqlite3.Connection, schema: str) -> None:
        self.raw = raw
        self._schema = schema
        self._lock = threading.Lock()
        self._given_up = False
        self._interruptible = False
        self.running = False
        self.execute = raw.execute

    def visit(self, work: Callable[["Hop"], T]) -> T:
        """Do the work, unless it was given up while it waited for the thread."""
        with self._lock:
            if self._given_up:
                raise GivenUp("given up before it began")
            self.running = self._interruptible = True
        try:
            return work(self)
        finally:
            with self._lock:
                self.running = self._interruptible = False

    def give_up(self) -> None:
        """Nobody waits any more: end what runs, let nothing land that has not landed."""
        with self._lock:
            self._given_up = True
            if self._interruptible:
                self.raw.interrupt()

    def now(self) -> tuple[datetime, str]:
        """The database's clock, and its text."""
        text: str = self.execute(NOW).fetchone()[0]
        return from_text(text), text

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[None]:
        """A transaction that holds the write lock from its beginning: one that upgrades would
        fail at once when somebody wrote meanwhile. `durable` survives a power loss.
        """
        if durable:
            self.execute(f"PRAGMA {self._schema}.synchronous=FULL")
        try:
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._pass_the_point_of_no_return()
                self.execute("COMMIT")
            except BaseException:
                with self._lock:
                    # an interrupt must not hit the rollback
                    self._interruptible = False
                if self.raw.in_transaction:
                    self.execute("ROLLBACK")
                raise
        finally:
            if durable:
                self.execute(f"PRAGMA {self._schema}.synchronous=NORMAL")

    def _pass_the_point_of_no_return(self) -> None:
        with self._lock:
            if self._given_up:
                raise GivenUp("given up before the commit")
            self._interruptible = False


class DatabaseConnection:
    """An open connection. Calls of several tasks queue on its thread, one after the other."""

    def __init__(self, driver: aiosqlite.Connection, names: Names) -> None:
        self._driver = driver
        self._names = names
        self._tables = " and ".join(
            repr(name) for name in (names.outbox_plain, names.dlq_plain) if name is not None
        )
        self._hops: set[Hop] = set()
        self.is_open = True

    @property
    def may_still_land(self) -> bool:
        """Whether a call is still under way on the thread, wanted or not."""
        return any(hop.running for hop in self._hops)

    async def run(self, work: Callable[[Hop], T], timeout: float) -> T:
        """One hop. What the work raises comes out as an error of outlast."""
        try:
            return await self._run(work, timeout)
        except TimeoutError:
            raise OutcomeUnknown(
                f"no answer within {timeout:g} s (SQLite, {self._tables})", timed_out=True
            ) from None
        except OutlastError:
            raise
        except Exception as error:
            failure = translate(error, self._tables)
            if isinstance(failure, (Disconnected, OutcomeUnknown)):
                self.is_open = False
            raise failure from error

    async def _run(self, work: Callable[[Hop], T], timeout: float) -> T:
        hop = Hop(upstream.raw(self._driver), self._names.schema)
        self._hops = {former for former in self._hops if former.running}
        self._hops.add(hop)
        try:
            async with asyncio.timeout(timeout):
                return await upstream.on_thread(self._driver, _Bound(hop, work))
        except (TimeoutError, asyncio.CancelledError):
            hop.give_up()
            raise

    async def close(self) -> None:
        """Close within seconds, whatever the thread is doing. Raises nothing."""
        self.is_open = False
        for hop in self._hops:
            hop.give_up()
        try:
            # the thread is free once it has answered this, and closing it cannot hang then
            await self.run(_nothing, _CLOSE_SECONDS)
            await self._driver.close()
        except Exception:  # noqa: BLE001 - closing is best effort
            upstream.leave(self._driver)


class _Bound:
    """A visit as a callable whose debug text, which aiosqlite logs, shows no values."""

    __slots__ = ("_hop", "_work")

    def __init__(self, hop: Hop, work: Callable[[Hop], Any]) -> None:
        self._hop = hop
        self._work = work

    def __call__(self) -> Any:
        return self._hop.visit(self._work)


def _nothing(hop: Hop) -> None:
    del hop
