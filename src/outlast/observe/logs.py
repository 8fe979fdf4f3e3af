"""Events as log lines: the tags become `extra`, the text is one escaped line.

Only what an operator should know is written, and a storm of like events is cut to a few lines and
a count. The common events of a healthy message (`dispatched`, `acked`, …) are not logged at all.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from outlast.model import events
from outlast.observe.recorder import Log

LINES_MAX: Final = 20
"""Lines of one event and queue per window; the rest is counted."""
WINDOW_SECONDS: Final = 10.0
KEYS_MAX: Final = 1000
"""Pairs of event and queue that are told apart in one window."""

_LEVELS: Final[Mapping[str, int]] = {
    events.NACKED_TERMINAL: logging.INFO,
    events.LEASE_LOST: logging.WARNING,
    events.DISPATCH_ABANDONED: logging.WARNING,
    # the engine has told it as an ERROR, with what the database said
    events.DLQ_WRITE_FAILED: logging.DEBUG,
    # likewise, with the number of rows
    events.DRAIN_TIMEOUT: logging.DEBUG,
    events.SETTLE_UNKNOWN: logging.WARNING,
    events.UNSETTLED: logging.WARNING,
    events.RELEASED: logging.DEBUG,
}

_TEXTS: Final[Mapping[str, str]] = {
    events.NACKED_TERMINAL: "a message failed for good",
    events.LEASE_LOST: "lease lost: another worker had taken over, the outcome is dropped",
    events.DISPATCH_ABANDONED: "a handler did not end when cancelled; its lease runs out",
    events.DLQ_WRITE_FAILED: "a dead letter could not be written; the row comes back at expiry",
    events.SETTLE_UNKNOWN: "the answer to a settle was lost, and the row is not ours any more",
    events.UNSETTLED: "a handler returned without ack, nack or reject; the lease runs out",
    events.RELEASED: "a message was given back unattempted",
    events.DRAIN_TIMEOUT: "drain timed out with rows in hand",
}


def escaped(text: str) -> str:
    """The text on one line: control characters and line separators are spelled out."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def _level(name: str, tags: Mapping[str, Any]) -> int | None:
    # no handler ran, so nobody else has told that this message is over
    if name == events.NACKED_TERMINAL and tags.get("reason") == "max_deliveries":
        return logging.WARNING
    return _LEVELS.get(name)


def _shown(value: Any) -> Any:
    return escaped(value) if isinstance(value, str) else value


class LogRecorder:
    """A recorder that writes log lines. Guard it like any other."""

    def __init__(self, logger: Log, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._window_ends = clock() + WINDOW_SECONDS
        self._written: dict[tuple[str, str], int] = {}

    def __call__(self, name: str, tags: Mapping[str, Any]) -> None:
        """Write the event, if it is one that is written."""
        level = _level(name, tags)
        if level is None or not self._admits(name, str(tags.get("queue", ""))):
            return
        shown = {key: _shown(value) for key, value in tags.items()}
        facts = " ".join(f"{key}={value}" for key, value in shown.items())
        self._logger.log(level, f"{_TEXTS[name]} [{facts}]", extra={"event": name, **shown})

    def _admits(self, name: str, queue: str) -> bool:
        if self._clock() >= self._window_ends:
            self._close_window()
        key = (name, queue)
        if key not in self._written and len(self._written) >= KEYS_MAX:
            key = (name, "")
        self._written[key] = self._written.get(key, 0) + 1
        return self._written[key] <= LINES_MAX

    def _close_window(self) -> None:
        written, self._written = self._written, {}
        self._window_ends = self._clock() + WINDOW_SECONDS
        for (name, queue), count in written.items():
            if count > LINES_MAX:
                self._logger.log(
                    logging.WARNING,
                    f"{count - LINES_MAX} more {name} of queue {escaped(queue)!r} were not logged",
                    extra={"event": name, "queue": escaped(queue), "omitted": count - LINES_MAX},
                )
