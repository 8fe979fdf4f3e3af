"""Where every message is, counted by the database itself: a ledger of moves kept by triggers.

In: a scene. Out: tables and triggers, and snapshots that must balance. Who moved a row is what
its connection says of itself (`Scene.part`), so outlast's own bookkeeping is not asked.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.tables import make_operations_tables
from tests.crash.scene import Scene, dlq, outbox, witness

metadata = MetaData()
operations = make_operations_tables(metadata)
moves = Table(
    "moves",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("message", String(64), nullable=False),
    Column("part", String(16), nullable=False),
    # left: a row left the outbox; back: it became a letter that waits for somebody;
    # purged: such a letter was deleted
    Column("what", String(16), nullable=False),
)

_GONE = "('replaying', 'resolved')"

_POSTGRES = [
    """create function moved() returns trigger language plpgsql as $$
    declare row record;
    begin
      row := case when tg_op = 'INSERT' then new else old end;
      insert into moves (message, part, what)
      values (substring(convert_from(row.payload, 'UTF8') from '"m": ?"([^"]*)"'),
              current_setting('test.part'), tg_argv[0]);
      return null;
    end $$""",
    "create trigger a after delete on outbox for each row execute function moved('left')",
    "create trigger b after insert on outbox_dlq for each row execute function moved('back')",
    f"""create trigger c after update of state on outbox_dlq for each row
    when (old.state = 'replaying' and new.state not in {_GONE})
    execute function moved('back')""",
    f"""create trigger d after delete on outbox_dlq for each row
    when (old.state not in {_GONE}) execute function moved('purged')""",
]

_INSERT = "insert into moves (message, part, what) values"
_NAME = "json_extract(cast({}.payload as text), '$.m')"
_SQLITE = [
    f"""create trigger a after delete on outbox begin
    {_INSERT} ({_NAME.format("old")}, part(), 'left'); end""",
    f"""create trigger b after insert on outbox_dlq begin
    {_INSERT} ({_NAME.format("new")}, part(), 'back'); end""",
    f"""create trigger c after update of state on outbox_dlq
    when old.state = 'replaying' and new.state not in {_GONE} begin
    {_INSERT} ({_NAME.format("old")}, part(), 'back'); end""",
    f"""create trigger d after delete on outbox_dlq when old.state not in {_GONE} begin
    {_INSERT} ({_NAME.format("old")}, part(), 'purged'); end""",
]


async def prepare(scene: Scene) -> None:
    """The tables of the scene, those of the desk, and the triggers."""
    await scene.prepare()
    engine = scene.engine()
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        for statement in _POSTGRES if scene.is_postgres else _SQLITE:
            await connection.exec_driver_sql(statement)
    await engine.dispose()


@dataclass(frozen=True)
class Snapshot:
    """One instant: what was published, and where it is."""

    published: int
    live: int
    waiting: int
    """Letters neither replaying nor resolved."""
    delivered: int
    cancelled: int
    purged: int

    @property
    def missing(self) -> int:
        """What is nowhere; negative: what is in two places."""
        places = self.live + self.waiting + self.delivered + self.cancelled + self.purged
        return self.published - places


async def snapshot(connection: AsyncConnection) -> Snapshot:
    """In one snapshot of the database: REPEATABLE READ, or a read transaction on SQLite."""
    async with connection.begin():
        if connection.dialect.name == "sqlite":
            # the driver begins no transaction for a SELECT by itself
            await connection.exec_driver_sql("BEGIN")
        published = await _count(connection, witness)
        live = await _count(connection, outbox)
        waiting = await _count(connection, dlq, dlq.c.state.not_in(["replaying", "resolved"]))
        found = await connection.execute(
            select(moves.c.part, moves.c.what, func.count()).group_by(moves.c.part, moves.c.what)
        )
        moved: Counter[tuple[str, str]] = Counter({(part, what): n for part, what, n in found})
        return Snapshot(
            published,
            live,
            waiting,
            delivered=moved["worker", "left"] - moved["worker", "back"],
            cancelled=moved["operator", "left"] - moved["operator", "back"],
            purged=moved["operator", "purged"],
        )


async def misplaced(connection: AsyncConnection) -> list[str]:
    """Each message that is not in exactly one place, once everything is quiet."""
    places: Counter[str] = Counter()
    found = await connection.execute(
        select(moves.c.message, moves.c.what, func.count()).group_by(moves.c.message, moves.c.what)
    )
    for message, what, number in found:
        places[message] += -number if what == "back" else number
    for payload in (
        await connection.execute(
            select(dlq.c.payload).where(dlq.c.state.not_in(["replaying", "resolved"]))
        )
    ).scalars():
        places[_name(payload)] += 1
    for payload in (await connection.execute(select(outbox.c.payload))).scalars():
        places[_name(payload)] += 1
    known = set((await connection.execute(select(witness.c.message))).scalars())
    wrong = [f"{name} is in {places[name]} places" for name in known if places[name] != 1]
    return wrong + [f"{name} was never published" for name in set(places) - known]


async def lose_one(connection: AsyncConnection) -> None:
    """What nobody may do: a letter vanishes behind the triggers' backs."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text("set local session_replication_role = replica"))
    else:
        for name in "abcd":
            await connection.execute(text(f"drop trigger {name}"))
    first = select(func.min(dlq.c.id)).where(dlq.c.state == "open").scalar_subquery()
    await connection.execute(dlq.delete().where(dlq.c.id == first))


async def _count(connection: AsyncConnection, table: Table, *where: Any) -> int:
    found = await connection.execute(select(func.count()).select_from(table).where(*where))
    return int(found.scalar_one())


def _name(payload: bytes) -> str:
    return str(json.loads(payload)["m"])
