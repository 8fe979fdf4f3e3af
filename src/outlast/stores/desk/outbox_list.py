"""Live rows of a filter, by id. What the columns cannot tell is tested on a bounded number of them.

In: a connection, a query of the words that live messages have. Out: rows without their bytes, and
how far the look went. Never writes; values are bound whatever was asked.
"""

from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    Text,
    and_,
    cast,
    false,
    func,
    or_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model import headers as envelope
from outlast.model.query import ROW_STATES, Condition, Query, Word
from outlast.stores.desk.outbox_rows import OutboxRow, row_of
from outlast.stores.desk.reading import TOTAL_MAX
from outlast.stores.desk.scanning import asks_bodies, matcher

LOOKED_AT_MAX = 10_000
"""How many rows one list tests by their headers and bodies."""

_STEP = 100
_COMPARED = {">=": ge, ">": gt, "<=": le, "<": lt}
_ID_MAX = 2**63 - 1

Where = ColumnElement[bool]


class FoundRows(NamedTuple):
    """`after`: where the next list begins. `looked_at`: the look ended before the rows did.

    `total`: how many match, exactly up to TOTAL_MAX where the columns tell all.
    """

    rows: tuple[OutboxRow, ...]
    after: int | None
    total: int
    at_least: bool
    looked_at: int | None = None


async def listed(
    connection: AsyncConnection, outbox: Table, query: Query, limit: int, after: int
) -> FoundRows:
    """The first rows behind an id."""
    holds = _test(query)
    if holds is None:
        rows = (await connection.execute(_page(outbox, query, limit + 1, after))).mappings().all()
        shown = tuple(row_of(dict(row), whole=False) for row in rows[:limit])
        total = await _total(connection, outbox, query)
        going_on = shown[-1].id if len(rows) > limit else None
        return FoundRows(shown, going_on, min(total, TOTAL_MAX), total > TOTAL_MAX)
    found: list[OutboxRow] = []
    looked_at, is_first = 0, not after
    while looked_at < LOOKED_AT_MAX:
        step = min(_STEP, LOOKED_AT_MAX - looked_at)
        rows = (await connection.execute(_page(outbox, query, step, after))).mappings().all()
        for row in rows:
            looked_at += 1
            live = row_of(dict(row), whole=False)
            if holds(live, row["headers"], row.get("payload")):
                if len(found) == limit:
                    return FoundRows(tuple(found), after, limit + 1, at_least=True)
                found.append(live)
            after = live.id
        if len(rows) < step:
            return FoundRows(tuple(found), None, len(found), at_least=not is_first)
    return FoundRows(tuple(found), after, len(found), at_least=True, looked_at=looked_at)


async def _total(connection: AsyncConnection, outbox: Table, query: Query) -> int:
    some = select(outbox.c.id).where(*_conditions(outbox, query)).limit(TOTAL_MAX + 1).subquery()
    return int((await connection.execute(select(func.count()).select_from(some))).scalar_one())


def _page(outbox: Table, query: Query, limit: int, after: int) -> Select[Any]:
    columns = [c for c in outbox.columns if asks_bodies(query) or c.name != "payload"]
    where = (*_conditions(outbox, query), outbox.c.id > after)
    some = select(*columns).where(*where).order_by(outbox.c.id).limit(limit)
    if not any(word.name == "queue" and not word.negated for word in query.words):
        return some
    # each index over queues holds the rows of one of these conditions
    token = outbox.c.acquired_token
    halves = [some.where(half).subquery() for half in (token.is_(None), token.is_not(None))]
    both = union_all(*(select(*half.c) for half in halves)).subquery()
    return select(*both.c).order_by(both.c.id).limit(limit)


def _conditions(outbox: Table, query: Query) -> list[Where]:
    found: list[Where] = []
    for word in query.words:
        condition = _of_word(outbox, word)
        if condition is not None:
            known = func.coalesce(condition, false())
            found.append(~known if word.negated else known if word.name != "queue" else condition)
    if query.row_states != frozenset(ROW_STATES):
        found.append(or_(*(_may_be(outbox, state) for state in sorted(query.row_states))))
    return found


def _of_word(outbox: Table, word: Word) -> Where | None:
    values = [condition.value for condition in word.alternatives]
    match word.name:
        case "queue":
            return outbox.c.queue.in_(values)
        case "id":
            return outbox.c.id.in_(values)
        case "since" | "until":
            created = outbox.c.created_at
            return or_(*(_COMPARED[c.operator](created, c.value) for c in word.alternatives))
        case "message":
            return or_(*(_message(outbox, str(value)) for value in values))
        case "event":
            return _header(outbox, envelope.EVENT_TYPE).in_(values)
    return None


def _header(outbox: Table, name: str) -> ColumnElement[Any]:
    return cast(outbox.c.headers[name].as_string(), Text)


def _message(outbox: Table, wanted: str) -> Where:
    """The header's id, else the row's own."""
    header = _header(outbox, envelope.MESSAGE_ID)
    is_number = wanted.isascii() and wanted.isdecimal() and str(int(wanted[:20])) == wanted
    if not is_number or int(wanted) > _ID_MAX:
        return header == wanted
    return or_(header == wanted, and_(func.coalesce(header, "") == "", outbox.c.id == int(wanted)))


def _may_be(outbox: Table, state: str) -> Where:
    """What a row in this state has in its columns; the rest is in its headers."""
    free = outbox.c.acquired_token.is_(None)
    match state:
        case "pending":
            return and_(free, outbox.c.deliveries_count == 0)
        case "retrying":
            return and_(free, outbox.c.deliveries_count > 0)
        case "in_flight":
            return outbox.c.acquired_token.is_not(None)
    return _header(outbox, envelope.REPLAY).is_not(None)


_Test = Callable[[OutboxRow, Mapping[str, Any] | None, bytes | None], bool]


def _test(query: Query) -> _Test | None:
    """What must be looked at row by row; None: the columns tell all."""
    matches = matcher(query)
    replays = [word for word in query.words if word.name == "replays"]
    states = query.row_states
    if matches is None and not replays and states == frozenset(ROW_STATES):
        return None

    def holds(row: OutboxRow, headers: Mapping[str, Any] | None, payload: bytes | None) -> bool:
        if row.state not in states:
            return False
        if any(_was_replayed(word, headers) is word.negated for word in replays):
            return False
        return matches is None or matches(headers, payload)

    return holds


def _was_replayed(word: Word, headers: Mapping[str, Any] | None) -> bool:
    count = (headers or {}).get(envelope.REPLAY_COUNT, 0)
    if isinstance(count, bool) or not isinstance(count, int):
        return False
    return any(_compares(count, condition) for condition in word.alternatives)


def _compares(count: int, condition: Condition) -> bool:
    if condition.operator == "=":
        return count == condition.value
    return bool(_COMPARED[condition.operator](count, condition.value))
