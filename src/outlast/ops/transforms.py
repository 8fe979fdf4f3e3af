"""Transforms: the functions of an application that mend messages, found by name and called.

In: `module:function`, or the text of a JSON Patch. Out: a `Transform`; what a call gave back, or an
`EditError` that names what the function raised. Never called while a transaction is open.
"""

import asyncio
import contextvars
import hashlib
import importlib
import inspect
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from outlast.model.edit import EditError, Transform
from outlast.ops.refusals import BadRequest
from outlast.policy.exact_json import NotJson, Unkept, loads
from outlast.policy.json_patch import read_patch

PATCH_BYTES_MAX = 16 * 1024 * 1024
NAME_CHARS_MAX = 255

_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_TAKES_HEADERS = 2
_ERROR_CHARS = 300


def load_patch(text: str | bytes) -> tuple[Mapping[str, Any], ...]:
    """The operations of a JSON Patch, with its numbers as they are written."""
    given = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(given) > PATCH_BYTES_MAX:
        raise BadRequest(f"the patch has {len(given):,} bytes; {PATCH_BYTES_MAX:,} are taken")
    try:
        found = loads(given)
        if isinstance(found, list):
            read_patch(found)
            return tuple(found)
    except (NotJson, Unkept) as error:
        raise BadRequest(f"the patch cannot be read: {error}", _PATCH_LOOKS) from None
    except EditError as error:
        raise BadRequest(f"the patch cannot be used: {error}", error.remedy) from None
    raise BadRequest("a patch is a list of operations", _PATCH_LOOKS)


_PATCH_LOOKS = """it looks like [{"op": "replace", "path": "/price", "value": 0}]"""


def load_transform(name: str) -> Transform:
    """The function `module:function`; modules of the working directory are found too."""
    if len(name) > NAME_CHARS_MAX or _NAME.fullmatch(name) is None:
        raise BadRequest(f"a transform is module:function, got {name[:NAME_CHARS_MAX]!r}")
    place, _, path = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # behind everything else: no file here takes the name of a library
    try:
        module: Any = importlib.import_module(place)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of user code
        raise BadRequest(
            f"the module of the transform {name!r} cannot be imported: {_told(error)}",
            "name it as module:function, from here or from an installed package",
        ) from None
    found = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise BadRequest(f"the module {place!r} has no function {path!r}")
    version = getattr(found, "__version__", None) or getattr(module, "__version__", None)
    transform = Transform(name, _version(version), _digest(name, found), found)
    takes_headers(transform)
    return transform


def _version(version: object) -> str | None:
    return version[:64] if isinstance(version, str) and version.isprintable() else None


def _digest(name: str, function: Any) -> str:
    """Of the source; where there is none, of the code."""
    plain = inspect.unwrap(function)
    while hasattr(plain, "func") and not inspect.isroutine(plain):  # a partial
        plain = inspect.unwrap(plain.func)
    if not (inspect.isroutine(plain) or inspect.isclass(plain)):
        plain = type(plain)
    try:
        made = inspect.getsource(plain).encode("utf-8", "surrogatepass")
    except (OSError, TypeError):
        code = getattr(plain, "__code__", None)
        if not isinstance(code, CodeType):
            raise BadRequest(
                f"the transform {name!r} has neither source nor code to record",
                "wrap it in a function of your own",
            ) from None
        made = _code_bytes(code)
    return "sha256:" + hashlib.sha256(made).hexdigest()


def _code_bytes(code: CodeType) -> bytes:
    constants = [
        _code_bytes(part) if isinstance(part, CodeType) else repr(part).encode("utf-8", "replace")
        for part in code.co_consts
    ]
    return b"\x00".join([code.co_code, repr(code.co_names).encode(), *constants])


def takes_headers(transform: Transform) -> bool:
    """Whether it is `f(body, headers)`; otherwise it is `f(body)`."""
    try:
        parameters = inspect.signature(transform.function).parameters.values()
    except (TypeError, ValueError):
        return False
    by_place = [p for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    needed = [p for p in by_place if p.default is p.empty]
    named = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(needed) > _TAKES_HEADERS or named or not (by_place or rest):
        raise BadRequest(
            f"the transform {transform.name!r} is called with the body, or with body and headers; "
            f"it takes {inspect.signature(transform.function)}"
        )
    # a second parameter with a default is the function's own affair unless it says headers
    return len(needed) == _TAKES_HEADERS or any(p.name == "headers" for p in by_place[1:2])


async def call(
    transform: Transform, body: Any, headers: dict[str, Any], seconds: float
) -> tuple[Any, Any]:
    """Body and headers as the function gives them back; None for headers it does not take."""
    both = takes_headers(transform)
    given = (body, headers) if both else (body,)
    task = asyncio.ensure_future(_ended(transform.function, given))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
    if not done:
        raise EditError(
            f"{transform.name} did not end within {seconds:g} seconds",
            "make it faster; what it waits for should have a timeout of its own",
        )
    if task.cancelled():
        raise EditError(f"{transform.name} was cancelled")
    answer = task.result()
    if isinstance(answer, _Raised):
        raise EditError(f"{transform.name} raised {_told(answer.error)}")
    if both and isinstance(answer, tuple) and len(answer) == _TAKES_HEADERS:
        return answer
    if isinstance(answer, tuple):
        takes = "body, headers" if both else "body"
        raise EditError(
            f"{transform.name}({takes}) returned a tuple of {len(answer)}",
            "return the body; f(body, headers) may return both",
        )
    return answer, None


class _Raised:
    """What user code raised, carried out of its task or thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _ended(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    try:
        if _is_async(function):
            return await function(*given)
        answer = await _in_thread(function, given)
        return await answer if isinstance(answer, Awaitable) else answer
    except (Exception, SystemExit) as error:  # noqa: BLE001 - of user code: it is the result
        return _Raised(error)


def _is_async(function: Any) -> bool:
    named = (function, getattr(function, "__call__", None))  # noqa: B004 - what it runs
    return any(inspect.iscoroutinefunction(one) for one in named)


async def _in_thread(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """A thread of its own: one that never ends keeps neither the loop nor the process."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any) -> None:
        if not answer.done():
            answer.set_result(result)

    def work() -> None:
        try:
            result = context.run(function, *given)
        except BaseException as error:  # noqa: BLE001 - nobody waits for the thread itself
            result = _Raised(error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result)

    threading.Thread(target=work, name="outlast-transform", daemon=True).start()
    return await answer


def _told(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own __str__ may fail
        text = type(error).__name__
    return text if len(text) <= _ERROR_CHARS else text[:_ERROR_CHARS] + "…"
