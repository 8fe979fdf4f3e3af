"""Documents on their way out: JSON that every reader takes, whatever is in a letter.

In: documents of the desk. Out: responses. Numbers of a payload leave as they were written.
"""

import json
import math
import re
from typing import Any

from starlette.responses import Response

from outlast.ops.redaction import pretty

_HALVES = re.compile("[\ud800-\udfff]")

PROBLEM_TYPE = "application/problem+json"


class Document(Response):
    """A document of the desk."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        try:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        except ValueError:
            return json.dumps(finite(content), separators=(",", ":")).encode()


class ExactDocument(Document):
    """A document with a payload in it."""

    def render(self, content: Any) -> bytes:
        # half a character has no bytes of its own, only an escape
        return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", pretty(finite(content))).encode()


class Problem(Document):
    """An error, as RFC 9457 writes it."""

    media_type = PROBLEM_TYPE


def finite(value: Any) -> Any:
    """The document without what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
