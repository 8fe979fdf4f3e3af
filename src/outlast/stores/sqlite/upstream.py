"""The private names of aiosqlite, all of them, and nothing else.

aiosqlite hops to its thread for every statement; running a whole function there needs `_execute`
and `_conn`, which have been there since 0.17. A test holds them to the installed version.
"""

import sqlite3
from collections.abc import Callable
from typing import TypeVar, cast

import aiosqlite

T = TypeVar("T")


async def on_thread(driver: aiosqlite.Connection, function: Callable[[], T]) -> T:
    """Run a function on the connection's own thread; ValueError if the connection is closed."""
    return cast("T", await driver._execute(function))  # type: ignore[no-untyped-call]  # noqa: SLF001


def raw(driver: aiosqlite.Connection) -> sqlite3.Connection:
    """The connection below; ValueError if it is closed."""
    return driver._conn  # noqa: SLF001


def leave(driver: aiosqlite.Connection) -> None:
    """Let the thread close the connection when it gets there. Waits for nothing."""
    stop = getattr(driver, "stop", None)
    if stop is not None:
        stop()
    else:  # before 0.22 the thread ends by this flag
        driver._running = False  # noqa: SLF001
