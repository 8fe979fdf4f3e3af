"""Dead letters as a test file: one test for each letter, which publishes it to the real handlers.

In: letters as they may be shown. Out: Python source. Everything of a stranger stands in it as an
ASCII literal, or as JSON inside one: no name, header or payload ends where its quotes do.
"""

from collections.abc import Mapping
from typing import Any

from outlast.model import headers as envelope
from outlast.policy.exact_json import write_json
from outlast.policy.export_forms import NO_JSON, ExportedLetter, message_id_of
from outlast.policy.masking import MASK

_TOLD_CHARS_MAX = 500
_ID_CHARS_MAX = 255

HEAD = '''"""Dead letters as tests: each is published once more, and must not fail again.

Set APP, or the environment variable OUTLAST_APP, to module:attribute of your OutboxBroker, or of
the FastStream application that has one. Replace what reads <masked: ...> by values of your own.
"""

import asyncio
import json
import os
from importlib import import_module
from typing import Any

import pytest

APP = os.environ.get("OUTLAST_APP", "your_module:broker")


def load_broker() -> Any:
    module, _, attribute = APP.partition(":")
    try:
        found = import_module(module)
        for name in (attribute or "broker").split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        pytest.fail(f"set APP to module:attribute of your OutboxBroker; {APP!r} is none: {error}")
    return getattr(found, "broker", found)


def publish(
    letter: str,
    *,
    was: str,
    queue: str,
    body: bytes,
    headers: dict[str, Any] | None,
    message_id: str | None = None,
    event_type: str | None = None,
) -> None:
    from outlast.testing import TestOutboxBroker

    async def once() -> tuple[list[Any], list[Any]]:
        test_broker = TestOutboxBroker(load_broker())
        async with test_broker as broker:
            await broker.publish(
                body, queue=queue, headers=headers, message_id=message_id, event_type=event_type
            )
            return list(test_broker.fake_client.rows), list(test_broker.fake_client.dlq_rows)

    rows, dead = asyncio.run(once())
    if dead:
        why = f"{dead[0]['failure_reason']}: {dead[0]['last_exception']}"
        pytest.fail(f"{letter} fails again, with {why}; it was {was}")
    waiting = [row for row in rows if row.queue == queue and row.attempts_count]
    if waiting:
        pytest.fail(f"{letter} fails again and waits for a retry; it was {was}")
    if any(row.queue == queue and row.payload == body for row in rows):
        pytest.fail(f"{letter} was taken by nobody: no handler of {APP!r} serves {queue!r}")
'''


def letter_test(exported: ExportedLetter) -> str:
    """The test of one letter."""
    letter = exported.letter
    given = letter.headers or {}
    event_type = letter.event_type or given.get(envelope.EVENT_TYPE)
    arguments: dict[str, str] = {
        "was": ascii(letter.failure[:_TOLD_CHARS_MAX]),
        "queue": ascii(letter.queue),
        "body": repr(_body(exported)),
        "headers": _headers(letter.headers, masked=exported.masked),
        "message_id": _id(message_id_of(letter)),
        "event_type": _id(event_type),
    }
    lines = "".join(f"        {name}={literal},\n" for name, literal in arguments.items())
    return (
        f"\n\ndef test_letter_{int(letter.id)}() -> None:\n"
        f'    publish(\n        "dead letter {int(letter.id)}",\n{lines}    )\n'
    )


def _body(exported: ExportedLetter) -> bytes:
    if exported.text is None:
        return exported.payload
    if not exported.masked:
        return exported.text.encode()
    if exported.body is NO_JSON:
        return str(_named(exported.text, "body")).encode()
    return write_json(_named(exported.body, "body")).encode()


def _headers(headers: Mapping[str, Any] | None, *, masked: bool) -> str:
    if headers is None:
        return "None"
    # the reserved ones are the broker's to write
    given = {
        name: _named(value, f"header {name}") if masked else value
        for name, value in headers.items()
        if not name.lower().startswith(envelope.RESERVED_PREFIX)
    }
    return f"json.loads({write_json(given)!a})"


def _id(value: object) -> str:
    is_usable = isinstance(value, str) and 0 < len(value) <= _ID_CHARS_MAX
    return ascii(value) if is_usable else "None"


def _named(value: Any, place: str) -> Any:
    """The value with the name of its place where something is masked."""
    if isinstance(value, str):
        return value.replace(MASK, f"<masked: {place}>")
    if isinstance(value, Mapping):
        return {
            _named(str(key), f"{place}, a name"): _named(inner, f"{place}.{key}")
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_named(inner, f"{place}.{number}") for number, inner in enumerate(value)]
    return value
