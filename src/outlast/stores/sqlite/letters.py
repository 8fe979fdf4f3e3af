"""Bury: the row goes and its dead letter is there, in one transaction that survives a power loss.

In: letters. Out: the pairs that were not ours any more. The database copies the row's own columns,
so no byte of it passes through here; only columns that the table really has are written.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from outlast.model.dead_letter import COUNT_MAX, Letter
from outlast.model.delivery import ALL_SETTLED, Answer, Pair
from outlast.stores.sqlite.connection import Hop
from outlast.stores.sqlite.names import Names
from outlast.tables.dead_letters import REQUIRED_COLUMNS
from outlast.tables.instant import to_text

_COPIED = {
    "original_id": "id",
    "queue": "queue",
    "payload": "payload",
    "headers": "headers",
    "deliveries_count": "deliveries_count",
    "created_at": "created_at",
    "timer_id": "timer_id",
    "total_deliveries": f"min(deliveries_count, {COUNT_MAX})",
}
"""Columns of the dead letter, and what they are copied from in the row."""

_VALUES: dict[str, Callable[[Letter, str], Any]] = {
    "failed_at": lambda _, now: now,
    "failure_reason": lambda letter, _: letter.reason,
    "last_exception": lambda letter, _: letter.failure.last_exception,
    "message_id": lambda letter, _: letter.message_id,
    "event_type": lambda letter, _: letter.event_type,
    "subscriber": lambda letter, _: letter.subscriber,
    "consumer_instance": lambda letter, _: letter.consumer_instance,
    "consumer_version": lambda letter, _: letter.consumer_version,
    "fingerprint": lambda letter, _: letter.failure.fingerprint,
    "failure_category": lambda letter, _: letter.failure.category,
    "error_type": lambda letter, _: letter.failure.error_type,
    "error_message": lambda letter, _: letter.failure.error_message,
    "stack_trace": lambda letter, _: letter.failure.stack_trace,
    "http_status": lambda letter, _: letter.failure.http_status,
    "attempts_count": lambda letter, _: letter.attempts_count,
    "first_failure_at": lambda letter, now: _instant(letter.first_failure_at, now),
    "last_failure_at": lambda letter, now: _instant(letter.last_failure_at, now),
    # a column that was added to an older table has no default of this kind in SQLite
    "state_changed_at": lambda _, now: now,
    "state": lambda _letter, _now: "open",
}
"""Columns of the dead letter that the row cannot tell."""


def _instant(instant: Any, now: str) -> str:
    return now if instant is None else to_text(instant)


class Letters:
    """The statements of an outbox and its dead-letter table, for the columns that exist."""

    def __init__(self, names: Names, columns: Collection[str]) -> None:
        written = {*REQUIRED_COLUMNS, *columns}
        copied = [name for name in _COPIED if name in written]
        told = [name for name in _VALUES if name in written]
        sources = [*(_COPIED[name] for name in copied), *("?" for _ in told)]
        self._values = [_VALUES[name] for name in told]
        owned = f"{names.outbox} NOT INDEXED WHERE id = ? AND acquired_token = ?"
        self._insert = (
            f"INSERT INTO {names.dlq} ({', '.join([*copied, *told])}) "  # noqa: S608
            f"SELECT {', '.join(sources)} FROM {owned}"
        )
        self._delete = f"DELETE FROM {owned}"  # noqa: S608 - names come quoted from the preparer

    def bury(self, hop: Hop, letters: Sequence[Letter]) -> Answer:
        """Write each letter if its row is still ours, and delete the row."""
        lost: list[Pair] = []
        with hop.writing(durable=True):
            _, now = hop.now()
            for letter in letters:
                if self.insert(hop, letter, now):
                    hop.execute(self._delete, (letter.id, letter.token.hex))
                else:
                    lost.append((letter.id, letter.token))
        return Answer(tuple(lost)) if lost else ALL_SETTLED

    def insert(self, hop: Hop, letter: Letter, now: str) -> bool:
        """Write the letter of a row that is still ours, within the caller's transaction."""
        told = (value(letter, now) for value in self._values)
        return bool(hop.execute(self._insert, (*told, letter.id, letter.token.hex)).rowcount)
