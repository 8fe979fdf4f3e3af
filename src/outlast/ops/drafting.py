"""What an edit makes of one message: applied, applied again, compared.

In: an edit, body and headers as they are. Out: body and headers as they would be, or an
`EditError`. Runs user code, therefore never inside a transaction; large bodies are worked on aside.
"""

import asyncio
import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from outlast.model.edit import Edit, EditError, Transform
from outlast.ops.transforms import call
from outlast.policy.edit_rules import check_bytes, check_masks, edited_headers, with_headers
from outlast.policy.exact_json import NotJson, Unkept, dumps, loads
from outlast.policy.json_patch import Operation, TestFailed, apply_patch, read_patch

_AT_ONCE_BYTES = 64 * 1024
"""Larger bodies are worked on in a thread, so that nobody waits for them."""

_BY_HAND = "give the whole body with --payload"

Answer = TypeVar("Answer")


class Message(NamedTuple):
    """Body and headers, without the reserved ones."""

    payload: bytes
    headers: Mapping[str, Any]


class Limits(NamedTuple):
    """Bytes of a body, seconds of a call."""

    body_bytes: int
    call_seconds: float


async def mended(edit: Edit, before: Message, limits: Limits) -> Message:
    """The message after the edit, which has been found to be idempotent or is said not to be."""
    after = await _applied(edit, before, limits, again=False)
    if after.payload != before.payload:
        check_bytes(after.payload, limits.body_bytes)
    await aside(after.payload, check_masks, before, after)
    computed = edit.patch is not None or edit.transform is not None
    if computed and after != before and not edit.not_idempotent:
        await _check_idempotent(edit, after, limits)
    return after


async def _check_idempotent(edit: Edit, after: Message, limits: Limits) -> None:
    what = edit.transform.name if edit.transform else "the patch"
    way = (
        "let it leave a message alone that is mended already"
        if edit.transform
        else "begin the patch with a test of what it mends"
    )
    remedy = f"{way}; or say --not-idempotent, which is recorded"
    try:
        second = await _applied(edit, after, limits, again=True)
    except EditError as error:
        raise EditError(
            f"{what} is not idempotent: it cannot be applied to its own result: {error}", remedy
        ) from None
    same = await aside(after.payload, _alike, after, second)
    if not same:
        raise EditError(
            f"{what} is not idempotent: applied to its own result it changes it again", remedy
        )


async def _applied(edit: Edit, before: Message, limits: Limits, *, again: bool) -> Message:
    after = before
    if edit.payload is not None:
        after = before._replace(payload=edit.payload)
    elif edit.patch is not None:
        steps = read_patch(edit.patch)
        payload = await aside(
            before.payload, _patched, before.payload, steps, limits.body_bytes, again
        )
        after = before._replace(payload=payload)
    elif edit.transform is not None:
        after = await _transformed(edit.transform, before, limits.call_seconds)
    return after._replace(headers=edited_headers(after.headers, edit))


def _patched(payload: bytes, steps: tuple[Operation, ...], most: int, again: bool) -> bytes:
    try:
        document = loads(payload)
        text = dumps(document)
    except (NotJson, Unkept) as error:
        raise EditError(f"the body cannot be patched: {_why(error)}", _BY_HAND) from None
    try:
        document = apply_patch(document, steps, nodes_max=most, again=again)
    except TestFailed:
        if again:
            return payload  # the patch asks first, and finds its own work: nothing is left to do
        raise
    return _written(document, text, payload)


async def _transformed(transform: Transform, before: Message, seconds: float) -> Message:
    try:
        body, text = await aside(before.payload, _read, before.payload)
    except Unkept as error:
        raise EditError(f"the body cannot be changed: {_why(error)}", _BY_HAND) from None
    headers = copy.deepcopy(dict(before.headers))
    answer, given_headers = await call(transform, body, headers, seconds)
    after = headers if given_headers is None else given_headers
    payload = await aside(before.payload, _returned, transform.name, answer, text, before.payload)
    return Message(payload, with_headers(before.headers, after))


def _read(payload: bytes) -> tuple[Any, str | None]:
    """The value of a JSON body and its text; of any other the bytes, and None."""
    try:
        value = loads(payload)
    except NotJson:
        return payload, None
    return value, dumps(value)


def _returned(name: str, answer: Any, text: str | None, payload: bytes) -> bytes:
    if isinstance(answer, bytes | bytearray):
        return bytes(answer)
    if answer is None:
        raise EditError(
            f"{name} returned None", "return the body, also when it is changed in place"
        )
    if text is None and isinstance(answer, str):
        raise EditError(
            f"{name} got bytes, for the body is no JSON, and returned str", "return bytes"
        )
    try:
        return _written(answer, text, payload)
    except Unkept as error:
        raise EditError(f"{name} returned what JSON does not keep: {error}") from None


def _written(value: Any, text: str | None, payload: bytes) -> bytes:
    """The body; as it was, to the byte, if its value is."""
    try:
        new = dumps(value)
    except Unkept as error:
        raise EditError(f"the new body cannot be written: {error}") from None
    except RecursionError:
        raise EditError("the new body is nested too deep") from None
    return payload if new == text else new.encode()


def _why(error: ValueError) -> str:
    return f"it is no JSON ({error})" if isinstance(error, NotJson) else str(error)


def _alike(one: Message, other: Message) -> bool:
    if dict(one.headers) != dict(other.headers):
        return False
    if one.payload == other.payload:
        return True
    try:
        left, right = (dumps(loads(m.payload), sort_names=True) for m in (one, other))
    except (NotJson, Unkept):
        return False
    return left == right


async def aside(payload: bytes, work: Callable[..., Answer], *given: Any) -> Answer:
    """Do it at once for a small body, in a thread for a large one."""
    if len(payload) <= _AT_ONCE_BYTES:
        return work(*given)
    return await asyncio.to_thread(work, *given)
