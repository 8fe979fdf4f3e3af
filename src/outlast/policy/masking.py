"""What an operator may see of payloads, headers and error texts unless secrets are asked for.

In: JSON values and text. Out: the same with `•••` in place of secrets, and whether there were any.
Never changes what is stored; never raises for what a stranger wrote; work is linear in its size.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from outlast.policy.masking_text import MASK, luhn, masked_text

__all__ = ["DEPTH_MAX", "MASK", "SECRET_NAMES", "Masked", "Masker", "luhn"]

SECRET_NAMES = (
    *("authorization", "authentication token", "bearer", "credential", "credentials"),
    *("password", "passwords", "passwd", "passphrase", "passcode", "pwd"),
    *("secret", "secrets", "token", "api key", "access key", "private key", "session key"),
    *("session id", "signing key", "encryption key", "connection string", "otp"),
    *("cookie", "cookies", "set-cookie"),
    *("card number", "credit card", "cvv", "cvv2", "cvc", "cvc2", "iban", "ssn"),
)

DEPTH_MAX = 64
"""Deeper values are masked unread."""

REMEMBERED_MAX = 100
REMEMBERED_CHARS = (6, 1024)
"""Shorter secrets occur in any text by chance."""

_WORD = re.compile(r"[^\W\d_]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Masked(NamedTuple):
    """A value that may be shown."""

    value: Any
    masked: bool


def _words(name: str) -> list[str]:
    # letters and digits part, so that `password2` is a password
    return [part.lower() for word in _WORD.findall(name) for part in _CAMEL.split(word) if part]


class Masker:
    """Masks by one list of names. `api key` stands for `apiKey`, `X-Api-Key` and `APIKEY` too."""

    def __init__(self, names: Iterable[str] = SECRET_NAMES) -> None:
        joined = ("".join(_words(name)) for name in names)
        self._names = frozenset(name for name in joined if name)
        self._longest = max(map(len, self._names), default=0)

    def is_secret(self, key: str) -> bool:
        """Whether the words of a listed name follow each other in this key."""
        words = _words(key)
        whole = "".join(words)
        if not any(name in whole for name in self._names):
            return False
        for start in range(len(words)):
            joined = ""
            for word in words[start:]:
                joined += word
                if joined in self._names:
                    return True
                if len(joined) >= self._longest:
                    break
        return False

    def text(self, text: str, *, secrets: Iterable[str] = ()) -> Masked:
        """Free text. `secrets` are values of the same message that must not reappear in it."""
        shown = text
        for secret in sorted(secrets, key=len, reverse=True):
            shown = shown.replace(secret, MASK)
        shown = masked_text(shown, self.is_secret)
        return Masked(shown, shown != text)

    def value(self, value: Any) -> Masked:
        """A JSON value: a body, headers, a history detail."""
        return self._value(value, 0)

    def secrets(self, *values: Any) -> frozenset[str]:
        """The texts that stand under secret keys in these values: for `text`."""
        found: set[str] = set()
        for value in values:
            self._collect(value, found, 0, under_secret=False)
        return frozenset(found)

    def _value(self, value: Any, depth: int) -> Masked:
        if value is None or isinstance(value, bool | float):
            seen = Masked(value, masked=False)
        elif isinstance(value, int):
            # a card number may come as a number; the bound spares the digits of a huge one
            is_card = 0 < value < 10**19 and self.text(str(value)).masked
            seen = Masked(MASK if is_card else value, is_card)
        elif isinstance(value, str):
            seen = self.text(value)
        elif depth >= DEPTH_MAX:
            seen = Masked(MASK, masked=True)
        elif isinstance(value, Mapping):
            seen = self._mapping(value, depth)
        elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            items = [self._value(item, depth + 1) for item in value]
            seen = Masked([item.value for item in items], any(item.masked for item in items))
        else:
            seen = self.text(str(value))
        return seen

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Masked:
        shown: dict[Any, Any] = {}
        masked, same = False, 1
        for key, item in value.items():
            if isinstance(key, str) and self.is_secret(key):
                # whether there is a value at all is no secret, and often the error
                seen = Masked(None if item is None else MASK, item is not None)
            else:
                seen = self._value(item, depth + 1)
            name = self.text(key) if isinstance(key, str) else Masked(key, masked=False)
            masked = masked or seen.masked or name.masked
            free = name.value
            while free in shown:  # masked names may be alike; no entry hides another
                same += 1
                free = f"{name.value} ({same})"
            shown[free] = seen.value
        return Masked(shown, masked)

    def _collect(self, value: Any, found: set[str], depth: int, *, under_secret: bool) -> None:
        if depth >= DEPTH_MAX or len(found) >= REMEMBERED_MAX:
            return
        if isinstance(value, Mapping):
            for key, item in value.items():
                secret = under_secret or (isinstance(key, str) and self.is_secret(key))
                self._collect(item, found, depth + 1, under_secret=secret)
        elif isinstance(value, str):
            least, most = REMEMBERED_CHARS
            if under_secret and least <= len(value) <= most:
                found.add(value)
        elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            for item in value:
                self._collect(item, found, depth + 1, under_secret=under_secret)
