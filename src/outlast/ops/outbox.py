"""The outbox as the desk sees it: live rows, taking one back, making one due, who works.

In: an actor. Out: values, masked. Looking never changes a row.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from outlast.model.errors import RowLocked
from outlast.model.query import ROW_NAMES, ROW_STATES, Query
from outlast.model.replay import WorkerSeen
from outlast.ops.actor import Actor
from outlast.ops.context import DeskContext
from outlast.ops.redaction import ShownPayload
from outlast.ops.refusals import BadRequest, LetterNotFound
from outlast.ops.views import iso
from outlast.stores.desk import outbox_rows
from outlast.stores.desk.outbox_list import listed
from outlast.stores.desk.outbox_rows import OutboxRow, Recall
from outlast.stores.desk.workers import workers_seen

_SHOWN = (
    *("id", "queue", "state", "attempts_count", "deliveries_count", "timer_id", "message_id"),
    "letter_id",
)
_TIMES = (*("created_at", "next_attempt_at", "first_attempt_at", "last_attempt_at", "acquired_at"),)


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """Live rows by id; `after` goes on, if there are more. `looked_at`: so many rows were tested by
    what is in them, and there are others behind.
    """

    rows: tuple[OutboxRow, ...]
    after: int | None
    total: int = 0
    at_least: bool = False
    looked_at: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The document of a list."""
        shown = {
            "items": [row_json(row) for row in self.rows],
            "total": self.total,
            "total_is": "at least" if self.at_least else "exact",
            "after": self.after,
        }
        return shown if self.looked_at is None else shown | {"looked_at": self.looked_at}


@dataclass(frozen=True, slots=True)
class RowDetail:
    """One live row with its body."""

    row: OutboxRow
    headers: Any
    payload: ShownPayload

    def as_json(self) -> dict[str, Any]:
        """The document of one row."""
        shown = row_json(self.row)
        return shown | {"headers": self.headers, "payload": self.payload.as_json()}


def row_json(row: OutboxRow) -> dict[str, Any]:
    """One row of a list."""
    times = {name: iso(getattr(row, name)) for name in _TIMES}
    return {name: getattr(row, name) for name in _SHOWN} | times


class OutboxDesk(DeskContext):
    """The verbs on live rows."""

    async def outbox_list(
        self, actor: Actor, query: Query | None = None, *, limit: int = 100, after: int = 0
    ) -> OutboxPage:
        """Live rows by id. The words and states are those of live messages."""
        actor.needs("inspect", "look at the outbox")
        asked = query or Query()
        if not 1 <= limit <= self.options.list_max:
            raise BadRequest(f"limit is 1 to {self.options.list_max}, got {limit}")
        self._ids([after])
        _check_words(asked)
        async with self._reading() as at:
            if at.tables.outbox is None:
                return OutboxPage((), None)
            found = await listed(at.connection, at.tables.outbox, asked, limit, after)
        return OutboxPage(*found)

    async def outbox_inspect(self, actor: Actor, row_id: int) -> RowDetail:
        """One live row, masked."""
        actor.needs("inspect", "look at the outbox")
        ids = self._ids([row_id])
        async with self._reading() as at:
            outbox = at.tables.outbox
            found = None
            if outbox is not None and ids:
                found = await outbox_rows.row(at.connection, outbox, row_id)
        if found is None:
            raise LetterNotFound(
                f"outbox row {row_id} not found: it was delivered, died, or never was",
                f"outlast dlq list 'message:{row_id}' shows it if it died, "
                "unless it has a message id of its own",
            )
        headers = self._redaction.headers(found.headers).value
        return RowDetail(
            found, headers, self._redaction.payload(found.payload or b"", reveal=False)
        )

    async def outbox_cancel(
        self, actor: Actor, row_ids: Sequence[int], *, reason: str | None = None
    ) -> tuple[Recall, ...]:
        """Take rows back that no worker holds; a replayed letter is open again."""
        actor.needs("replay", "take messages back")
        ids, act = self._ids(row_ids), self._act(actor, reason)
        await self._need_states(outbox=True)
        answers: list[Recall] = []
        for row_id in ids:
            try:
                async with self._writing() as at:
                    answers.append(
                        await outbox_rows.recall(*at, row_id, act, self.options.lease_seconds)
                    )
            except RowLocked:
                answers.append(Recall(row_id, "in_hand", reason=f"row {row_id} is being changed"))
        return tuple(answers)

    async def outbox_run_now(self, actor: Actor, row_ids: Sequence[int]) -> dict[int, bool]:
        """Make waiting rows due at once; False: gone, or in a worker's hands."""
        actor.needs("replay", "run messages now")
        ids = self._ids(row_ids)
        await self._need_states(outbox=True)
        answers: dict[int, bool] = {}
        for row_id in ids:
            answers[row_id] = False
            with suppress(RowLocked):
                async with self._writing() as at:
                    answers[row_id] = await outbox_rows.run_now(*at, row_id)
        return answers

    async def workers(self, actor: Actor) -> tuple[WorkerSeen, ...] | None:
        """The workers that were seen; None: not recorded."""
        actor.needs("inspect", "look at workers")
        async with self._reading() as at:
            return await workers_seen(*at)


def _check_words(query: Query) -> None:
    for word in query.words:
        if word.name not in ROW_NAMES:
            raise BadRequest(
                f"{word.name}: is asked of dead letters, not of live messages",
                f"there are {', '.join(sorted(ROW_NAMES))}",
            )
    if not query.row_states or not query.row_states <= frozenset(ROW_STATES):
        raise BadRequest(
            "live messages have other states than dead letters",
            f"there are {', '.join(ROW_STATES)}",
        )
