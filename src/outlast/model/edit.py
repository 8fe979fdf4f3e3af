"""A change of a dead letter's message, as it is ordered and as it was made.

In: what an operator asks for. Out: values that policy, stores and doors speak of. The message as it
first was never changes: what comes of an edit is a revision.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class EditError(ValueError):
    """An edit that cannot be made. `remedy` is the next step."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Transform:
    """A function of the application. `digest` is that of its source, `version` its module's."""

    name: str
    version: str | None
    digest: str
    function: Callable[..., Any] = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        """What the revision says it was made by."""
        return f"{self.name} {self.version}" if self.version else self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """At most one of `payload`, `patch` (RFC 6902) and `transform`; headers besides or alone.

    `not_idempotent`: it is known that applied twice it does more than once.
    """

    payload: bytes | None = field(default=None, repr=False)
    patch: tuple[Mapping[str, Any], ...] | None = field(default=None, repr=False)
    transform: Transform | None = None
    set_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    unset_headers: tuple[str, ...] = ()
    not_idempotent: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing."""
        bodies = (self.payload, self.patch, self.transform)
        return all(b is None for b in bodies) and not self.set_headers and not self.unset_headers


@dataclass(frozen=True, slots=True)
class Draft:
    """What an edit made of one letter, not written yet. `etag` is that of the letter it was made
    of, `before` the revision, 0 for the original. `changes` False: the message is as it was.
    """

    etag: str
    before: int
    payload: bytes = field(repr=False)
    headers: Mapping[str, Any] = field(repr=False)
    changes: bool
    transform: str | None = None
    digest: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    diff: tuple[str, ...] = field(default=(), repr=False)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoDraft:
    """Why the edit could not be made of this letter, and what would help."""

    reason: str
    remedy: str | None = None


Drafts = Mapping[int, Draft | NoDraft]
"""By letter; one that is missing was in no state to be edited when its turn came."""
