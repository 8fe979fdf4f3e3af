"""Dead letters, locked until the transaction ends.

In: a connection inside a writing transaction, ids. Out: letters as they are now. A letter that
somebody else holds is waited for or passed over; on SQLite nobody else writes meanwhile.
"""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.letter_view import LetterView
from outlast.stores.desk.conditions import Where
from outlast.stores.desk.shape import DeskTables


async def locked(
    connection: AsyncConnection,
    tables: DeskTables,
    ids: Sequence[int],
    where: Sequence[Where] = (),
    *,
    pass_over: bool,
) -> list[LetterView]:
    """The letters that are there, by id; `where` is tested once more under the lock."""
    if not ids:
        return []
    dlq = tables.dlq
    statement = select(dlq).where(dlq.c.id.in_(ids), *where).order_by(dlq.c.id)
    if tables.is_postgres:
        statement = statement.with_for_update(skip_locked=pass_over)
    rows = await connection.execute(statement)
    return [LetterView.of(dict(row)) for row in rows.mappings()]
