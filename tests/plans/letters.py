"""A large dead-letter table, and what the desk's statements cost on it, in shared buffers."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bench.letters import fill
from outlast.ops import SCOPES, Actor, Desk
from tests.conftest import Database

ANN = Actor("ann", SCOPES)


@dataclass
class Letters:
    """A desk over many letters; `cost` adds up the buffers of all that a call sends."""

    engine: AsyncEngine
    desk: Desk
    statements: list[tuple[str, Any]] = field(default_factory=list)

    async def cost(self, call: Any) -> int:
        self.statements.clear()
        await call()
        sent = [s for s in self.statements if s[0].startswith(("SELECT", "WITH"))]
        return sum([await self._buffers(*statement) for statement in sent])

    async def _buffers(self, sql: str, parameters: Any) -> int:
        async with self.engine.connect() as connection:
            explain = f"explain (analyze, buffers, timing off, format json) {sql}"
            found = (await connection.exec_driver_sql(explain, tuple(parameters))).scalar_one()
            await connection.rollback()
        plan = found[0]["Plan"]
        return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def letters(database: Database, rows: int, replaying: int = 0) -> Letters:
    """So many letters, the newest last."""
    engine = create_async_engine(database.url, connect_args=database.connect_args)
    await fill(engine, rows, replaying)
    made = Letters(engine, Desk(engine))
    event.listen(
        engine.sync_engine,
        "before_cursor_execute",
        lambda _c, _cursor, sql, parameters, _x, _many: made.statements.append((sql, parameters)),
    )
    await made.desk.list(ANN, limit=1)
    return made
