"""The tables themselves: are they right, what would make them whole, and making them whole.

In: an actor. Out: drift and advice, SQL, or what was done. Only `schema_create` changes anything,
and it runs nothing but what `schema_plan` says.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sqlalchemy import DDL, Executable
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.errors import RowLocked
from outlast.ops.actor import Actor
from outlast.ops.context import DeskContext
from outlast.ops.refusals import BadRequest
from outlast.stores.desk.transactions import failure_of
from outlast.stores.schema import SchemaState, schema_plan, schema_state, schema_steps


class SchemaDesk(DeskContext):
    """The verbs on tables."""

    async def schema_state(self, actor: Actor) -> SchemaState:
        """What drifts, and what older tables lack."""
        actor.needs("inspect", "check the tables")
        self._check_names()
        async with self._database.reading() as connection:
            return await schema_state(connection, self._outbox, self._dlq)

    async def schema_plan(self, actor: Actor) -> tuple[str, ...]:
        """The SQL for what is missing, statement by statement."""
        actor.needs("inspect", "see what the tables lack")
        self._check_names()
        async with self._database.reading() as connection:
            return await schema_plan(connection, self._outbox, self._dlq)

    async def schema_create(self, actor: Actor, told: Callable[[str], None]) -> tuple[str, ...]:
        """Run that SQL; `told` hears of each step that is done. What is done stays done."""
        actor.needs("admin", "change the tables")
        self._check_names()
        done: list[str] = []
        async with self._altering() as connection:
            for step in await schema_steps(connection, self._outbox, self._dlq):
                # whatever the driver makes of colons and percent signs, this is run as it is
                sql: Executable = DDL(step.sql.replace("%", "%%"))  # type: ignore[no-untyped-call]
                try:
                    await connection.execute(sql)
                except Exception as error:
                    failure = failure_of(error)
                    if failure is None:
                        raise
                    failure.add_note(_stopped_at(step.title, locked=isinstance(failure, RowLocked)))
                    raise failure from error
                done.append(step.title)
                told(step.title)
        self._found = None
        return tuple(done)

    @asynccontextmanager
    async def _altering(self) -> AsyncIterator[AsyncConnection]:
        async with self._database.reading() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            try:
                yield connection
            finally:
                # the plan has set what waits how long: nobody else may get this session
                await connection.invalidate()

    def _check_names(self) -> None:
        names = [
            name for table in (self._outbox, self._dlq) for name in (table.name, table.schema or "")
        ]
        if not all(name.isprintable() for name in names):
            raise BadRequest("the name of a table has a character that cannot be printed")
        if self._outbox.fullname == self._dlq.fullname:
            raise BadRequest(
                f"{self._dlq.fullname} is named both as outbox and as table of dead letters",
                "name two with --table and --dlq-table",
            )


def _stopped_at(title: str, *, locked: bool) -> str:
    why = "; somebody works on the table" if locked else ""
    return f"stopped at: {title}{why}. What is done stays done; run it again to go on"
