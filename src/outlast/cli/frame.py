"""Around every verb that works on a database: who asks, the desk, and how it ends.

In: the shared options and what to do. Out: an exit status: 0 done, 1 failed, 2 usage or
environment, 3 refused by a gate. No error leaves as anything but a sentence.
"""

import asyncio
import contextlib
import getpass
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlast.cli.asking import Asked, Wanted
from outlast.cli.paper import is_of_output, print_document, tell, tell_unwritten
from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    NoDeadLetterQueue,
    OutlastError,
    RowLocked,
    SchemaError,
    TryLater,
    UnsupportedDatabase,
)
from outlast.model.query import FilterError, Query
from outlast.ops import SCOPES, Actor, BadRequest, Desk, DeskError, NotRecorded
from outlast.ops.options import BodyTest
from outlast.ops.redaction import pretty
from outlast.policy.filter_text import parse, pointer, with_options

if TYPE_CHECKING:
    from outlast.config import Settings

DONE, FAILED, USAGE = 0, 1, 2

_USAGE_ERRORS = (
    BadRequest,
    CannotWrite,
    Disconnected,
    FilterError,
    NotRecorded,
    SchemaError,
    UnsupportedDatabase,
)

_NO_RIGHT = "42501"
_DRIVER_THREAD, _DRIVER_SECONDS = "_connection_worker_thread", 1.0

Body = Callable[[Desk, Actor], Awaitable[int]]


class Unanswered(Exception):  # noqa: N818 - an end, not an error
    """A question that nobody could, or would, answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run(asked: Asked, body: Body, *, loads_app: bool = False) -> int:
    """Do it, and say how it ended. `loads_app`: where one is named, its models check bodies."""
    return ended(asked, lambda: asyncio.run(_at_the_desk(asked, body, loads_app=loads_app)))


def ended(asked: Asked, do: Callable[[], int]) -> int:
    """How it ended, as an exit status; an error is said in a sentence."""
    try:
        try:
            status = do()
        except Unanswered as end:
            if asked.json:
                show({"error": str(end)})
            tell(str(end))
            status = end.status
        except OutlastError as error:
            status = failed(asked, error)
        except (KeyboardInterrupt, asyncio.CancelledError):
            tell("Aborted.")
            status = FAILED
        sys.stdout.flush()
    except OSError as error:
        if not is_of_output(error):
            raise
        tell_unwritten(error)
        return FAILED
    return status


def failed(asked: Asked, error: OutlastError, done: dict[str, Any] | None = None) -> int:
    """Say an error and its remedy; with `--json` the document has both."""
    remedy = error.remedy if isinstance(error, DeskError) else _remedy(error)
    if asked.json:
        told = {"error": str(error)} | ({"remedy": remedy} if remedy else {})
        show(told if done is None else done | told)
    tell(f"Error: {error}" if isinstance(error, NoDeadLetterQueue) else str(error))
    for note in getattr(error, "__notes__", ()):
        tell(note, lines=True)
    if remedy:
        tell(f"  {remedy}")
    if isinstance(error, NoDeadLetterQueue) and asked.dlq_table is None:
        return FAILED  # nothing was mistyped: there is none
    return USAGE if isinstance(error, _USAGE_ERRORS) else FAILED


def _remedy(error: OutlastError) -> str | None:
    """What would help where the database or the driver said what is wrong."""
    if isinstance(error, Disconnected):
        return "look whether the database runs, and what --dsn, OUTLAST_DSN or DATABASE_URL says"
    if isinstance(error, CannotWrite) and error.state == _NO_RIGHT:
        return "this role lacks the right; name another one with --dsn"
    if isinstance(error, CannotWrite) and error.state == "SQLITE_NOTADB":
        return "name the right file with --dsn"
    return "try again in a moment" if isinstance(error, RowLocked | TryLater) else None


def show(document: Any) -> None:
    """The document of `--json`, numbers as they were written."""
    print_document(pretty(document))


def query_of(wanted: Wanted, *, rows: bool = False) -> Query:
    """The filter that was asked for; where it is wrong, the error shows the place.

    `rows`: it is asked of live messages.
    """
    now = datetime.now(UTC)
    try:
        return with_options(
            parse(wanted.text, now=now, rows=rows),
            now=now,
            queue=wanted.queue,
            subscription=wanted.subscription,
            subscriber=wanted.subscriber,
            category=wanted.category,
            state=wanted.state,
            since=wanted.since,
            until=wanted.until,
            rows=rows,
        )
    except FilterError as error:
        place = pointer(wanted.text, error)
        if place:
            error.add_note(place)
        raise


def ids_of(texts: Iterable[str]) -> tuple[list[int], list[str]]:
    """The ids, and what is none."""
    numbers, others = [], []
    for text in texts:
        if text.isascii() and text.isdecimal() and len(text) <= 30:  # noqa: PLR2004
            numbers.append(int(text))
        else:
            others.append(text)
    return numbers, others


def one_id(text: str) -> int:
    """An id that may exist: a malformed one is that of no letter."""
    numbers, _ = ids_of([text])
    return numbers[0] if numbers else 0


async def _at_the_desk(asked: Asked, body: Body, *, loads_app: bool = False) -> int:
    """Open the database and the desk on it, and close them after."""
    from outlast.cli.address import engine_at  # noqa: PLC0415 - a bad actor costs no driver

    actor = Actor(asked.actor or os.environ.get("OUTLAST_ACTOR") or _whoever(), SCOPES)
    settings = settings_of(asked)
    if not settings.dsn:
        raise BadRequest("no database is named", "give --dsn, or set OUTLAST_DSN or DATABASE_URL")
    try:
        options = settings.desk_options(_body_test(settings) if loads_app else None)
        engine = engine_at(settings.dsn)
        desk = Desk(engine, settings.table, settings.dlq_table, options=options)
    except (TypeError, ValueError) as error:
        if isinstance(error, OutlastError):
            raise
        raise BadRequest(str(error)) from None
    others = set(threading.enumerate())
    try:
        return await body(desk, actor)
    finally:
        with contextlib.suppress(OSError):
            await engine.dispose()
        _await_driver(others)


def _await_driver(others: set[threading.Thread]) -> None:
    """A connection that could not be opened is still ending its thread, which must not find its
    loop closed: it would say so with a traceback.
    """
    for thread in set(threading.enumerate()) - others:
        if _DRIVER_THREAD in thread.name:
            thread.join(_DRIVER_SECONDS)


def settings_of(asked: Asked, **more: Any) -> "Settings":
    """Options before environment before file before defaults."""
    from outlast.config import ConfigError, load_settings  # noqa: PLC0415 - not for --help

    names = ("dsn", "table", "dlq_table", "app")
    given = {name: getattr(asked, name) for name in names} | more
    try:
        return load_settings(Path(asked.config) if asked.config else None, **given)
    except ConfigError as error:
        raise BadRequest(str(error)) from None


def _body_test(settings: "Settings") -> BodyTest | None:
    """Asks the models of the application that was named."""
    if not settings.app:
        return None
    from outlast.faststream.body_check import body_test_of, load_app  # noqa: PLC0415

    return body_test_of(load_app(settings.app))


def _whoever() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
