"""A producer process: transactions with messages and their witness rows, some of them undone.

Writes what it intends before each transaction, and how the
transaction ended after it. Seeded by its name.
"""

import asyncio
import logging
import random
from datetime import timedelta
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outlast.publish.run import OutboxWriter
from tests.crash.ledger import Ledger
from tests.crash.scene import QUEUE, Scene, body, checksum, outbox, witness

_logger = logging.getLogger("producer")

KINDS = ("ok", "once", "always", "reject")
WEIGHTS = (82, 10, 5, 3)
ENDINGS = ("commit", "rollback", "savepoint", "late")
ENDING_WEIGHTS = (80, 8, 6, 6)

PER_TRANSACTION = 10


class Producer:
    """Publishes a number of messages, and more that are rolled back."""

    def __init__(self, scene: Scene, role: dict[str, Any], database: AsyncEngine) -> None:
        self._scene = scene
        self._role = role
        self._database = database
        self._name: str = role["name"]
        self._random = random.Random(self._name)
        self._ledger: Ledger = scene.ledger()
        self._writer = OutboxWriter(outbox)
        self._number = 0

    async def run(self) -> None:
        left: int = self._role["messages"]
        while left > 0:
            left -= await self._transaction(min(PER_TRANSACTION, left))
            if pause := self._role.get("pause"):
                await asyncio.sleep(pause)
        self._ledger.write("produced", name=self._name)

    async def _transaction(self, count: int) -> int:
        """One transaction; how many messages it committed for certain."""
        ending = self._random.choices(ENDINGS, ENDING_WEIGHTS)[0]
        messages = [self._message() for _ in range(count)]
        undone = [self._message()] if ending == "savepoint" else []
        name = f"{self._name}/{self._number}"
        self._ledger.write(
            "intent",
            tx=name,
            messages=[m["message"] for m in messages],
            undone=[m["message"] for m in undone],
        )
        if self._role.get("mutant") == "publish_outside":
            async with self._database.begin() as other:
                await self._publish(other, self._message())
        try:
            async with self._database.connect() as connection:
                await self._fill(connection, messages, undone)
                if ending == "rollback":
                    await connection.rollback()
                    self._ledger.write("outcome", tx=name, how="rolled back")
                    return 0
                if ending == "late":
                    # while others commit and are claimed; one writer at a time on SQLite
                    longest = 1.0 if self._scene.is_postgres else 0.03
                    await asyncio.sleep(self._random.uniform(0.0, longest))
                await connection.commit()
        except (SQLAlchemyError, OSError) as error:
            self._ledger.write("outcome", tx=name, how="unknown", why=repr(error)[:300])
            _logger.warning("transaction %s: %r", name, error)
            await asyncio.sleep(0.3)
            return 0
        self._ledger.write("outcome", tx=name, how="committed", count=count)
        return count

    def _message(self) -> dict[str, Any]:
        self._number += 1
        name = f"{self._name}-{self._number}"
        kind = self._random.choices(KINDS, self._role.get("weights", WEIGHTS))[0]
        delay = self._random.uniform(0.05, 1.5) if self._random.random() < 0.15 else 0.0
        padding = "x" * self._random.choice([0, 0, 10, 200, 2000])
        more = {"s": seconds} if (seconds := self._role.get("handler_seconds")) else {}
        payload = body(name, kind, padding + "\u00e9\u0000", **more)
        return {
            "message": name,
            "kind": kind,
            "delay": delay,
            "checksum": checksum(payload),
            "payload": payload,
        }

    async def _fill(
        self,
        connection: AsyncConnection,
        messages: list[dict[str, Any]],
        undone: list[dict[str, Any]],
    ) -> None:
        await self._testify(connection, messages)
        soon = [m for m in messages if not m["delay"]]
        await self._writer.insert_batch(
            connection, queue=QUEUE, rows=[(m["payload"], None) for m in soon]
        )
        if undone:
            async with connection.begin_nested() as savepoint:
                await self._testify(connection, undone)
                for message in undone:
                    await self._publish(connection, message)
                await savepoint.rollback()
        for message in messages:
            if message["delay"]:
                await self._publish(connection, message)

    async def _testify(self, connection: AsyncConnection, messages: list[dict[str, Any]]) -> None:
        rows = [{k: v for k, v in m.items() if k != "payload"} for m in messages]
        await connection.execute(witness.insert(), rows)

    async def _publish(self, connection: AsyncConnection, message: dict[str, Any]) -> None:
        delay = message["delay"]
        await self._writer.insert(
            connection,
            queue=QUEUE,
            payload=message["payload"],
            headers={"of": self._name},
            activate_in=timedelta(seconds=delay) if delay else None,
        )


async def main(scene: Scene, role: dict[str, Any]) -> None:
    database = scene.engine(pool_size=2)
    await Producer(scene, role, database).run()
    await database.dispose()
