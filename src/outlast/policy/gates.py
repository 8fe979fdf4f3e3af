"""May this letter be replayed? The same answer for one letter, a filter and a rule.

In: the letter, the facts, what was asked for. Out: an admission with warnings, a refusal by a gate
with what would lift it, or a denial by the data. What is not known opens a gate and is told; it is
never guessed. Reads no clock and no database.
"""

from dataclasses import dataclass
from datetime import UTC, timedelta

from outlast.model.letter_view import LetterView
from outlast.model.query import ESCALATED
from outlast.model.replay import Admission, Denial, Refusal, ReplayFacts, WorkerSeen
from outlast.policy.classify import AUTH, EXTERNAL, POISON, TIMEOUT, UNKNOWN, VALIDATION
from outlast.policy.letter_states import transition

REPLAYS_MAX = 3
LIVE_SECONDS = 30
LIFETIME = timedelta(hours=24)

_UNCHANGED_CATEGORIES = frozenset({VALIDATION, AUTH, UNKNOWN})
_AUTOMATIC_CATEGORIES = frozenset({EXTERNAL, TIMEOUT})

_FORCE = "--force --reason"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What was asked for. `force` passes gates 1 to 3; `automatic`: by a rule, nobody is there."""

    force: bool = False
    include_poison: bool = False
    automatic: bool = False
    replays_max: int = REPLAYS_MAX
    lifetime: timedelta = LIFETIME


def judge(
    letter: LetterView, facts: ReplayFacts, request: ReplayRequest
) -> Admission | Refusal | Denial:
    """Whether the letter may be replayed now."""
    allowed = transition("replay", letter)
    if isinstance(allowed, Denial):
        return allowed
    unchanged, warnings = _unchanged(letter, facts)
    shut = [
        refusal
        for refusal in (_replay_limit(letter, request), unchanged, _poison(letter, request))
        if refusal is not None
    ]
    if request.automatic:
        refused = _lifetime(letter, facts, request)
        if refused is not None:
            return refused
    elif request.force:
        return Admission(warnings, tuple(shut))
    return shut[0] if shut else Admission(warnings)


def live_workers(facts: ReplayFacts) -> tuple[WorkerSeen, ...] | None:
    """The workers that serve the queue of this pass; None if workers are not recorded."""
    if facts.workers is None:
        return None
    oldest = facts.now - timedelta(seconds=LIVE_SECONDS)
    return tuple(
        worker
        for worker in facts.workers
        if worker.seen_at >= oldest and facts.queue in worker.queues
    )


def _replay_limit(letter: LetterView, request: ReplayRequest) -> Refusal | None:
    lift = f"outlast dlq mark {letter.id} --open, or {_FORCE}"
    replays = letter.replays_since_reopen
    if replays is not None and replays >= request.replays_max:
        return Refusal(
            "replay_limit",
            f"dead letter {letter.id} was replayed {replays} times and is here again",
            f"find out why, then {lift}",
            escalates=letter.state != ESCALATED,
        )
    if letter.state == ESCALATED:
        return Refusal("replay_limit", f"dead letter {letter.id} is escalated", lift)
    return None


def _unchanged(letter: LetterView, facts: ReplayFacts) -> tuple[Refusal | None, tuple[str, ...]]:
    """Refused only when it is known that the same code would get the same bytes."""
    if letter.failure_category is None:
        return None, ("the failure category is not recorded",)
    is_corrected = _is_corrected(letter, facts)
    if is_corrected or letter.failure_category not in _UNCHANGED_CATEGORIES:
        still_refused = is_corrected and facts.body == "refused"
        return None, ("the model of its handler refuses the edited body",) if still_refused else ()
    live = live_workers(facts)
    unknown = _unknown_version(letter, facts, live)
    if unknown is not None:
        return None, (unknown,)
    same = [
        worker
        for worker in live or ()
        if worker.version == letter.consumer_version
        and worker.started_at <= letter.latest_failure_at
    ]
    if not same or facts.body == "accepted":
        return None, ()
    if facts.body == "unknown":
        return None, (f"no handler of queue {facts.queue!r} could say whether it takes the body",)
    return _nothing_changed(letter, facts, same[0]), ()


def _is_corrected(letter: LetterView, facts: ReplayFacts) -> bool:
    """Whether other bytes are sent than those that failed."""
    revised = facts.sent_revision_at
    return facts.changes_now or (revised is not None and revised > letter.latest_failure_at)


def _nothing_changed(letter: LetterView, facts: ReplayFacts, worker: WorkerSeen) -> Refusal:
    body = (
        "and its model refuses the body" if facts.body == "refused" else "and the body is the same"
    )
    return Refusal(
        "unchanged",
        f"nothing has changed since dead letter {letter.id} failed ({letter.failure_category}): "
        f"{worker.instance} still runs version {letter.consumer_version}, {body}",
        f"deploy the fix and restart the worker, or mend the message with outlast dlq edit "
        f"{letter.id} or outlast dlq replay {letter.id} --patch, or {_FORCE}",
    )


def _unknown_version(
    letter: LetterView, facts: ReplayFacts, live: tuple[WorkerSeen, ...] | None
) -> str | None:
    """What keeps us from knowing whether the code has changed."""
    if letter.consumer_version is None:
        return "the version that failed is not recorded"
    if live is None:
        return "which versions run is not recorded"
    if not live:
        return f"no live worker serves queue {facts.queue!r}"
    has_same = any(worker.version == letter.consumer_version for worker in live)
    nameless = [worker.instance for worker in live if worker.version is None]
    if nameless and not has_same:
        return f"worker {nameless[0]} does not tell its version"
    return None


def _poison(letter: LetterView, request: ReplayRequest) -> Refusal | None:
    if letter.failure_category != POISON or request.include_poison:
        return None
    return Refusal(
        "poison",
        f"dead letter {letter.id} ended deliveries without an outcome: it may kill its worker",
        f"find the crash first; then --include-poison, or {_FORCE}",
    )


def _lifetime(letter: LetterView, facts: ReplayFacts, request: ReplayRequest) -> Refusal | None:
    if letter.failure_category not in _AUTOMATIC_CATEGORIES:
        return Refusal(
            "lifetime",
            f"dead letter {letter.id} failed with {letter.failure_category or 'an unknown cause'}, "
            "which time alone does not cure",
            f"outlast dlq replay {letter.id}",
        )
    first = letter.first_failure_at or letter.failed_at
    if facts.now - first > request.lifetime:
        at = f"{first.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return Refusal(
            "lifetime",
            f"dead letter {letter.id} failed first at {at}, longer ago than {request.lifetime}",
            f"outlast dlq replay {letter.id}",
        )
    return None
