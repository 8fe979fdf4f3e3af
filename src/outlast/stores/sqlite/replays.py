"""How a replay ends on SQLite: row and letter in one transaction that survives a power loss.

In: passes. Out: the pairs that were not ours any more. The letter moves only if letter, row and
state still belong together; otherwise the row is an ordinary one.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from outlast.model.dead_letter import COUNT_MAX
from outlast.model.delivery import ALL_SETTLED, Answer, Pair
from outlast.model.failure import Failure
from outlast.model.replay_pass import KEPT_SECONDS, Delivered, Failed, Retried
from outlast.stores.sqlite.clock import plus
from outlast.stores.sqlite.connection import Hop
from outlast.stores.sqlite.letters import Letters
from outlast.stores.sqlite.names import Names
from outlast.tables.instant import to_text

_FAILURE = (
    "last_exception, fingerprint, failure_category, error_type, error_message, stack_trace, "
    "http_status"
)


def _failure(failure: Failure) -> tuple[Any, ...]:
    return (
        failure.last_exception,
        failure.fingerprint,
        failure.category,
        failure.error_type,
        failure.error_message,
        failure.stack_trace,
        failure.http_status,
    )


class Replays:
    """The statements of one outbox, its dead letters and, if there is one, their history."""

    def __init__(self, names: Names, letters: Letters, history: str | None) -> None:
        self._letters = letters
        owned = f"{names.outbox} NOT INDEXED WHERE id = ? AND acquired_token = ?"
        self._count = f"SELECT deliveries_count FROM {owned}"
        self._delete = f"DELETE FROM {owned}"
        self._reschedule = (
            f"UPDATE {names.outbox} NOT INDEXED SET acquired_token = NULL, acquired_at = NULL, "
            "next_attempt_at = ?, attempts_count = ?, first_attempt_at = ?, last_attempt_at = ? "
            "WHERE id = ? AND acquired_token = ?"
        )
        update = f"UPDATE {names.dlq} SET"
        linked = "WHERE id = ? AND replayed_as = ? AND state = 'replaying'"
        ended = "state_changed_at = ?, replayed_as = NULL"
        total = f"total_deliveries = min(coalesce(total_deliveries, 0) + ?, {COUNT_MAX})"
        failure = ", ".join(f"{name} = ?" for name in _FAILURE.split(", "))
        self._resolve = (
            f"{update} state = 'resolved', resolution = 'delivered', {ended}, purge_after = ?, "
            f"{total} {linked}"
        )
        self._refresh = (
            f"{update} {failure}, last_failure_at = ?, attempts_count = ?, deliveries_count = ? "
            f"{linked}"
        )
        self._reopen = (
            f"{update} {failure}, failure_reason = ?, subscriber = ?, consumer_instance = ?, "
            f"consumer_version = ?, attempts_count = ?, last_failure_at = ?, state = 'open', "
            f"{ended}, resolution = NULL, purge_after = NULL, deliveries_count = ?, {total} "
            f"{linked}"
        )
        self._history = history and (
            f"INSERT INTO {history} (dlq_id, at, actor, kind, detail) VALUES (?, ?, ?, ?, ?)"
        )

    def resolve(self, hop: Hop, passes: Sequence[Delivered]) -> Answer:
        """Delete and resolve."""

        def one(ended: Delivered, count: int) -> None:
            now, text = hop.now()
            values = (text, plus(now, KEPT_SECONDS), count, ended.letter_id, ended.id)
            if hop.execute(self._resolve, values).rowcount:
                self._tell(hop, ended.letter_id, text, ended.actor, "resolved", ended.id)
            hop.execute(self._delete, (ended.id, ended.token.hex))

        return self._each(hop, passes, one)

    def refresh(self, hop: Hop, passes: Sequence[Retried]) -> Answer:
        """Reschedule and show the failure."""

        def one(ended: Retried, count: int) -> None:
            now, _ = hop.now()
            attempt = ended.attempt
            counters = (attempt.count, to_text(attempt.first_at), to_text(attempt.last_at))
            due = plus(now, ended.delay_seconds)
            hop.execute(self._reschedule, (due, *counters, ended.id, ended.token.hex))
            shown = (to_text(attempt.last_at), attempt.count, count)
            values = (*_failure(ended.failure), *shown, ended.letter_id, ended.id)
            hop.execute(self._refresh, values)

        return self._each(hop, passes, one)

    def reopen(self, hop: Hop, passes: Sequence[Failed]) -> Answer:
        """Delete and open again, or write a new letter."""

        def one(ended: Failed, count: int) -> None:
            _, text = hop.now()
            letter = ended.letter
            last = text if letter.last_failure_at is None else to_text(letter.last_failure_at)
            values = (
                *_failure(letter.failure),
                letter.reason,
                letter.subscriber,
                letter.consumer_instance,
                letter.consumer_version,
                letter.attempts_count,
                last,
                text,
                count,
                count,
                ended.letter_id,
                ended.id,
            )
            if hop.execute(self._reopen, values).rowcount:
                actor = letter.consumer_instance
                self._tell(hop, ended.letter_id, text, actor, "replay_failed", ended.id)
            else:
                self._letters.insert(hop, letter, text)
            hop.execute(self._delete, (ended.id, ended.token.hex))

        return self._each(hop, passes, one)

    def _each(self, hop: Hop, passes: Sequence[Any], one: Callable[[Any, int], None]) -> Answer:
        lost: list[Pair] = []
        with hop.writing(durable=True):
            for ended in passes:
                owner = (ended.id, ended.token.hex)
                found = hop.execute(self._count, owner).fetchone()
                if found is None:
                    lost.append((ended.id, ended.token))
                else:
                    one(ended, found[0])
        return Answer(tuple(lost)) if lost else ALL_SETTLED

    def _tell(
        self, hop: Hop, letter_id: int, at: str, actor: str | None, kind: str, row_id: int
    ) -> None:
        if self._history:
            detail = json.dumps({"row": row_id})
            hop.execute(self._history, (letter_id, at, actor, kind, detail))
