"""What happened to a letter, appended. Never updated, never a payload in it.

In: a connection inside a transaction, and entries. Out: rows, where there is a history table;
without one the desk acts and keeps no record, which whoever asks is told.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.stores.desk.shape import DeskTables


class Act(NamedTuple):
    """Who does something, and why. `request_id` names the request it belongs to."""

    actor: str
    reason: str | None = None
    request_id: str | None = None


class Entry(NamedTuple):
    """One thing that happened; `dlq_id` None: to many letters."""

    dlq_id: int | None
    kind: str
    detail: Mapping[str, Any] | None = None


async def tell(
    connection: AsyncConnection, tables: DeskTables, act: Act, entries: Sequence[Entry]
) -> None:
    """Append; nothing where there is no table."""
    if tables.history is None or not entries:
        return
    rows = [
        {
            "dlq_id": entry.dlq_id,
            "actor": act.actor,
            "kind": entry.kind,
            "reason": act.reason,
            # unique among the rows that belong to no letter
            "request_id": act.request_id,
            "detail": None if entry.detail is None else dict(entry.detail),
        }
        for entry in entries
    ]
    await connection.execute(insert(tables.history), rows)
