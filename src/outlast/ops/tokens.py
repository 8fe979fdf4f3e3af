"""Tokens: a secret for whoever calls, a line without it for whoever configures the server.

In: a name and scopes, or the lines of a configuration. Out: a new secret with its line, or a book
that knows an actor by a secret. No refusal, repr or list ever shows a secret or its hash.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from outlast.ops.actor import SCOPES, Actor, Scope, scopes_of
from outlast.ops.refusals import BadRequest

TOKENS_MAX = 1000
NAME_CHARS_MAX = 100

PREFIX = "outlast_"
"""Tells scanners of repositories and logs what they have found."""

_SECRET_BYTES = 32
_SECRET_CHARS_MAX = 256
_LINE_CHARS_MAX = 1000
_ALGORITHM = "sha256"
_SECRET = re.compile(rf"{PREFIX}[\w-]{{40}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RESERVED = frozenset(":,;=\"'\\")
_SHAPE = "name:scope,scope:sha256:digest"
_MAKE_ONE = "outlast tokens new --name N --scopes inspect,replay prints one"


@dataclass(frozen=True, slots=True)
class NewToken:
    """`secret` is shown once and kept nowhere; `line` goes into OUTLAST_TOKENS or the file."""

    secret: str = field(repr=False)
    line: str = field(repr=False)

    def as_json(self) -> dict[str, str]:
        """The document of `tokens new`."""
        return {"token": self.secret, "line": self.line}


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """What a list shows of a token."""

    name: str
    scopes: tuple[Scope, ...]

    def as_json(self) -> dict[str, object]:
        """One item of `tokens list`."""
        return {"name": self.name, "scopes": list(self.scopes)}


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes = field(repr=False)
    actor: Actor


def new_token(name: str, scopes: Iterable[str]) -> NewToken:
    """A secret that nobody can guess, and the line by which it is known again."""
    problem = _problem_of_name(name)
    if problem:
        raise BadRequest(f"the name of a token {problem}")
    granted = scopes_of(scopes)
    if not granted:
        raise BadRequest(
            "a token without a scope opens nothing", f"there are {', '.join(sorted(SCOPES))}"
        )
    secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    line = f"{name}:{','.join(sorted(granted))}:{_ALGORITHM}:{_digest(secret).hex()}"
    return NewToken(secret, line)


class TokenBook:
    """The tokens of one server."""

    def __init__(self, known: Iterable[_Known] = ()) -> None:
        self._known = tuple(known)

    @classmethod
    def parse(cls, lines: str | Iterable[str]) -> "TokenBook":
        """The book of these lines; one text may hold several, apart by blanks or line feeds."""
        texts = [lines] if isinstance(lines, str) else lines
        found = [line for text in texts for line in text.split()]
        if len(found) > TOKENS_MAX:
            raise BadRequest(f"there are {len(found)} token lines; {TOKENS_MAX} are read")
        known: list[_Known] = []
        seen: dict[str | bytes, int] = {}
        for number, line in enumerate(found, 1):
            one = _parsed(number, line)
            for what, key in (("name", one.actor.name), ("hash", one.digest)):
                if key in seen:
                    raise _refused(number, f"has the {what} of line {seen[key]}")
                seen[key] = number
            known.append(one)
        return cls(known)

    @property
    def entries(self) -> tuple[TokenEntry, ...]:
        """Who has a token, and what for."""
        return tuple(
            TokenEntry(one.actor.name, tuple(sorted(one.actor.scopes))) for one in self._known
        )

    def actor_of(self, secret: str) -> Actor | None:
        """Who this is; None: nobody that is known."""
        if not secret.isascii() or len(secret) > _SECRET_CHARS_MAX:
            return None
        digest = _digest(secret)
        found: Actor | None = None
        for one in self._known:
            # to the end of the book in any case: time tells neither whether nor where it stands
            if hmac.compare_digest(one.digest, digest):
                found = one.actor
        return found

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"TokenBook({len(self)} tokens)"


def _digest(secret: str) -> bytes:
    # 32 random bytes cannot be tried out, so a slow hash and a salt would protect nothing; a fast
    # one keeps strangers with wrong tokens from keeping the server busy
    return hashlib.sha256(secret.encode()).digest()


def _parsed(number: int, line: str) -> _Known:
    if _SECRET.search(line):
        raise _refused(
            number,
            "looks like a secret itself: the line that was printed with it belongs here",
            "the secret has been written down: make a new one with outlast tokens new",
        )
    if len(line) > _LINE_CHARS_MAX:
        raise _refused(number, f"has {len(line)} characters; {_LINE_CHARS_MAX} are read")
    name, _, rest = line.partition(":")
    # from the right: the scopes of other systems have a colon
    parts = rest.rsplit(":", 2)
    if len(parts) != 3:  # noqa: PLR2004 - scopes, algorithm, digest
        raise _refused(number, f"is not {_SHAPE}")
    scopes, algorithm, digest = parts
    problem = _problem_of_name(name)
    if problem:
        raise _refused(number, f"has a name that {problem}")
    if algorithm != _ALGORITHM:
        raise _refused(number, f"is not {_SHAPE}: the hash is not called {_ALGORITHM}")
    if _DIGEST.fullmatch(digest) is None:
        raise _refused(number, "is not whole: its digest is not 64 hexadecimal digits")
    try:
        granted = scopes_of(scopes.split(","))
    except BadRequest:
        # a scope that is none may be a secret in the wrong place: it is not repeated
        known = ", ".join(sorted(SCOPES))
        raise _refused(number, f"has a scope that is none; there are {known}") from None
    return _Known(bytes.fromhex(digest), Actor(name, granted))


def _problem_of_name(name: str) -> str | None:
    if not name:
        return "is empty"
    if _SECRET.search(name):
        return "looks like a secret"
    if len(name) > NAME_CHARS_MAX:
        return f"has {len(name)} characters; {NAME_CHARS_MAX} are kept"
    if not name.isprintable() or any(c.isspace() or c in _RESERVED for c in name):
        return f"has a blank, a control character or one of {' '.join(sorted(_RESERVED))} in it"
    return None


def _refused(number: int, why: str, remedy: str = _MAKE_ONE) -> BadRequest:
    return BadRequest(f"token line {number} {why}", remedy)
