"""Recorders, guarded and joined. A recorder comes in, one that cannot do harm goes out.

Called by the doors when they assemble an engine. What a recorder raises must never reach a
message: it is told at DEBUG and forgotten.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from outlast.model.events import Emit


class Log(Protocol):
    """What is asked of a logger; `logging.Logger` has it."""

    def log(
        self,
        level: int,
        msg: Any,
        /,
        *,
        exc_info: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write one line."""


def silent(_name: str, _tags: Mapping[str, Any]) -> None:
    """The recorder of those who record nothing."""


def guarded(recorder: Emit | None, logger: Log | None = None) -> Emit:
    """The recorder, with everything it raises swallowed and logged at DEBUG."""
    if recorder is None:
        return silent
    record = recorder

    def emit(name: str, tags: Mapping[str, Any]) -> None:
        try:
            record(name, tags)
        # nobody awaits a recorder, so a CancelledError from one cancels nobody
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - user code
            _tell(logger, name, error)

    return emit


def _tell(logger: Log | None, name: str, error: BaseException) -> None:
    if logger is None:
        return
    # a logger is user code too, and the exception may be one that cannot be formatted
    with contextlib.suppress(Exception):
        logger.log(
            logging.DEBUG,
            f"metrics recorder raised on {name}",
            exc_info=error,
            extra={"event": name},
        )


def joined(*recorders: Emit) -> Emit:
    """One recorder that calls each of these in order. Each guards itself."""
    loud = [recorder for recorder in recorders if recorder is not silent]
    if not loud:
        return silent
    if len(loud) == 1:
        return loud[0]
    every = tuple(loud)

    def emit(name: str, tags: Mapping[str, Any]) -> None:
        for recorder in every:
            recorder(name, tags)

    return emit
