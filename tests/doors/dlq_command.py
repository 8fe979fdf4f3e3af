"""The command line over a real database with dead letters that a test has planted."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import MetaData, insert, make_url, select, update

from outlast.cli import main
from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table


@dataclass
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def document(self):
        return json.loads(self.out)


class Command:
    """`run` in this process, `process` in one of its own; `plant` and `letters` for the rows."""

    def __init__(self, database, monkeypatch, capsys, *, beside=True):
        self.database, self._monkeypatch, self._capsys = database, monkeypatch, capsys
        metadata = MetaData(schema=database.schema)
        self.outbox, self.dlq = make_outbox_table(metadata), make_dlq_table(metadata)
        self.beside = make_operations_tables(metadata)
        if not beside:
            for table in self.beside:
                metadata.remove(table)
        self._do(lambda connection: connection.run_sync(metadata.create_all))
        prefix = f"{database.schema}." if database.schema else ""
        url = make_url(database.url).set(drivername=database.url.partition("+")[0])
        self.environment = {
            "OUTLAST_DSN": url.render_as_string(False),
            "OUTLAST_TABLE": f"{prefix}outbox",
            "OUTLAST_DLQ_TABLE": f"{prefix}outbox_dlq",
            "OUTLAST_ACTOR": "ann",
            "COLUMNS": "80",
        }
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)

    def run(self, *arguments):
        self._monkeypatch.setattr(sys, "argv", ["outlast", *map(str, arguments)])
        self._capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as left:
            status = left.code
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(status or 0, said.out, said.err)

    @contextmanager
    def process(self, *arguments, **options):
        """The real command, with pipes unless told otherwise."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command = [sys.executable, "-m", "outlast", *map(str, arguments)]
        environment = os.environ | self.environment
        with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    def plant(self, count=1, **values):
        row = {
            "original_id": 1,
            "queue": "orders",
            "payload": b'{"total": 1.10, "password": "hunter2"}',
            "headers": {"content-type": "application/json"},
            "deliveries_count": 3,
            "attempts_count": 3,
            "failure_reason": "retry_terminal",
            "failure_category": "EXTERNAL",
            "error_type": "KeyError",
            "error_message": "'isbn'",
            "subscriber": "handle",
            "fingerprint": "v1:1",
            "created_at": datetime.now(UTC),
        } | values

        async def work(connection):
            made = insert(self.dlq).returning(self.dlq.c.id)
            return sorted((await connection.execute(made, [row] * count)).scalars())

        return self._do(work)

    def change(self, letter_id, **values):
        statement = update(self.dlq).where(self.dlq.c.id == letter_id).values(values)
        self._do(lambda connection: connection.execute(statement))

    def rows(self, table):
        async def work(connection):
            found = await connection.execute(select(table).order_by(table.c[0]))
            return [dict(row._mapping) for row in found]

        return self._do(work)

    def states(self):
        return {row["id"]: row["state"] for row in self.rows(self.dlq)}

    def _do(self, work):
        async def body(engine):
            async with engine.begin() as connection:
                return await work(connection)

        return asyncio.run(self._over(body))

    async def _over(self, body):
        engine = self.database.engine()
        try:
            return await body(engine)
        finally:
            await engine.dispose()
