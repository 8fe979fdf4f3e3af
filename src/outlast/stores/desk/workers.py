"""The workers that were seen, as they reported themselves.

In: a connection. Out: values; None where there is no worker table. A report that cannot be read
counts as a worker that serves nothing.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.model.replay import WorkerSeen
from outlast.stores.desk.shape import DeskTables
from outlast.tables.instant import clock

WORKERS_MAX = 1000

_NOW = "outlast_now"


async def workers_seen(
    connection: AsyncConnection, tables: DeskTables
) -> tuple[WorkerSeen, ...] | None:
    """The workers seen last, newest first."""
    table = tables.worker
    if table is None:
        return None
    statement = select(table, clock().label(_NOW)).order_by(table.c.seen_at.desc())
    rows = await connection.execute(statement.limit(WORKERS_MAX))
    return tuple(
        WorkerSeen(
            row.instance,
            row.version,
            _queues(row.report),
            row.started_at,
            row.seen_at,
            _has_stopped(row.report),
            max(timedelta(0), getattr(row, _NOW) - row.seen_at),
            row.report if isinstance(row.report, Mapping) else {},
        )
        for row in rows
    )


async def longest_lease(connection: AsyncConnection, tables: DeskTables) -> float | None:
    """The longest lease any worker reports, in seconds; None: not recorded."""
    table = tables.worker
    if table is None:
        return None
    statement = select(table.c.report).order_by(table.c.seen_at.desc()).limit(WORKERS_MAX)
    reports = (await connection.execute(statement)).scalars()
    leases = [lease for report in reports if (lease := _lease(report)) is not None]
    return max(leases, default=None)


def _queues(report: Any) -> frozenset[str]:
    queues = report.get("queues") if isinstance(report, Mapping) else None
    if not isinstance(queues, list | dict):
        return frozenset()
    return frozenset(queue for queue in queues if isinstance(queue, str))


def _has_stopped(report: Any) -> bool:
    return isinstance(report, Mapping) and report.get("stopped") is True


def _lease(report: Any) -> float | None:
    lease = report.get("lease") if isinstance(report, Mapping) else None
    if isinstance(lease, bool) or not isinstance(lease, int | float):
        return None
    return float(lease) if 0 < lease < float("inf") else None
