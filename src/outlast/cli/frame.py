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
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from outlast.cli.asking import Asked, Wanted
from outlast.cli.paper import print_document, tell
from outlast.model.errors import Disconnected, OutlastError, SchemaError, UnsupportedDatabase
from outlast.model.query import FilterError, Query
from outlast.ops import SCOPES, Actor, BadRequest, Desk, DeskError, NotRecorded
from outlast.ops.redaction import pretty
from outlast.policy.filter_text import parse, pointer, with_options

DONE, FAILED, USAGE = 0, 1, 2

_USAGE_ERRORS = (
    BadRequest,
    Disconnected,
    FilterError,
    NotRecorded,
    SchemaError,
    UnsupportedDatabase,
)

Body = Callable[[Desk, Actor], Awaitable[int]]


class Unanswered(Exception):  # noqa: N818 - an end, not an error
    """A question that nobody could, or would, answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run(asked: Asked, body: Body) -> int:
    """Do it, and say how it ended."""
    try:
        status = asyncio.run(_at_the_desk(asked, body))
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read the output has seen enough; nothing more is to be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Unanswered as end:
        if asked.json:
            show({"error": str(end)})
        tell(str(end))
        return end.status
    except OutlastError as error:
        return failed(asked, error)
    except KeyboardInterrupt:
        tell("Aborted.")
        return FAILED
    return status


def failed(asked: Asked, error: OutlastError, done: dict[str, Any] | None = None) -> int:
    """Say an error and its remedy; with `--json` the document has both."""
    remedy = error.remedy if isinstance(error, DeskError) else None
    if asked.json:
        told = {"error": str(error)} | ({"remedy": remedy} if remedy else {})
        show(told if done is None else done | told)
    tell(str(error))
    for note in getattr(error, "__notes__", ()):
        tell(note, lines=True)
    if remedy:
        tell(f"  {remedy}")
    return USAGE if isinstance(error, _USAGE_ERRORS) else FAILED


def show(document: Any) -> None:
    """The document of `--json`, numbers as they were written."""
    print_document(pretty(document))


def query_of(wanted: Wanted) -> Query:
    """The filter that was asked for; where it is wrong, the error shows the place."""
    now = datetime.now(UTC)
    try:
        return with_options(
            parse(wanted.text, now=now),
            now=now,
            queue=wanted.queue,
            subscription=wanted.subscription,
            subscriber=wanted.subscriber,
            category=wanted.category,
            state=wanted.state,
            since=wanted.since,
            until=wanted.until,
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


async def _at_the_desk(asked: Asked, body: Body) -> int:
    from outlast.cli.address import engine_at  # noqa: PLC0415 - a bad actor costs no driver

    given = replace(
        asked,
        dsn=asked.dsn or os.environ.get("OUTLAST_DSN") or os.environ.get("DATABASE_URL"),
        table=asked.table or os.environ.get("OUTLAST_TABLE") or "outbox",
        dlq_table=asked.dlq_table or os.environ.get("OUTLAST_DLQ_TABLE") or "outbox_dlq",
        actor=asked.actor or os.environ.get("OUTLAST_ACTOR") or _whoever(),
    )
    assert given.table is not None, "it has a default"
    assert given.dlq_table is not None, "it has a default"
    if not given.dsn:
        raise BadRequest("no database is named", "give --dsn, or set OUTLAST_DSN or DATABASE_URL")
    actor = Actor(given.actor or "", SCOPES)
    try:
        engine = engine_at(given.dsn)
        desk = Desk(engine, given.table, given.dlq_table)
    except (TypeError, ValueError) as error:
        if isinstance(error, OutlastError):
            raise
        raise BadRequest(str(error)) from None
    try:
        return await body(desk, actor)
    finally:
        with contextlib.suppress(OSError):
            await engine.dispose()


def _whoever() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
