"""Running a plan on the caller's transaction.

In: a plan and the caller's async session or connection, on any driver. Out: ids. The transaction
is joined: never begun, flushed, committed or rolled back here. A writer stands for one table; the
doors know only its protocol, so that a test double can take its place.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import Connection, Executable, Table
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Session

from outlast.policy.names import check_queue
from outlast.publish.arguments import (
    SessionOrConnection,
    TimerConflict,
    check_limit,
    check_session,
    check_timer,
)
from outlast.publish.plan import Plan
from outlast.tables.insertion import Insertion, When
from outlast.tables.upkeep import cancel_timer, unprocessed

ROWS_PER_STATEMENT = 5000
BYTES_PER_STATEMENT = 64 * 1024 * 1024
"""A larger batch is several statements of the same transaction: a server holds each whole."""

EXTEND_ATTEMPTS = 3
"""A timer that another transaction inserts meanwhile is found at the second attempt."""

BatchRow = tuple[bytes, dict[str, Any] | None]

Work = Callable[..., Any]
"""Called with the caller's synchronous connection, the statements for it, and the arguments."""


class Writer(Protocol):
    """What puts messages into an outbox."""

    async def insert(
        self,
        session: Any,
        *,
        queue: str,
        payload: bytes,
        headers: dict[str, Any] | None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> int | None:
        """One message; its row id, or None when its timer is taken."""

    async def insert_batch(
        self,
        session: Any,
        *,
        queue: str,
        rows: Sequence[BatchRow],
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
    ) -> None:
        """Many messages, ids in their order."""

    async def cancel_timer(self, session: Any, *, queue: str, timer_id: str) -> bool:
        """Whether this call deleted the live, unleased row of the timer."""

    async def fetch_unprocessed(
        self, session: Any, *, queue: str | None = None, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Rows that are not settled, by id; each a dict of the table's columns."""


async def publish(plan: Plan, session: Any, writer: Writer) -> int | None:
    """Run a plan of one message; its row id, or None when its timer is taken."""
    (row,) = plan.rows
    return await writer.insert(
        session,
        queue=plan.queue,
        payload=row.payload,
        headers=row.headers,
        activate_in=plan.activate_in,
        activate_at=plan.activate_at,
        timer_id=plan.timer_id,
        timer_conflict=plan.timer_conflict,
    )


async def publish_batch(plan: Plan, session: Any, writer: Writer) -> None:
    """Run a plan of any number of messages; none is nothing to do."""
    if plan.rows:
        await writer.insert_batch(
            session,
            queue=plan.queue,
            rows=[(row.payload, row.headers) for row in plan.rows],
            activate_in=plan.activate_in,
            activate_at=plan.activate_at,
        )


class OutboxWriter:
    """The writer of one outbox table, whatever database the caller's transaction is on."""

    def __init__(self, table: Table, *, notify: bool = True) -> None:
        self.table = table
        self._postgres = Insertion(table, is_postgres=True, notify=notify)
        self._other = Insertion(table, is_postgres=False, notify=False)
        self._cancel = cancel_timer(table)
        self._unprocessed = {one: unprocessed(table, one_queue=one) for one in (True, False)}

    async def insert(
        self,
        session: SessionOrConnection,
        *,
        queue: str,
        payload: bytes,
        headers: dict[str, Any] | None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> int | None:
        """One message; its row id, or None when its timer is taken."""
        when, values = _when(activate_in, activate_at)
        values |= {"p_queue": queue, "p_payload": payload, "p_headers": headers}
        work: Work = _insert_one
        if timer_id is not None:
            values["p_timer_id"] = timer_id
            work = _insert_timer if timer_conflict == "ignore" else _extend_timer
        row_id: int | None = await self._run(session, work, when, values)
        return row_id

    async def insert_batch(
        self,
        session: SessionOrConnection,
        *,
        queue: str,
        rows: Sequence[BatchRow],
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
    ) -> None:
        """Many messages, ids in their order."""
        when, values = _when(activate_in, activate_at)
        values["p_queue"] = queue
        await self._run(session, _insert_many, when, values, rows)

    async def cancel_timer(
        self, session: SessionOrConnection, *, queue: str, timer_id: str
    ) -> bool:
        """Whether this call deleted the live, unleased row of the timer."""
        check_session("cancel_timer", session)
        check_timer(queue, timer_id)
        values = {"p_queue": queue, "p_timer_id": timer_id}
        done: int = await self._run(session, lambda c, _: c.execute(self._cancel, values).rowcount)
        return bool(done)

    async def fetch_unprocessed(
        self, session: SessionOrConnection, *, queue: str | None = None, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Rows that are not settled, by id; each a dict of the table's columns."""
        check_session("fetch_unprocessed", session)
        if queue is not None:
            check_queue(queue)
        statement = self._unprocessed[queue is not None]
        values: dict[str, Any] = {"p_limit": check_limit(limit)}
        if queue is not None:
            values["p_queue"] = queue
        rows: list[dict[str, Any]] = await self._run(
            session, lambda c, _: [dict(row) for row in c.execute(statement, values).mappings()]
        )
        return rows

    async def _run(self, session: SessionOrConnection, work: Work, *arguments: Any) -> Any:
        """Everything on the caller's connection, in one switch to the synchronous side."""
        if isinstance(session, AsyncConnection):
            return await session.run_sync(self._on, work, *arguments)
        return await session.run_sync(self._joined, work, *arguments)

    def _joined(self, session: Session, work: Work, *arguments: Any) -> Any:
        # the INSERT as the clause: a session that routes by statement sends it to the primary;
        # executing on the connection, not the session, neither flushes nor calls its hooks
        connection = session.connection(bind_arguments={"clause": self._postgres.target})
        return self._on(connection, work, *arguments)

    def _on(self, connection: Connection, work: Work, *arguments: Any) -> Any:
        # a mock has no dialect name and is taken for PostgreSQL
        is_sqlite = connection.dialect.name == "sqlite"
        return work(connection, self._other if is_sqlite else self._postgres, *arguments)


def _when(
    activate_in: timedelta | None, activate_at: datetime | None
) -> tuple[When, dict[str, Any]]:
    if activate_in is not None:
        return "in", {"p_in": activate_in.total_seconds()}
    if activate_at is not None:
        return "at", {"p_at": activate_at}
    return "now", {}


def _first(connection: Connection, statement: Executable, values: Mapping[str, Any]) -> int | None:
    row_id: int | None = connection.execute(statement, values).scalar()
    return row_id


def _insert_one(
    connection: Connection, insertion: Insertion, when: When, values: Mapping[str, Any]
) -> int | None:
    return _first(connection, insertion.single(when), values)


def _insert_timer(
    connection: Connection, insertion: Insertion, when: When, values: Mapping[str, Any]
) -> int | None:
    return _first(connection, insertion.timer(when), values)


def _insert_many(
    connection: Connection,
    insertion: Insertion,
    when: When,
    values: dict[str, Any],
    rows: Sequence[BatchRow],
) -> None:
    statement = insertion.batch(when)
    for part in _parts(rows):
        given: dict[str, Any] | list[dict[str, Any]]
        if insertion.is_postgres:
            given = values | {
                "p_payload": [payload for payload, _ in part],
                "p_headers": [_json_text(headers) for _, headers in part],
            }
        else:
            given = [
                values | {"p_payload": payload, "p_headers": headers} for payload, headers in part
            ]
        connection.execute(statement, given)


def _extend_timer(
    connection: Connection, insertion: Insertion, when: When, values: Mapping[str, Any]
) -> int | None:
    if not insertion.is_postgres:
        return _extend_in_steps(connection, insertion, when, values)
    for _ in range(EXTEND_ATTEMPTS):
        row_id = _first(connection, insertion.extend(when), values)
        if row_id is not None:
            return row_id
        # leased, or inserted by a transaction that our snapshot did not see: a new one tells
        if _first(connection, insertion.unleased_timer, values) is None:
            return None
    return None


def _extend_in_steps(
    connection: Connection, insertion: Insertion, when: When, values: Mapping[str, Any]
) -> int | None:
    # the UPDATE takes SQLite's only write lock, so nothing comes between the steps
    row_id = _first(connection, insertion.postpone(when), values)
    if row_id is None:
        row_id = _first(connection, insertion.unleased_timer, values)
    if row_id is None:
        row_id = _first(connection, insertion.timer(when), values)
    return row_id


def _parts(rows: Sequence[BatchRow]) -> Iterator[list[BatchRow]]:
    part: list[BatchRow] = []
    size = 0
    for row in rows:
        if part and (len(part) == ROWS_PER_STATEMENT or size + len(row[0]) > BYTES_PER_STATEMENT):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row[0])
    if part:
        yield part


def _json_text(headers: dict[str, Any] | None) -> str | None:
    return None if headers is None else json.dumps(headers, allow_nan=False)
