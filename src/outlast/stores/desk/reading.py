"""Letters as they are: pages, totals, one letter with its history and revisions.

In: a connection and a selection. Out: values, unmasked. Never writes.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Column, Subquery, Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.letter_view import LetterView
from outlast.stores.desk.selection import Boundary, Place, Selection, Sized, bites
from outlast.stores.desk.shape import DeskTables
from outlast.stores.desk.windows import (
    LOOK_MAX,
    edge,
    found_in,
    looked_of,
    scan,
    window,
)
from outlast.tables.instant import clock

TOTAL_MAX = 10_000
"""Totals of lists are exact up to here."""

HISTORY_MAX = 500
REVISIONS_MAX = 50

_HEAVY = frozenset({"payload", "headers", "stack_trace"})
_TOP_CAUSES = 3


class Causes(NamedTuple):
    """The few causes that make up most of a list."""

    causes: int
    letters: int


@dataclass(frozen=True, slots=True)
class Page:
    """`looked_at` of `looked_of`: what was looked at, if not all; None: more than is counted."""

    letters: tuple[LetterView, ...]
    total: int
    at_least: bool
    more: bool
    last: Place | None
    looked_at: int | None = None
    looked_of: int | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One act, as it was recorded."""

    id: int
    dlq_id: int | None
    at: datetime
    actor: str | None
    kind: str
    reason: str | None
    request_id: str | None
    detail: Any


@dataclass(frozen=True, slots=True)
class Revision:
    """An edited message. The original is revision 0 and never changes."""

    dlq_id: int
    revision: int
    at: datetime
    actor: str | None
    payload: bytes
    headers: dict[str, Any] | None
    transform: str | None
    digest: str | None
    reason: str | None


async def page(
    connection: AsyncConnection,
    chosen: Selection,
    limit: int,
    after: Place | None = None,
    offset: int = 0,
) -> Page:
    """The newest letters that match, of those it looks at."""
    if chosen.matches is not None:
        return await _scanned_page(connection, chosen, limit, after, offset)
    most = LOOK_MAX if chosen.is_looked_through else offset + limit + 1
    looked = window(chosen, after, most, light(chosen.tables))
    found = await found_in(connection, looked, chosen)
    statement = found.limit(limit + 1).offset(offset)
    rows = (await connection.execute(statement)).mappings().all()
    shown = [dict(row) for row in rows[:limit]]
    last = Place(shown[-1]["at"], shown[-1]["id"]) if shown else None
    more = len(rows) > limit
    is_all = not (more or after or offset)
    total, is_bounded = await total_of(connection, chosen, len(rows) if is_all else None)
    if not more and is_bounded:
        # the next page looks further down
        end = await edge(connection, chosen, after, LOOK_MAX)
        more, last = end is not None, end or last
    return Page(
        tuple(LetterView.of(row) for row in shown),
        min(total, TOTAL_MAX),
        at_least=is_bounded or total > TOTAL_MAX,
        more=more,
        last=last,
        looked_at=LOOK_MAX if is_bounded else None,
        looked_of=await looked_of(connection, chosen) if is_bounded else None,
    )


async def _scanned_page(
    connection: AsyncConnection, chosen: Selection, limit: int, after: Place | None, offset: int
) -> Page:
    newest = await scan(connection, chosen)
    is_bounded = newest.edge is not None
    here = newest if after is None else await scan(connection, chosen, after)
    behind = here.places[offset:]
    shown = behind[:limit]
    more, last = len(behind) > limit, shown[-1] if shown else None
    if not more and here.edge is not None:
        more, last = True, here.edge
    by_id = {
        letter.id: letter
        for letter in await letters(connection, chosen.tables, [p.id for p in shown], heavy=False)
    }
    return Page(
        tuple(by_id[place.id] for place in shown if place.id in by_id),
        len(newest.places),
        at_least=is_bounded,
        more=more,
        last=last,
        looked_at=LOOK_MAX if is_bounded else None,
        looked_of=await looked_of(connection, chosen) if is_bounded else None,
    )


def light(tables: DeskTables) -> list[Column[Any]]:
    """The columns of a list: without what may be large."""
    return [column for column in tables.dlq.columns if column.name not in _HEAVY]


async def total_of(
    connection: AsyncConnection, chosen: Selection, known: int | None
) -> tuple[int, bool]:
    """How many match, up to one more than is told exactly; whether there was more to look at.

    `known`: the first page holds all that match among those that are looked at.
    """
    if not chosen.is_looked_through:
        some = select(chosen.tables.dlq.c.id).where(*chosen.where).limit(TOTAL_MAX + 1)
        return await _number(connection, some.subquery()), False
    total = known
    if total is None:
        looked = window(chosen, None, LOOK_MAX)
        found = await found_in(connection, looked, chosen, looked.c.id)
        total = await _number(connection, found.limit(TOTAL_MAX + 1).subquery())
    return total, await edge(connection, chosen, None, LOOK_MAX) is not None


async def _number(connection: AsyncConnection, some: Subquery) -> int:
    statement = select(func.count()).select_from(some)
    return int((await connection.execute(statement)).scalar_one())


async def count(connection: AsyncConnection, chosen: Selection) -> int:
    """How many match, exactly; a query that reads bodies counts among the newest only."""
    if chosen.matches is not None:
        return len((await scan(connection, chosen)).places)
    statement = select(func.count()).select_from(chosen.tables.dlq).where(*chosen.where)
    return int((await connection.execute(statement)).scalar_one())


async def causes(connection: AsyncConnection, chosen: Selection) -> Causes | None:
    """The commonest fingerprints among the letters that a total counts."""
    fingerprint = chosen.tables.dlq.c.get("fingerprint")
    if fingerprint is None or chosen.matches is not None:
        return None
    looked = window(chosen, None, LOOK_MAX, (fingerprint,))
    found = await found_in(connection, looked, chosen, looked.c.fingerprint)
    some = found.limit(TOTAL_MAX + 1).subquery()
    number = func.count()
    top = (
        select(number)
        .select_from(some)
        .where(some.c.fingerprint.is_not(None))
        .group_by(some.c.fingerprint)
        .order_by(number.desc())
        .limit(_TOP_CAUSES)
    )
    counts = [int(n) for n in (await connection.execute(top)).scalars()]
    return Causes(len(counts), sum(counts)) if counts else None


async def letters(
    connection: AsyncConnection, tables: DeskTables, ids: Sequence[int], *, heavy: bool = True
) -> list[LetterView]:
    """These letters, as many as there are."""
    if not ids:
        return []
    columns = list(tables.dlq.columns) if heavy else light(tables)
    rows = await connection.execute(select(*columns).where(tables.dlq.c.id.in_(ids)))
    return [LetterView.of(dict(row)) for row in rows.mappings()]


async def history(
    connection: AsyncConnection, tables: DeskTables, letter_id: int
) -> tuple[HistoryEntry, ...] | None:
    """The newest acts on a letter, oldest first; None without a history table."""
    table = tables.history
    if table is None:
        return None
    statement = select(table).where(table.c.dlq_id == letter_id).order_by(table.c.id.desc())
    rows = (await connection.execute(statement.limit(HISTORY_MAX))).mappings().all()
    return tuple(HistoryEntry(**row) for row in reversed(rows))


async def revisions(
    connection: AsyncConnection, table: Table, letter_id: int
) -> AsyncIterator[Revision]:
    """The newest revisions of a letter, oldest first; few of their bodies are in memory at once."""
    number = table.c.revision
    sizes = select(number, func.length(table.c.payload)).where(table.c.dlq_id == letter_id)
    newest = await connection.execute(sizes.order_by(number.desc()).limit(REVISIONS_MAX))
    sized = [Sized(*row) for row in reversed(newest.all())]
    for some in bites(sized):
        these = number.in_([one.id for one in some])
        statement = select(table).where(table.c.dlq_id == letter_id, these).order_by(number)
        for row in (await connection.execute(statement)).mappings().all():
            yield Revision(**row)


async def newest_revisions(
    connection: AsyncConnection, tables: DeskTables, ids: Sequence[int]
) -> dict[int, Revision]:
    """The revision that a replay sends, of each letter that has one."""
    table = tables.revision
    if table is None or not ids:
        return {}
    newest = (
        select(table.c.dlq_id, func.max(table.c.revision).label("revision"))
        .where(table.c.dlq_id.in_(ids))
        .group_by(table.c.dlq_id)
        .subquery()
    )
    statement = select(table).join(
        newest, (table.c.dlq_id == newest.c.dlq_id) & (table.c.revision == newest.c.revision)
    )
    rows = (await connection.execute(statement)).mappings()
    return {row["dlq_id"]: Revision(**row) for row in rows}


async def boundary(connection: AsyncConnection, tables: DeskTables) -> Boundary:
    """Highest id and the database's clock, taken before anything is counted."""
    highest = select(func.coalesce(func.max(tables.dlq.c.id), 0)).scalar_subquery()
    row = (await connection.execute(select(highest.label("id"), clock().label("at")))).one()
    return Boundary(int(row.id), row.at)


async def database_now(connection: AsyncConnection) -> datetime:
    """The database's clock."""
    found: datetime = (await connection.execute(select(clock()))).scalar_one()
    return found
