"""What of a letter may be shown: secrets in payload, headers and error texts are masked.

In: a letter as stored. Out: values to show. The bytes in the database are never changed.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from outlast.model.letter_view import LetterView
from outlast.policy.exact_json import NotJson, is_deep, loads_shown, pretty, write_json
from outlast.policy.export_forms import NO_JSON, ExportedLetter, body_of
from outlast.policy.masking import Masker

__all__ = ["Redaction", "ShownPayload", "pretty"]

_TEXTS = ("last_exception", "error_message", "stack_trace", "resolution", "origin")


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """`text` is pretty JSON, plain text or hexadecimal digits, as `kind` says; `value` the JSON.

    `digest` is that of the stored bytes. `is_cut`: only the beginning is shown.
    """

    kind: Literal["json", "text", "hex"]
    text: str
    value: Any
    size: int
    digest: str
    masked: bool
    is_cut: bool

    def as_json(self) -> dict[str, Any]:
        """The body as a document shows it."""
        shown = {"kind": self.kind, "size": self.size, "digest": self.digest}
        shown |= {"masked": self.masked, "cut": self.is_cut}
        return shown | {"value": self.value if self.kind == "json" else self.text}


class Redaction:
    """One list of secret names, and how much of a payload is shown."""

    def __init__(self, masker: Masker, payload_max: int) -> None:
        self._masker = masker
        self._payload_max = payload_max

    def listed(self, letter: LetterView) -> LetterView:
        """A letter of a list: its texts without secrets."""
        return self._texts(letter, frozenset())

    def whole(self, letter: LetterView) -> LetterView:
        """A letter with its headers, and without its bytes: those are `payload`."""
        secrets = self._masker.secrets(letter.headers or {}, _json(letter.payload or b""))
        shown = self._texts(letter, secrets)
        return replace(shown, headers=self.headers(letter.headers).value, payload=None)

    def exported(self, letter: LetterView, *, reveal: bool) -> ExportedLetter:
        """A letter for a file: whole, and whether anything of it is masked."""
        payload = letter.payload or b""
        body, text, masked = body_of(payload), _text(payload, is_cut=False), False
        if reveal and not is_deep(letter.headers):
            shown = replace(letter, payload=None)
            return ExportedLetter(shown, payload, body, text, masked=False, revealed=True)
        shown = self.whole(letter)
        if body is not NO_JSON:
            body, masked = self._masker.value(body)
            # as text it might still show what the value hides
            text = write_json(body) if masked else text
        elif text is not None:
            text, masked = self._masker.text(text)
        is_changed = masked or self.headers(letter.headers).masked or _differ(letter, shown)
        return ExportedLetter(shown, payload, body, text, is_changed, revealed=False)

    def _texts(self, letter: LetterView, secrets: frozenset[str]) -> LetterView:
        changed = {
            name: self._masker.text(text, secrets=secrets).value
            for name in _TEXTS
            if (text := getattr(letter, name)) is not None
        }
        return replace(letter, **changed)

    def headers(self, headers: Mapping[str, Any] | None) -> Any:
        """Headers and whether any was masked."""
        return self._masker.value(headers)

    def value(self, value: Any) -> Any:
        """A history detail without secrets."""
        return self._masker.value(value).value

    def payload(self, payload: bytes, *, reveal: bool) -> ShownPayload:
        """The body, masked unless it is to be revealed."""
        digest = "sha256:" + hashlib.sha256(payload).hexdigest()
        is_cut = len(payload) > self._payload_max
        seen = payload[: self._payload_max]
        value = None if is_cut else _json(seen)
        if value is not NO_JSON and not is_cut:
            masked = False
            if not reveal:
                value, masked = self._masker.value(value)
            with suppress(RecursionError):  # too deep to be laid out: shown as text
                text = pretty(value)
                return ShownPayload("json", text, value, len(payload), digest, masked, is_cut)
        plain = _text(seen, is_cut=is_cut)
        if plain is None:
            return ShownPayload("hex", seen.hex(), None, len(payload), digest, False, is_cut)
        masked = False
        if not reveal:
            plain, masked = self._masker.text(plain)
        return ShownPayload("text", plain, None, len(payload), digest, masked, is_cut)


def _differ(stored: LetterView, shown: LetterView) -> bool:
    return any(getattr(stored, name) != getattr(shown, name) for name in _TEXTS)


def _json(payload: bytes) -> Any:
    try:
        return loads_shown(payload)
    except NotJson:
        return NO_JSON


def _text(payload: bytes, *, is_cut: bool) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        # the cut may have gone through a character
        if is_cut and error.start >= len(payload) - 3:
            return payload[: error.start].decode()
        return None
