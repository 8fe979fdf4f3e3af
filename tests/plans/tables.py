"""Large outbox tables, filled in SQL: what is in them, and what the planner was told about them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID, uuid4

from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outlast.stores.postgres.statements import Statements
from outlast.tables import make_dlq_table, make_outbox_table

Shape = Literal["ready", "ahead", "leased", "queues"]
Statistics = Literal["empty", "churned", "vacuumed", "in hand", "tiny", "fresh"]
"""When the table was analysed: while empty; when 80,000 messages had come and gone, before or after
a vacuum; when each row was leased; when it had 100 rows; now."""

CHURNED = 80_000

QUEUES = 1_000
READY_BEHIND = 2_000
"""Ready rows in a table that is full of others."""
OURS_PER_TOKEN = 100

# 200 bytes of payload, as in the benchmarks
_INSERT = (
    "INSERT INTO outbox (queue, payload, next_attempt_at, acquired_token, acquired_at) "
    "SELECT {queue}, decode(repeat('ab', 200), 'hex'), {due}, {token}, {leased_at} "
    "FROM generate_series(1, {rows}) g"
)
_PAST = "now() - interval '1 hour' + g * interval '1 millisecond'"
_FUTURE = "now() + interval '1 day' + g * interval '1 millisecond'"
_FRESH_LEASE = "now() - g % 10 * interval '1 second'"
_EXPIRED_LEASE = "now() - interval '30 minutes'"
_OUR_TOKEN = f"md5(((g - 1) / {OURS_PER_TOKEN})::text)::uuid"


@dataclass
class Filled:
    """A filled table, and rows that are leased by us: each is handed out once."""

    statements: Statements
    queues: list[str]
    ours: list[tuple[int, UUID]] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)

    def take(self, count: int) -> list[tuple[int, UUID]]:
        """Pairs that no other measurement has touched: an update that was rolled back leaves
        dead versions behind."""
        assert len(self.ours) >= count, "not enough leased rows were made"
        taken, self.ours = self.ours[:count], self.ours[count:]
        return taken

    def take_expired(self, count: int) -> list[int]:
        assert len(self.expired) >= count, "not enough expired rows were made"
        taken, self.expired = self.expired[:count], self.expired[count:]
        return taken


WhileEmpty = Callable[[Filled], Awaitable[None]]


async def create(engine: AsyncEngine) -> Statements:
    """Empty tables that no autovacuum will analyse behind the test's back."""
    metadata = MetaData()
    outbox, dlq = make_outbox_table(metadata), make_dlq_table(metadata)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        for name in (outbox.name, dlq.name):
            await connection.execute(text(f"ALTER TABLE {name} SET (autovacuum_enabled = off)"))
            # buffers are counted, not bytes to disk
            await connection.execute(text(f"ALTER TABLE {name} SET UNLOGGED"))
    return Statements(outbox, dlq, [column.name for column in dlq.columns])


async def drop(engine: AsyncEngine) -> None:
    await execute(engine, "DROP TABLE outbox, outbox_dlq")


async def execute(engine: AsyncEngine, *statements: str) -> None:
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def insert(
    connection: AsyncConnection,
    rows: int,
    *,
    queue: str = "'q0'",
    due: str = _PAST,
    token: str = "NULL",
    leased_at: str = "NULL",
) -> None:
    statement = _INSERT.format(rows=rows, queue=queue, due=due, token=token, leased_at=leased_at)
    await connection.exec_driver_sql(statement)


async def analyse_first(engine: AsyncEngine, statistics: Statistics) -> None:
    """Bring the planner to its wrong belief."""
    if statistics in {"churned", "vacuumed"}:
        await churn(engine, CHURNED)
    elif statistics == "in hand":
        async with engine.begin() as connection:
            await insert(
                connection,
                1_000,
                queue="'elsewhere'",
                token="gen_random_uuid()",
                leased_at=_FRESH_LEASE,
            )
    elif statistics == "tiny":
        async with engine.begin() as connection:
            await insert(connection, 100, queue="'elsewhere'")
    if statistics == "vacuumed":
        # a queue that is never quite empty keeps its pages
        await vacuum(engine, "TRUNCATE off")
    await execute(engine, "ANALYZE outbox, outbox_dlq")


async def vacuum(engine: AsyncEngine, *options: str) -> None:
    async with engine.connect() as connection:
        alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await alone.execute(text(f"VACUUM ({', '.join(options)}) outbox"))


async def churn(engine: AsyncEngine, rows: int) -> None:
    """Messages that came, were leased and went."""
    async with engine.begin() as connection:
        await insert(connection, rows, due=f"{_PAST} - interval '1 hour'")
    await execute(
        engine,
        "UPDATE outbox SET acquired_token = gen_random_uuid(), acquired_at = now()",
        "DELETE FROM outbox",
    )


async def fill(
    engine: AsyncEngine,
    shape: Shape,
    statistics: Statistics = "empty",
    *,
    rows: int,
    ours: int = 0,
    expired: int = 0,
    while_empty: WhileEmpty | None = None,
) -> Filled:
    """A table of `rows` rows in this shape, `ours` leased by us and `expired` by the dead."""
    statements = await create(engine)
    await analyse_first(engine, statistics)
    if while_empty is not None:
        nobody = Filled(statements, [f"q{n}" for n in range(QUEUES)])
        nobody.ours = [(-number, uuid4()) for number in range(ours)]
        nobody.expired = list(range(-expired, 0))
        await while_empty(nobody)
    many = shape == "queues"
    queue = f"'q' || g % {QUEUES}" if many else "'q0'"
    async with engine.begin() as connection:
        if shape in {"ready", "queues"}:
            await insert(connection, rows, queue=queue)
        elif shape == "ahead":
            await insert(connection, rows, due=_FUTURE)
        else:
            await insert(connection, rows, token="gen_random_uuid()", leased_at=_FRESH_LEASE)
        if shape in {"ahead", "leased"}:
            await insert(connection, READY_BEHIND)
        await insert(connection, expired, queue=queue, token=_OUR_TOKEN, leased_at=_EXPIRED_LEASE)
        await insert(connection, ours, queue=queue, token=_OUR_TOKEN, leased_at=_FRESH_LEASE)
    if statistics == "fresh":
        await execute(engine, "ANALYZE outbox")
    filled = Filled(statements, [f"q{n}" for n in range(QUEUES if many else 100)])
    await _read_leased(engine, filled, ours, expired)
    return filled


async def _read_leased(engine: AsyncEngine, filled: Filled, ours: int, expired: int) -> None:
    newest = "SELECT id, acquired_token FROM outbox ORDER BY id DESC LIMIT :n"
    async with engine.connect() as connection:
        answer: Sequence[Any] = (
            await connection.execute(text(newest), {"n": ours + expired})
        ).all()
    filled.ours = [(row_id, token) for row_id, token in answer[:ours]]
    filled.ours.reverse()
    filled.expired = [row_id for row_id, _ in answer[ours:]]
