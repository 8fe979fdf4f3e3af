"""What is to be changed of a message: options become an `Edit`.

In: the options of a verb as they were typed, and files they name. Out: an edit, or None where
nothing is to be changed. What cannot be meant is refused before a database is asked.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.cli.asking import Mending
from outlast.model.edit import Edit
from outlast.ops import BadRequest
from outlast.ops.transforms import load_patch, load_transform

PATCH_BYTES_MAX = 1024 * 1024
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024

_HEADER_FORM = "write --header NAME=VALUE"


def edit_of(mending: Mending, payload: str | None = None) -> Edit | None:
    """The edit that was asked for; `payload` names a file, or `-`."""
    edit = Edit(
        payload=None if payload is None else read_bytes(payload, "--payload", PAYLOAD_BYTES_MAX),
        patch=None if mending.patch is None else _patch(mending.patch),
        transform=None if mending.transform is None else load_transform(mending.transform),
        set_headers=_headers(mending.header, mending.unset_header),
        unset_headers=mending.unset_header,
        not_idempotent=mending.not_idempotent,
    )
    if not edit.is_empty:
        return edit
    if mending.not_idempotent:
        raise BadRequest("--not-idempotent is said of a transform, and there is none")
    return None


def read_bytes(name: str, option: str, most: int) -> bytes:
    """The bytes of a file, or of stdin for `-`; more than so many are refused."""
    try:
        if name == "-":
            found = sys.stdin.buffer.read(most + 1)
        else:
            with Path(name).open("rb") as file:
                found = file.read(most + 1)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "that is no name of a file"
        raise BadRequest(f"{option}: {name} cannot be read: {said}") from None
    if len(found) > most:
        raise BadRequest(f"{option}: {name} has more than {most:,} bytes, which is the most")
    return found


def _patch(text: str) -> tuple[Mapping[str, Any], ...]:
    if text.lstrip().startswith("["):
        written: str | bytes = text
    else:
        written = read_bytes(text.removeprefix("@"), "--patch", PATCH_BYTES_MAX)
    return load_patch(written)


def _headers(texts: Sequence[str], unset: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadRequest(f"--header {text!r} has no name and value", _HEADER_FORM)
        if name in found or name in unset:
            raise BadRequest(f"the header {name!r} is named twice", "say once what becomes of it")
        found[name] = value
    return found
