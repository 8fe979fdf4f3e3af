"""Posting single messages into a scene, with their witness, for tests that need exactly these."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from outlast.publish.run import OutboxWriter
from tests.crash.ledger import read
from tests.crash.processes import until
from tests.crash.scene import QUEUE, Scene, body, checksum, outbox, witness

_numbers = itertools.count(1)


async def post_in(
    connection: Any, kind: str = "ok", *, seconds: float | None = None, delay: float = 0.0
) -> str:
    """One message in the caller's transaction; its name."""
    name = f"single-{next(_numbers)}"
    payload = body(name, kind, **({} if seconds is None else {"s": seconds}))
    told = {"message": name, "kind": kind, "delay": delay, "checksum": checksum(payload)}
    await connection.execute(witness.insert(), told)
    await OutboxWriter(outbox).insert(
        connection,
        queue=QUEUE,
        payload=payload,
        headers=None,
        activate_in=timedelta(seconds=delay) if delay else None,
    )
    return name


def post(scene: Scene, *kinds: str, seconds: float | None = None) -> list[str]:
    """One committed message of each kind."""

    async def main() -> list[str]:
        engine = scene.engine()
        async with engine.begin() as connection:
            names = [await post_in(connection, kind, seconds=seconds) for kind in kinds]
        await engine.dispose()
        return names

    return asyncio.run(main())


def lines(scene: Scene, event: str, **facts: Any) -> list[dict[str, Any]]:
    """What the ledger holds of one kind."""
    if not scene.ledger_path.exists():
        return []
    wanted = facts | {"e": event}
    return [
        line for line in read(scene.ledger_path) if all(line.get(k) == v for k, v in wanted.items())
    ]


def until_written(
    scene: Scene, count: int, event: str, *, seconds: float = 20.0, **facts: Any
) -> list[dict[str, Any]]:
    """Wait until the ledger holds so many."""
    enough: Callable[[], bool] = lambda: len(lines(scene, event, **facts)) >= count  # noqa: E731
    until(enough, seconds, f"{count} lines {event!r} with {facts}")
    return lines(scene, event, **facts)


def rows_left(scene: Scene) -> list[dict[str, Any]]:
    """The outbox as it is."""

    async def main() -> list[dict[str, Any]]:
        engine = scene.engine()
        async with engine.connect() as connection:
            found = [dict(row) for row in (await connection.execute(outbox.select())).mappings()]
        await engine.dispose()
        return found

    return asyncio.run(main())
