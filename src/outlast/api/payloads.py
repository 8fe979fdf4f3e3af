"""Bodies of messages, and changes of them, inside JSON: nothing may be lost on the way.

In: members of a request. Out: bytes, and patches whose numbers are as they were written. A body is
a text or base64, never a JSON value.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from outlast.ops import BadRequest
from outlast.policy.exact_json import NotJson, Unkept, loads


def bytes_of(text: str | None, encoded: str | None) -> bytes | None:
    """The new body; None: it stays."""
    if text is not None and encoded is not None:
        raise BadRequest("payload_text and payload_base64 are two ways to say one thing")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("payload_base64 is no base64") from None
    if text is None:
        return None
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRequest("payload_text has half a character in it") from None


def patch_in(body: bytes, *steps: str) -> tuple[Mapping[str, Any], ...]:
    """The member `patch` of a request that was read before, exactly."""
    try:
        found: Any = loads(body)
    except (NotJson, Unkept) as error:
        raise BadRequest(f"the patch cannot be read: {error}") from None
    for step in (*steps, "patch"):
        found = found[step]
    return tuple(found)
