"""What every part of the desk stands on: the database, the tables that were found, the options.

In: an engine and two tables. Out: connections with tables; refusals with a remedy where the tables
lack what a verb needs.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from sqlalchemy import MetaData, Table
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
_ID_MAX = 2**63 - 1


class At(NamedTuple):
    """A connection, and the tables there."""

    connection: AsyncConnection
    tables: DeskTables


class DeskContext:
    """Tables are found once, and again before a verb is refused for what they lack."""

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
        self._insertion = Insertion(
            self._outbox, is_postgres=self._database.is_postgres, notify=self.options.notify
        )
        self._redaction = Redaction(
            Masker(self.options.secret_names), self.options.payload_shown_bytes
        )

    async def notes(self) -> tuple[str, ...]:
        """What the tables here do not record, one sentence each."""
        async with self._reading() as at:
            return _notes(at.tables)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[At]:
        async with self._database.reading() as connection:
            if self._found is None:
                self._found = await find_tables(connection, self._outbox, self._dlq)
            yield At(connection, self._found)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[At]:
        """A transaction over tables that `_need_states` has looked at."""
        async with self._database.writing() as connection:
            assert self._found is not None, "a verb looks at the tables first"
            yield At(connection, self._found)

    async def _need_states(self, *, outbox: bool = False) -> None:
        """Refuse what these tables cannot do, before anything is written."""
        for is_last in (False, True):
            async with self._reading() as at:
                lacking = at.tables.missing
                has_outbox = at.tables.outbox is not None
            if not lacking and (has_outbox or not outbox):
                return
            if not is_last:
                self._found = None  # a migration may have run since
        if lacking:
            raise NotRecorded(
                f"table {self._dlq.fullname} has no column {', '.join(lacking)}: its letters can "
                "be looked at, not acted on",
                "docs/guides/schema.md has the statements that add what is missing",
            )
        raise NotRecorded(
            f"there is no outbox table {self._outbox.fullname}",
            "name the right one with --table",
        )

    def _act(self, actor: Actor, reason: str | None) -> Act:
        return Act(actor.name, checked_text("reason", reason, REASON_CHARS_MAX), actor.request_id)

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


def _notes(tables: DeskTables) -> tuple[str, ...]:
    notes = []
    if tables.missing:
        notes.append(
            f"table {tables.dlq.fullname} records no {', '.join(tables.missing)}: letters can be "
            "looked at, not acted on (docs/guides/schema.md has the statements that add them)"
        )
    if tables.history is None:
        notes.append("there is no history table: what is done here is not recorded")
    if tables.revision is None:
        notes.append("there is no revision table: messages cannot be edited")
    if tables.worker is None:
        notes.append("there is no worker table: which versions and queues run is not recorded")
    return tuple(notes)
