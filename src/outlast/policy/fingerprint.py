"""The mark that groups failures of one cause: where it happened and what kind, never its text."""

import hashlib
from types import TracebackType

VERSION = "v1"
_CHAIN_MAX = 20
_FOREIGN = ("outlast", "faststream", "fast_depends", "anyio", "asyncio", "sqlalchemy", "pydantic")


def _chain(exception: BaseException) -> list[str]:
    names: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = exception
    while link is not None and id(link) not in seen and len(names) < _CHAIN_MAX:
        seen.add(id(link))
        cls = type(link)
        names.append(f"{cls.__module__}.{cls.__qualname__}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return names


def _application_frame(tb: TracebackType | None) -> str:
    """The first frame that is the application's own: `module:function`, no line."""
    found = ""
    while tb is not None:
        frame = tb.tb_frame
        module = str(frame.f_globals.get("__name__", "?"))
        if module.partition(".")[0] not in _FOREIGN:
            found = f"{module}:{frame.f_code.co_name}"
            break
        tb = tb.tb_next
    return found


def fingerprint(subscriber: str | None, exception: BaseException | None) -> str:
    """`v1:` and 32 hex digits over subscriber, type chain and first application frame."""
    parts = [subscriber or ""]
    if exception is not None:
        parts += _chain(exception)
        parts.append(_application_frame(exception.__traceback__))
    digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "backslashreplace")).hexdigest()
    return f"{VERSION}:{digest[:32]}"
