"""Who asks, and what they may. Every call of the desk begins with one.

In: a name and scopes, as a door found them. Scopes do not imply each other.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from outlast.ops.refusals import BadRequest, NotAllowed, check_text

Scope = Literal["inspect", "reveal", "replay", "edit", "discard", "admin"]

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

_ALIASES: dict[str, Scope] = {
    "dlq:read": "inspect",
    "dlts:read": "inspect",
    "dlq:write": "replay",
    "dlts:update": "replay",
}
_NAME_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class Actor:
    """`request_id` makes a repeated request known as the same one."""

    name: str
    scopes: frozenset[Scope] = field(default_factory=frozenset)
    request_id: str | None = None

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("request_id", self.request_id)):
            if text is None:
                continue
            check_text(what, text, _NAME_CHARS_MAX)
            if not text:
                raise BadRequest(f"the {what} of an actor must not be empty")

    def needs(self, scope: Scope, to: str) -> None:
        """Refuse what this actor may not do."""
        if scope not in self.scopes:
            raise NotAllowed(scope, f"{self.name} may not {to}: the scope {scope!r} is missing")


def scopes_of(names: Iterable[str]) -> frozenset[Scope]:
    """Scopes by their names; the aliases of other systems are understood."""
    found: set[Scope] = set()
    for name in names:
        scope = _ALIASES.get(name, name)
        if scope not in SCOPES:
            raise BadRequest(f"there is no scope {name!r}; there are {', '.join(sorted(SCOPES))}")
        found.update(known for known in SCOPES if known == scope)
    return frozenset(found)
