"""What an edit may ask for, what it makes of headers, and what must not be saved.

In: an edit, a letter, the message before and after. Out: values, or an `EditError` with the next
step. Runs no code of users and reads nothing.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any

from outlast.model.edit import Edit, EditError
from outlast.model.headers import RESERVED_PREFIX
from outlast.model.letter_view import LetterView
from outlast.policy.exact_json import NotJson, Unkept, dumps, loads
from outlast.policy.header_values import check_size, check_text, user_headers
from outlast.policy.json_patch import patch_digest
from outlast.policy.masking_text import MASK

HEADERS_MAX = 200
"""Headers that one edit sets or takes away."""

_LEVELS_MAX = 400

BY_PATCH = "json-patch"
"""What a revision says it was made by, where it was no function."""


def etag_of(letter: LetterView) -> str:
    """What an edit must have seen: another revision, state or failure makes another tag."""
    instants = (letter.state_changed_at, letter.last_failure_at, letter.failed_at)
    parts = [
        *(letter.id, letter.revision or 0, letter.state, letter.replay_count or 0),
        *(at and at.astimezone(UTC).isoformat() for at in instants),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def check_edit(edit: Edit, *, bytes_max: int) -> None:
    """Refuse what is wrong with it for every letter."""
    bodies = (edit.payload, edit.patch, edit.transform)
    if edit.is_empty:
        raise EditError("the edit changes nothing", "say what is to be changed")
    if sum(body is not None for body in bodies) > 1:
        raise EditError(
            "payload, patch and transform are three ways to change the body",
            "use one of them; a function can do what a patch does",
        )
    if edit.payload is not None:
        if not isinstance(edit.payload, bytes):
            raise EditError(f"the payload is bytes, got {type(edit.payload).__name__}")
        check_bytes(edit.payload, bytes_max)
    if edit.patch is not None:
        patch_digest(edit.patch)
        if not edit.patch:
            raise EditError("the patch has no operation")
    _check_headers(edit)


def check_bytes(payload: bytes, most: int) -> None:
    """Refuse a body that is larger than an edit may make one."""
    if len(payload) > most:
        raise EditError(f"the edited body has {len(payload):,} bytes; {most:,} are taken")


def _check_headers(edit: Edit) -> None:
    if len(edit.set_headers) + len(edit.unset_headers) > HEADERS_MAX:
        raise EditError(f"an edit changes at most {HEADERS_MAX} headers")
    checked_headers(edit.set_headers)
    for name in (*edit.set_headers, *edit.unset_headers):
        if not isinstance(name, str) or not name:
            raise EditError(f"a header has a name, got {name!r}")
        _check_name(name)
        if name.lower().startswith(RESERVED_PREFIX):
            raise EditError(f"header {name!r} is reserved: it belongs to outlast")
        if name in edit.set_headers and name in edit.unset_headers:
            raise EditError(f"header {name!r} is set and taken away at once")


def _check_name(name: str) -> None:
    try:
        check_text(f"header name {name!r}", name)
    except ValueError as error:
        raise EditError(str(error)) from None


def checked_headers(headers: object) -> dict[str, Any]:
    """Headers as the outbox takes them."""
    if not isinstance(headers, Mapping):
        raise EditError(f"headers are names with values, got {type(headers).__name__}")
    try:
        found = user_headers(headers)
        check_size(found)
    except (TypeError, ValueError) as error:
        raise EditError(str(error)) from None
    return found


def with_headers(before: Mapping[str, Any], given: object) -> dict[str, Any]:
    """Headers that a function gave back. What is stored already is not judged anew."""
    if not isinstance(given, Mapping):
        raise EditError(f"headers are names with values, got {type(given).__name__}")
    for name in given:
        if not isinstance(name, str):
            raise EditError(f"header names are text, got {name!r}")
    new = {n: v for n, v in given.items() if n not in before or not _alike(before[n], v)}
    after = dict(before) | checked_headers(new)
    after = {name: after[name] for name in given}
    if new:
        _check_sum(after)
    return after


def _alike(left: Any, right: Any) -> bool:
    try:
        return dumps(left, sort_names=True) == dumps(right, sort_names=True)
    except Unkept:
        return False


def edited_headers(before: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """The headers with those of the edit."""
    after = {name: value for name, value in before.items() if name not in edit.unset_headers}
    after |= edit.set_headers
    if edit.set_headers:
        _check_sum(after)
    return after


def _check_sum(headers: dict[str, Any]) -> None:
    try:
        check_size(headers)
    except ValueError as error:
        raise EditError(str(error)) from None


def header_warnings(before: Mapping[str, Any], edit: Edit) -> list[str]:
    """What an operator would want to know about the headers of the edit."""
    found = [f"there is no header {name!r}" for name in edit.unset_headers if name not in before]
    for name in edit.set_headers:
        alike = [n for n in before if n != name and n.lower() == name.lower()]
        if name not in before and alike:
            found.append(f"there is also a header {alike[0]!r}; names are told apart by case")
    return found


def made_by(edit: Edit) -> tuple[str | None, str | None]:
    """Name and digest of the transform; of an edit by hand, nothing."""
    if edit.transform is not None:
        return edit.transform.label, edit.transform.digest
    if edit.patch is not None:
        return BY_PATCH, patch_digest(edit.patch)
    return None, None


def detail_of(edit: Edit) -> dict[str, Any]:
    """What the history says of the edit: how it was made, nothing of what it made."""
    name, digest = made_by(edit)
    detail: dict[str, Any] = {"payload": True} if edit.payload is not None else {}
    if edit.transform is not None:
        found = edit.transform
        detail["transform"] = {"name": found.name, "version": found.version}
    elif name is not None:
        detail["transform"] = {"name": name, "version": None}
    if digest is not None:
        detail["digest"] = digest
    if edit.set_headers:
        detail["set_headers"] = sorted(edit.set_headers)
    if edit.unset_headers:
        detail["unset_headers"] = sorted(edit.unset_headers)
    if edit.not_idempotent:
        detail["not_idempotent"] = True
    return detail


def check_masks(
    before: tuple[bytes, Mapping[str, Any]], after: tuple[bytes, Mapping[str, Any]]
) -> None:
    """Refuse to save a mask where the message holds what it stood for."""
    had = Counter(_masks(*before))
    if new := Counter(_masks(*after)) - had:
        name = next(iter(new))[0]
        where = f" ({name[:100]!r})" if name else ""
        raise EditError(
            f"the edit would save {MASK}{where}, which only stands for a secret on the screen",
            "leave what is masked as it is, with a patch of the rest, or edit what --reveal shows",
        )


def _masks(payload: bytes, headers: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
    """Each text with a mask, with the name it stands under."""
    yield from _masked_texts(None, headers, 0)
    if MASK[0].encode() not in payload and MASK[0].encode("unicode_escape") not in payload:
        return
    try:
        yield from _masked_texts(None, loads(payload), 0)
    except (NotJson, Unkept):
        yield from [(None, MASK)] * payload.count(MASK.encode())


def _masked_texts(name: str | None, value: Any, level: int) -> Iterator[tuple[str | None, str]]:
    if isinstance(value, str):
        if MASK in value:
            yield name, value
    elif level > _LEVELS_MAX:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and MASK in key:
                yield key, key
            yield from _masked_texts(key, item, level + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _masked_texts(name, item, level + 1)
