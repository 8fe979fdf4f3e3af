"""The options of a desk: frozen, checked where they are made."""

from collections.abc import Callable
from dataclasses import dataclass, field

from outlast.model.letter_view import LetterView
from outlast.model.replay import BodyCheck
from outlast.ops.refusals import BadRequest
from outlast.policy.gates import REPLAYS_MAX
from outlast.policy.masking import SECRET_NAMES

BodyTest = Callable[[LetterView, str], BodyCheck]
"""Whether a handler's model takes the body of a letter on this queue."""

CHUNK_MAX = 500


@dataclass(frozen=True, kw_only=True)
class DeskOptions:
    """What holds for every call of one desk."""

    replays_max: int = REPLAYS_MAX
    """Replays since the last reopen, after which a letter is escalated."""
    keep_discarded_seconds: float = 7 * 86_400.0
    """How long a purged letter can be restored."""
    keep_resolved: bool = False
    """Never delete letters whose replay succeeded; else they go a week after it."""
    require_reason: bool = False
    """Refuse a replay, an edit or a purge without a reason."""
    chunk: int = CHUNK_MAX
    """Letters of one transaction of an action on many."""
    chunk_bytes: int = 16 * 1024 * 1024
    """Bytes of the messages in it; one larger message goes alone."""
    list_max: int = 1000
    """Letters of one page."""
    offset_max: int = 10_000
    """How far a list may be turned over; beyond it, go on with `after`."""
    ids_max: int = 10_000
    """Ids of one call."""
    payload_shown_bytes: int = 1024 * 1024
    """How much of a payload is shown; it is replayed whole."""
    edited_bytes_max: int = 64 * 1024 * 1024
    """Bytes of a body that an edit makes."""
    transform_seconds: float = 30.0
    """How long one call of a transform may take."""
    lease_seconds: float | None = None
    """After how long a lease counts as over, to take a row back. None: as the workers report."""
    notify: bool = True
    """Wake workers on PostgreSQL when a letter is replayed."""
    secret_names: tuple[str, ...] = SECRET_NAMES
    """Keys whose values are masked."""
    body_test: BodyTest | None = field(default=None, compare=False)
    """Asks the application's models, where it is loaded."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= CHUNK_MAX:
            raise BadRequest(f"chunk must be 1 to {CHUNK_MAX}, got {self.chunk!r}")
        counts = ("chunk_bytes", "list_max", "ids_max", "payload_shown_bytes", "replays_max")
        for name in (*counts, "edited_bytes_max"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} must be >= 1, got {getattr(self, name)!r}")
        for name in ("keep_discarded_seconds", "transform_seconds"):
            if not getattr(self, name) > 0:
                raise BadRequest(f"{name} must be > 0")
