"""Revisions: what edits made of messages, beside the originals that never change.

In: locked letters with drafts, inside a writing transaction. Out: rows, the letters' numbers, and a
line in the history that holds nothing of the message. Nothing is committed here.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import BigInteger, Integer, bindparam, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.edit import Draft
from outlast.model.letter_view import LetterView
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import clock


async def newest_numbers(
    connection: AsyncConnection, tables: DeskTables, ids: Sequence[int]
) -> dict[int, int]:
    """The highest number of each letter that has revisions."""
    table = tables.revision
    if table is None or not ids:
        return {}
    statement = (
        select(table.c.dlq_id, func.max(table.c.revision))
        .where(table.c.dlq_id.in_(ids))
        .group_by(table.c.dlq_id)
    )
    return {row[0]: int(row[1]) for row in await connection.execute(statement)}


async def revise(
    connection: AsyncConnection,
    tables: DeskTables,
    act: Act,
    drafts: Sequence[tuple[LetterView, Draft]],
) -> Mapping[int, int]:
    """Write them; the new number of each letter."""
    table, dlq = tables.revision, tables.dlq
    if not drafts or table is None:
        return {}
    highest = await newest_numbers(connection, tables, [letter.id for letter, _ in drafts])
    numbers = {
        letter.id: max(letter.revision or 0, highest.get(letter.id, 0)) + 1 for letter, _ in drafts
    }
    rows = [
        {
            "dlq_id": letter.id,
            "revision": numbers[letter.id],
            "actor": act.actor,
            "payload": draft.payload,
            "headers": dict(draft.headers),
            "transform": draft.transform,
            "digest": draft.digest,
            "reason": act.reason,
        }
        for letter, draft in drafts
    ]
    # the statement's clock: a transaction may have begun before the letter failed again
    await connection.execute(insert(table).values(at=clock()), rows)
    raised = update(dlq).where(dlq.c.id == bindparam("p_id", type_=BigInteger))
    await connection.execute(
        raised.values(revision=bindparam("p_revision", type_=Integer)),
        [{"p_id": letter_id, "p_revision": number} for letter_id, number in numbers.items()],
    )
    told = [
        Entry(
            letter.id,
            "edited",
            {"revision": numbers[letter.id], "of": draft.before, **draft.detail},
        )
        for letter, draft in drafts
    ]
    await tell(connection, tables, act, told)
    return numbers
