"""The row of this worker. In: what it tells. Out: nothing, or how many old rows were forgotten.
Every instant is the database's.
"""

import json

from outlast.model.worker import FORGOTTEN_MAX, KEPT_DAYS, WorkerReport
from outlast.stores.sqlite.clock import plus
from outlast.stores.sqlite.connection import Hop

_KEPT_SECONDS = KEPT_DAYS * 86_400.0


class Workers:
    """The statements of one table of workers."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._write = (
            f"INSERT INTO {table} "  # noqa: S608 - a quoted name
            "(instance, version, started_at, seen_at, report) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (instance) DO UPDATE SET "
            "version = excluded.version, seen_at = excluded.seen_at, report = excluded.report"
        )
        self._forget = (
            f"DELETE FROM {table} WHERE instance IN "  # noqa: S608 - a quoted name
            f"(SELECT instance FROM {table} WHERE seen_at < ? LIMIT {FORGOTTEN_MAX})"
        )

    def write(self, hop: Hop, worker: WorkerReport) -> None:
        """It was seen now."""
        told = json.dumps(worker.told)
        with hop.writing():
            now, text = hop.now()
            started = plus(now, -worker.running_seconds)
            hop.execute(self._write, (worker.instance, worker.version, started, text, told))

    def forget(self, hop: Hop) -> int:
        """Some of those that were seen too long ago."""
        with hop.writing():
            now, _ = hop.now()
            return hop.execute(self._forget, (plus(now, -_KEPT_SECONDS),)).rowcount
