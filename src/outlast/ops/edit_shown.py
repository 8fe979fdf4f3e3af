"""What an edit changes, as it may be shown: masked, also where a secret was moved.

In: a message before and after. Out: lines of a diff. The edit itself is not made here.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from outlast.model.edit import Edit
from outlast.ops.drafting import Message
from outlast.ops.redaction import Redaction
from outlast.policy.edit_diff import diff
from outlast.policy.exact_json import NotJson, Unkept, loads, pretty
from outlast.policy.json_patch import read_patch
from outlast.policy.masking import MASK, Masker


def shown_diff(
    redaction: Redaction, masker: Masker, before: Message, after: Message
) -> tuple[str, ...]:
    """Headers first, then the body; empty if all that changes is masked."""
    secrets = masker.secrets(before.headers)
    lines = diff("headers", *(_lines(redaction, m.headers) for m in (before, after)))
    if before.payload != after.payload:
        old, new = (redaction.payload(m.payload, reveal=False) for m in (before, after))
        if old.is_cut or new.is_cut:
            sizes = f"{old.size:,} bytes before, {new.size:,} after"
            lines += (f"the body is larger than is shown: {sizes}",)
        else:
            secrets |= masker.secrets(_value(before.payload))
            lines += diff("body", old.text, new.text)
    return tuple(_without(secrets, line) for line in lines)


def reads_secrets(masker: Masker, edit: Edit) -> bool:
    """Whether a patch would bring to light what is masked, or answer a guess at it."""
    for step in read_patch(edit.patch or ()):
        to_secret = any(map(masker.is_secret, step.path))
        if any(map(masker.is_secret, step.source)) and not to_secret:
            return True
        if step.kind == "test" and (to_secret or masker.value(step.value).masked):
            return True
    return False


def _lines(redaction: Redaction, headers: Mapping[str, Any]) -> str:
    shown = redaction.headers(dict(headers)).value
    return "\n".join(f"{name}: {pretty(shown[name])}" for name in sorted(shown))


def _value(payload: bytes) -> Any:
    with suppress(NotJson, Unkept):
        return loads(payload)
    return None


def _without(secrets: Iterable[str], line: str) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        line = line.replace(secret, MASK).replace(json.dumps(secret)[1:-1], MASK)
    return line
