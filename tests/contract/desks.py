"""A desk over a real database, with the tables of a full installation and a store to work them."""

from sqlalchemy import MetaData, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.ops import SCOPES, Actor, Desk, DeskOptions
from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table
from tests.contract.worlds import SqlWorld

ANN = Actor("ann", SCOPES)


class DeskWorld(SqlWorld):
    """`desk` for the verbs, `letter` to plant one, `one` and `told` to see what is there."""

    def __init__(self, engine, store, tables, kind, database, **options):
        super().__init__(engine, store, tables["outbox"], tables["dlq"], kind)
        self.tables, self.database = tables, database
        self.desk = self.make_desk(**options)

    def make_desk(self, engine=None, **options):
        return Desk(engine or self.engine, self.outbox, self.dlq, options=DeskOptions(**options))

    async def plant(self, **values):
        row = {
            "original_id": 1,
            "queue": "q",
            "payload": b'{"n": 1}',
            "headers": {"content-type": "application/json", "correlation_id": "c"},
            "deliveries_count": 1,
            "failure_reason": "retry_terminal",
            "failure_category": "EXTERNAL",
            "created_at": await self.now(),
        } | values
        async with self.engine.begin() as connection:
            made = insert(self.dlq).values(row).returning(self.dlq.c.id)
            return (await connection.execute(made)).scalar_one()

    async def plant_many(self, count, **values):
        row = {
            "original_id": 1,
            "queue": "q",
            "payload": b"{}",
            "deliveries_count": 1,
            "failure_reason": "retry_terminal",
            "created_at": await self.now(),
        } | values
        async with self.engine.begin() as connection:
            await connection.execute(insert(self.dlq), [row] * count)

    async def now(self):
        from outlast.tables.instant import clock

        async with self.engine.connect() as connection:
            return (await connection.execute(select(clock()))).scalar_one()

    async def one(self, letter_id):
        return next((x for x in await self.letters() if x["id"] == letter_id), None)

    async def change(self, letter_id, **values):
        async with self.engine.begin() as connection:
            await connection.execute(
                update(self.dlq).where(self.dlq.c.id == letter_id).values(values)
            )

    async def told(self, letter_id=None):
        history = self.tables["history"]
        async with self.engine.connect() as connection:
            rows = (await connection.execute(select(history).order_by(history.c.id))).all()
        return [x for x in rows if letter_id is None or x.dlq_id == letter_id]


def run_desk(database, body, *, beside=True, **options):
    """Make the tables, open the store, run the body, close everything."""

    async def main(engine: AsyncEngine) -> None:
        metadata = MetaData()
        tables = {"outbox": make_outbox_table(metadata), "dlq": make_dlq_table(metadata)}
        if beside:
            tables |= make_operations_tables(metadata)._asdict()
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        if database.is_postgres:
            from outlast.stores.postgres.store import PostgresStore

            store = PostgresStore(engine, tables["outbox"], tables["dlq"])
        else:
            from outlast.stores.sqlite.store import SqliteStore

            store = SqliteStore(engine, tables["outbox"], tables["dlq"])
        await store.open(lambda _queue: None)
        kind = "postgres" if database.is_postgres else "sqlite"
        try:
            await body(DeskWorld(engine, store, tables, kind, database, **options))
        finally:
            await store.close()

    database.run(main)
