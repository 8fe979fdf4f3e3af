"""An exception as text that any database can store. Called for hostile exceptions: never raises.

What can go wrong here goes wrong quietly: the description degrades, the transition happens.
"""

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from outlast.model.failure import Failure
from outlast.policy.classify import categorize, http_status
from outlast.policy.fingerprint import fingerprint

TEXT_CHARS_MAX = 8192
TEXT_BYTES_MAX = 8192
FRAMES_MAX = 20
TRUNCATED = "…[truncated]"

Renderer = Callable[[BaseException], str | None]

_ANYTHING = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What hostile code may raise where nobody awaits it; only Ctrl-C goes through."""


def storable(text: str) -> str:
    """Without NUL and lone surrogates, which PostgreSQL's text refuses."""
    if "\x00" in text:
        text = text.replace("\x00", "\\x00")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def bounded_chars(text: str, most: int = TEXT_CHARS_MAX) -> str:
    """At most `most` characters, the marker included."""
    # cut before cleaning: a hostile text may be 100 MB long
    cut = len(text) > most
    text = storable(text[: most + 1])
    if cut or len(text) > most:
        return text[: most - len(TRUNCATED)] + TRUNCATED
    return text


def bounded_bytes(text: str, most: int = TEXT_BYTES_MAX) -> str:
    """At most `most` bytes of UTF-8, the marker included."""
    cut = len(text) > most
    text = storable(text[: most + 1])
    raw = text.encode("utf-8")
    if not cut and len(raw) <= most:
        return text
    room = most - len(TRUNCATED.encode("utf-8"))
    return raw[:room].decode("utf-8", "ignore") + TRUNCATED


def _safely(call: Callable[[], Any], placeholder: str) -> str:
    """The text, or a placeholder when asking for it raises or gives something else."""
    with contextlib.suppress(*_ANYTHING):
        text = call()
        if isinstance(text, str):
            # an instance of a subclass could misbehave later
            return str.__str__(text)
    return placeholder


def type_name(exception: BaseException) -> str:
    """The qualified name of the exception's class."""
    cls = type(exception)
    module = _safely(lambda: cls.__module__, "?")
    name = _safely(lambda: cls.__qualname__, "Exception")
    return name if module in {"builtins", "__main__"} else f"{module}.{name}"


def _frames(tb: TracebackType | None) -> tuple[list[traceback.FrameSummary], int]:
    total = 0
    walk = tb
    while walk is not None:
        total += 1
        walk = walk.tb_next
    skipped = max(0, total - FRAMES_MAX)
    return list(traceback.extract_tb(tb, limit=-FRAMES_MAX)), skipped


def _trace(exception: BaseException, headline: str) -> str:
    frames, skipped = _frames(exception.__traceback__)
    lines = ["Traceback (most recent call last):\n"]
    if skipped:
        lines.append(f"  [{skipped} earlier frames left out]\n")
    # one by one: formatted together, like frames of a recursion are folded
    lines += [line for frame in frames for line in traceback.format_list([frame])]
    lines.append(headline)
    text = "".join(lines)
    if len(text.encode("utf-8", "backslashreplace")) <= TEXT_BYTES_MAX:
        return text
    # the innermost frames say most: cut from the front
    keep = storable(text).encode("utf-8")[-(TEXT_BYTES_MAX - 64) :].decode("utf-8", "ignore")
    return f"{TRUNCATED}\n{keep}"


def describe(
    exception: BaseException | None,
    *,
    subscriber: str | None,
    renderer: Renderer | None = None,
    reason: str | None = None,
) -> Failure:
    """Everything that is kept of an exception. A renderer that returns None drops its text."""
    if exception is None:
        return Failure(category=categorize(None, reason), fingerprint=fingerprint(subscriber, None))
    name = type_name(exception)
    placeholder = f"<{name}: its text could not be made>"
    text: str | None
    if renderer is None:
        text = _safely(lambda: repr(exception), placeholder)
        message = _safely(lambda: str(exception), placeholder)
    else:
        try:
            rendered = renderer(exception)
        except _ANYTHING:  # user code; the text degrades, nothing else
            rendered = placeholder
        text = rendered if isinstance(rendered, str) or rendered is None else placeholder
        message = text or ""
    headline = bounded_bytes(f"{name}: {message[:1000]}" if message else name, 1024)
    trace: str | None = None
    with contextlib.suppress(*_ANYTHING):
        trace = bounded_bytes(_trace(exception, headline), TEXT_BYTES_MAX)
    status: int | None = None
    with contextlib.suppress(*_ANYTHING):
        status = http_status(exception)
    category = "UNKNOWN"
    with contextlib.suppress(*_ANYTHING):
        category = categorize(exception, reason)
    mark: str | None = None
    with contextlib.suppress(*_ANYTHING):
        mark = fingerprint(subscriber, exception)
    return Failure(
        exception_type=bounded_chars(type(exception).__name__, 255),
        last_exception=None if text is None else bounded_chars(text),
        error_type=bounded_chars(name, 255),
        error_message=bounded_bytes(message) if renderer is None or text is not None else None,
        stack_trace=trace,
        category=category,
        fingerprint=mark,
        http_status=status,
    )
