"""The row of this worker, on the letters line. In: what it tells. Out: nothing, or how many old
rows were forgotten. Every instant is the database's.
"""

import json

from outlast.model.worker import FORGOTTEN_MAX, KEPT_DAYS, WorkerReport
from outlast.stores.postgres.wire import Wire


class WorkerStatements:
    """The statements of one table of workers."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.write = (
            f"insert into {table} "  # noqa: S608 - a quoted name
            "(instance, version, started_at, seen_at, report) "
            # as text: the application may have given JSON a codec of its own
            "values ($1, $2, now() - make_interval(secs => $3::float8), now(), $4::text::jsonb) "
            "on conflict (instance) do update set version = excluded.version, "
            "seen_at = excluded.seen_at, report = excluded.report"
        )
        self.forget = (
            f"delete from {table} where instance = any(array("  # noqa: S608
            f"select w.instance from {table} w "
            f"where w.seen_at < now() - interval '{KEPT_DAYS} days' "
            f"limit {FORGOTTEN_MAX} for update skip locked)) returning 1"
        )


async def write(wire: Wire, sql: WorkerStatements, worker: WorkerReport, timeout: float) -> None:
    """It was seen now."""
    told = json.dumps(worker.told)
    arguments = (worker.instance, worker.version, worker.running_seconds, told)
    await wire.fetch(sql.write, arguments, timeout)


async def forget(wire: Wire, sql: WorkerStatements, timeout: float) -> int:
    """Some of those that were seen too long ago."""
    return len(await wire.fetch(sql.forget, (), timeout))
