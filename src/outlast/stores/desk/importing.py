"""Letters that come in: known already, or new rows.

In: a connection inside a writing transaction, checked letters. Out: ids. One import at a time looks
and writes, so that the same letter never comes in twice.
"""

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from sqlalchemy import func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model import headers as envelope
from outlast.model.query import OPEN
from outlast.policy.export_forms import digest_of
from outlast.policy.import_forms import ImportLetter
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import clock

_LOCK_CLASS = crc32(b"outlast import") & 0x7FFFFFFF


class Placed(NamedTuple):
    """Where a letter is now."""

    dlq_id: int
    is_new: bool


async def known_as(
    connection: AsyncConnection, tables: DeskTables, letter: ImportLetter
) -> int | None:
    """The id of the same letter, in any state: message, queue, time of death and bytes."""
    dlq, values = tables.dlq, letter.values
    wanted = _message_id(letter)
    statement = (
        select(dlq.c.id, dlq.c.original_id, dlq.c.message_id, dlq.c.headers, dlq.c.payload)
        .where(
            dlq.c.queue == values["queue"],
            dlq.c.failed_at == values["failed_at"],
            func.length(dlq.c.payload) == len(letter.payload),
            or_(dlq.c.message_id == wanted, dlq.c.message_id.is_(None)),
        )
        .order_by(dlq.c.id)
    )
    for row in await connection.execute(statement):
        message_id = row.message_id or envelope.message_id(row.headers, row.original_id)
        if message_id == wanted and digest_of(row.payload) == letter.digest:
            return int(row.id)
    return None


async def place(
    connection: AsyncConnection, tables: DeskTables, letters: Sequence[ImportLetter], act: Act
) -> list[Placed]:
    """Write those that are not there; each is open."""
    if tables.is_postgres:
        table = crc32(tables.dlq.fullname.encode()) - 2**31
        await connection.execute(select(func.pg_advisory_xact_lock(_LOCK_CLASS, table)))
    placed: list[Placed] = []
    entries: list[Entry] = []
    for letter in letters:
        known = await known_as(connection, tables, letter)
        if known is not None:
            placed.append(Placed(known, is_new=False))
            continue
        values = dict(letter.values) | {"state": OPEN, "state_changed_at": clock(), "revision": 0}
        made = insert(tables.dlq).values(values).returning(tables.dlq.c.id)
        letter_id = int((await connection.execute(made)).scalar_one())
        placed.append(Placed(letter_id, is_new=True))
        detail = {"from": dict(letter.came_from), "digest": letter.digest}
        entries.append(Entry(letter_id, "imported", detail))
    await tell(connection, tables, act, entries)
    return placed


def _message_id(letter: ImportLetter) -> str:
    values = letter.values
    given: str | None = values["message_id"]
    return given or envelope.message_id(values["headers"], values["original_id"])
