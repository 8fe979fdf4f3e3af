"""The application, by its name `module:attribute`, as `--app` says it.

In: a name. Out: the object, imported once, or a sentence that says what is wrong with the name.
What the application prints while it is imported goes to stderr: stdout belongs to the answer.
"""

import contextlib
import difflib
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from outlast.faststream.broker import OutboxBroker
from outlast.faststream.router import OutboxRouter
from outlast.ops.refusals import BadRequest
from outlast.policy.masking import Masker
from outlast.policy.neutral_text import neutral_text

_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_SAID_CHARS_MAX = 300
_NAMES_SHOWN = 5

Holder = OutboxBroker | OutboxRouter


def load_app(name: str) -> Any:
    """The application, broker or router of this name. The current folder is searched too."""
    module_name, colon, attribute = name.partition(":")
    if not colon or _NAME.fullmatch(module_name) is None or _NAME.fullmatch(attribute) is None:
        raise BadRequest(
            f"{_plain(name)} names no application",
            "write module:attribute, such as shop.app:broker",
        )
    module = _imported(module_name)
    found: Any = module
    for step in attribute.split("."):
        try:
            found = getattr(found, step)
        except Exception:  # noqa: BLE001 - a property may raise anything
            raise _no_attribute(module, attribute) from None
    if not _holds(found):
        raise BadRequest(
            f"{_plain(name)} is a {type(found).__name__} without an OutboxBroker",
            f"name a FastStream application, an OutboxBroker or its router{_candidates(module)}",
        )
    return found


def brokers_of(app: Any) -> list[Holder]:
    """The outbox brokers of an application, a broker, a router."""
    if isinstance(app, OutboxBroker | OutboxRouter):
        return [app]
    held = getattr(app, "brokers", None)
    if not isinstance(held, list | tuple):
        # the FastAPI router has one
        held = [getattr(app, "broker", None)]
    return [broker for broker in held if isinstance(broker, OutboxBroker)]


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise BadRequest(
                f"there is no module {_plain(error.name)}", "call it from the folder it is in"
            ) from None
        raise _failed(name, error) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the application does
        raise _failed(name, error) from None


def _failed(name: str, error: BaseException) -> BadRequest:
    said = " ".join(str(Masker().text(str(error)).value).split())
    why = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return BadRequest(
        f"importing {name} failed: {_plain(why)}",
        f"python -c 'import {name}' shows where",
    )


def _no_attribute(module: ModuleType, attribute: str) -> BadRequest:
    near = difflib.get_close_matches(attribute, [n for n in vars(module) if n.isidentifier()], 1)
    hint = f"did you mean {module.__name__}:{near[0]}?" if near else "write module:attribute"
    return BadRequest(
        f"module {module.__name__} has no {_plain(attribute)}", f"{hint}{_candidates(module)}"
    )


def _candidates(module: ModuleType) -> str:
    """The names in the module that would do."""
    names = [
        f"{module.__name__}:{name}"
        for name, value in list(vars(module).items())
        if not isinstance(value, type) and _holds(value)
    ]
    return f"; there is {', '.join(names[:_NAMES_SHOWN])}" if names else ""


def _holds(value: Any) -> bool:
    try:
        return bool(brokers_of(value))
    except Exception:  # noqa: BLE001 - somebody else's objects
        return False


def _plain(text: str) -> str:
    shown = neutral_text(text)
    return shown if len(shown) <= _SAID_CHARS_MAX else f"{shown[:_SAID_CHARS_MAX]}…"
