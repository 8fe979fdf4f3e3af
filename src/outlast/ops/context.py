"""What every part of the desk stands on: the database, the tables that were found, the options.

In: an engine and two tables. Out: connections with tables; refusals with a remedy where the tables
lack what a verb needs.
"""

import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import NamedTuple

from sqlalchemy import MetaData, Table, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outlast.model.query import Query
from outlast.ops.actor import Actor
from outlast.ops.options import DeskOptions
from outlast.ops.redaction import Redaction
from outlast.ops.refusals import BadRequest, NotRecorded, check_text
from outlast.policy.masking import Masker
from outlast.stores.desk.history import Act
from outlast.stores.desk.shape import DeskTables, find_tables
from outlast.stores.desk.transactions import DeskDatabase
from outlast.tables import make_dlq_table, make_outbox_table
from outlast.tables.insertion import Insertion

REASON_CHARS_MAX = 2000
LOOK_AGAIN_SECONDS = 5.0
"""Between two looks at tables that lack something."""
NOT_GIVEN = "not given"
"""The reason that is recorded where none was said."""

_ID_MAX = 2**63 - 1


class At(NamedTuple):
    """A connection, and the tables there."""

    connection: AsyncConnection
    tables: DeskTables


class DeskContext:
    """Tables are found once; while they lack something they are looked at again, now and then and
    before a verb is refused for it.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        outbox_table: Table | str = "outbox",
        dlq_table: Table | str = "outbox_dlq",
        *,
        options: DeskOptions | None = None,
    ) -> None:
        self.options = options or DeskOptions()
        self._outbox = _table(outbox_table, make_outbox_table)
        self._dlq = _table(dlq_table, make_dlq_table)
        self._database = DeskDatabase(engine, self._dlq)
        self._found: DeskTables | None = None
        self._look_again_at = 0.0
        self._insertion = Insertion(
            self._outbox, is_postgres=self._database.is_postgres, notify=self.options.notify
        )
        self._redaction = Redaction(
            Masker(self.options.secret_names), self.options.payload_shown_bytes
        )

    @property
    def print_command(self) -> str:
        """The command that prints what these tables lack."""
        return _print_command(self._outbox, self._dlq)

    async def notes(self) -> tuple[str, ...]:
        """What the tables here do not record, one sentence each."""
        async with self._reading() as at:
            return _notes(at.tables, self.print_command)

    async def ping(self) -> None:
        """A StoreFailure unless the database answers. Tells nobody anything: needs no actor."""
        async with self._database.reading() as connection:
            await connection.execute(select(literal(1)))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[At]:
        async with self._database.reading() as connection:
            await self._database.bound(connection)
            found = self._found
            if found is None or not (found.is_whole or monotonic() < self._look_again_at):
                found = self._found = await find_tables(connection, self._outbox, self._dlq)
                self._look_again_at = monotonic() + LOOK_AGAIN_SECONDS
            yield At(connection, found)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[At]:
        """A transaction over tables that `_need_states` has looked at."""
        async with self._database.writing() as connection:
            assert self._found is not None, "a verb looks at the tables first"
            yield At(connection, self._found)

    async def _need_states(self, *, outbox: bool = False) -> None:
        """Refuse what these tables cannot do, before anything is written."""
        await self._need(self._without_columns)
        if outbox:
            await self._need(self._without_outbox)

    async def _need(self, refusal: Callable[[DeskTables], NotRecorded | None]) -> None:
        async with self._reading() as at:
            refused = refusal(at.tables)
        if refused is None:
            return
        self._found = None  # a migration may have run since
        async with self._reading() as at:
            refused = refusal(at.tables)
        if refused is not None:
            raise refused

    def _without_columns(self, tables: DeskTables) -> NotRecorded | None:
        if not tables.missing:
            return None
        return NotRecorded(
            f"table {self._dlq.fullname} has no column {', '.join(tables.missing)}: its letters "
            "can be looked at, not acted on",
            f"{self.print_command} prints the SQL that adds what is missing",
        )

    def _without_outbox(self, tables: DeskTables) -> NotRecorded | None:
        if tables.outbox is not None:
            return None
        return NotRecorded(
            f"there is no outbox table {self._outbox.fullname}",
            "name the right one with --table",
        )

    def _act(self, actor: Actor, reason: str | None) -> Act:
        return Act(actor.name, checked_text("reason", reason, REASON_CHARS_MAX), actor.request_id)

    def _reasoned(self, actor: Actor, reason: str | None, verb: str, *, dry_run: bool) -> Act:
        """The act of a verb that is never recorded without a reason."""
        act = self._act(actor, reason)
        if act.reason is not None or dry_run:
            return act
        if self.options.require_reason:
            raise BadRequest(f"a {verb} needs a reason", "give it with --reason")
        return act._replace(reason=NOT_GIVEN)

    def _ids(self, ids: Sequence[int]) -> list[int]:
        if len(ids) > self.options.ids_max:
            raise BadRequest(f"{len(ids)} ids in one call; {self.options.ids_max} are taken")
        for letter_id in ids:
            if isinstance(letter_id, bool) or not isinstance(letter_id, int):
                raise BadRequest(f"an id is a number, got {letter_id!r}")
        return [i for i in dict.fromkeys(ids) if 0 < i <= _ID_MAX]


def need_filter(query: Query, verb: str, *, everything: bool) -> None:
    """Refuse to act on all letters unless that was said."""
    if query.is_empty and not everything:
        raise BadRequest(
            f"{verb} without a filter would take every letter", "give a filter, or say --all"
        )


def checked_text(name: str, text: str | None, most: int) -> str | None:
    """A text of an operator, as it may be stored."""
    if text is None:
        return None
    check_text(name, text, most)
    return text.strip() or None


def _table(given: Table | str, make: object) -> Table:
    if isinstance(given, Table):
        return given
    schema, _, name = given.rpartition(".")
    made: Table = make(MetaData(schema=schema or None), name)  # type: ignore[operator]
    return made


def _print_command(outbox: Table, dlq: Table) -> str:
    named = (("--table", outbox, "outbox"), ("--dlq-table", dlq, "outbox_dlq"))
    options = [
        f" {option} {shlex.quote(table.fullname)}"
        for option, table, usual in named
        if table.fullname != usual
    ]
    return f"outlast db print{''.join(options)}"


def _notes(tables: DeskTables, print_command: str) -> tuple[str, ...]:
    notes = []
    if tables.missing:
        notes.append(
            f"table {tables.dlq.fullname} records no {', '.join(tables.missing)}: letters can be "
            f"looked at, not acted on ({print_command} prints the SQL that adds them)"
        )
    if tables.history is None:
        notes.append("there is no history table: what is done here is not recorded")
    if tables.revision is None:
        notes.append("there is no revision table: messages cannot be edited")
    if tables.worker is None:
        notes.append("there is no worker table: which versions and queues run is not recorded")
    return tuple(notes)
