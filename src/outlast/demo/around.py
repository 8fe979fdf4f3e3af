"""Around a run: the file it works on, its log, and Ctrl-C.

In: a path, or none. Out: a path that may be used, or a sentence why not. A file that the demo has
not made is never touched: it bears a mark that no other database has.
"""

import asyncio
import logging
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType
from typing import Any, TypeVar

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outlast.model.errors import OutlastError

T = TypeVar("T")

_MARK = int.from_bytes(b"outl", "big")


class CannotUseFile(OutlastError):  # noqa: N818 - reads as the sentence it becomes
    """The file cannot be made, or is none of the demo's."""


@contextmanager
def new_file(asked: Path | None) -> Iterator[Path]:
    """A file of the demo's own. It stays; a folder that nobody was told of does not."""
    if asked is not None:
        _make(asked.absolute())
        yield asked.absolute()
        return
    try:
        folder = Path(mkdtemp(prefix="outlast-demo-")).absolute()
    except OSError as error:
        raise CannotUseFile(f"there is no folder for temporary files: {error}") from None
    try:
        _make(folder / "shop.db")
        yield folder / "shop.db"
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _make(path: Path) -> None:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise CannotUseFile(
            f"{path} exists already, and the demo never touches it: delete it or name another "
            "(--fixed works on the file of an earlier demo)"
        ) from None
    except OSError as error:
        raise CannotUseFile(f"cannot make {path}: {error.strerror or error}") from None
    try:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA application_id = {_MARK}")
    except sqlite3.Error as error:
        raise CannotUseFile(f"cannot make {path}: {error}") from None


def earlier_file(asked: Path | None) -> Path:
    """The file that an earlier demo has made."""
    if asked is None:
        raise CannotUseFile("--fixed needs --file: the file that an earlier demo has named")
    path = asked.absolute()
    if not path.is_file():
        raise CannotUseFile(f"there is no file {path}: a demo without --fixed makes one")
    if not os.access(path, os.R_OK | os.W_OK):
        raise CannotUseFile(f"{path} cannot be read and written: look at its permissions")
    try:
        with closing(sqlite3.connect(path)) as connection:
            (mark,) = connection.execute("PRAGMA application_id").fetchone()
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    except sqlite3.Error:
        mark = tables = 0
    if mark != _MARK:
        raise CannotUseFile(f"no demo has made {path}: it is left alone")
    if not tables:
        raise CannotUseFile(f"the demo that made {path} was ended before it began: delete it")
    return path


def engine_on(path: Path) -> AsyncEngine:
    """The application's engine."""
    return create_async_engine(URL.create("sqlite+aiosqlite", database=str(path)))


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def own_log() -> Iterator[list[str]]:
    """Warnings of the libraries go beside the picture, not through it."""
    lines = _Lines()
    former = {logging.getLogger(name): True for name in ("outlast", "sqlalchemy")}
    for logger in former:
        former[logger], logger.propagate = logger.propagate, False
        logger.addHandler(lines)
    try:
        yield lines.lines
    finally:
        for logger, propagate in former.items():
            logger.removeHandler(lines)
            logger.propagate = propagate


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run it. A second Ctrl-C cancels it, which may come out as a cancellation."""
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextmanager
def signals(stop: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) asks to stop; the second does what it always does."""
    former: dict[int, Any] = {}

    def restore() -> None:
        while former:
            signal.signal(*former.popitem())

    def asked(number: int, frame: FrameType | None) -> None:
        del number, frame
        restore()
        stop()

    with suppress(ValueError):  # not in the main thread: nobody presses Ctrl-C here
        for number in (signal.SIGINT, signal.SIGTERM):
            former[number] = signal.signal(number, asked)
    try:
        yield
    finally:
        restore()
