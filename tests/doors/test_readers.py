"""Whoever may only look: reads everything by command line and REST, changes nothing, is told so."""

import asyncio
import os
import shutil
import tempfile
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import insert, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.api import make_app
from tests.doors.dlq_command import Command
from tests.doors.rest import problem, run_api

READING = [
    ["dlq", "list"],
    ["dlq", "list", "error:isbn"],
    ["dlq", "inspect", "1"],
    ["dlq", "inspect", "2"],
    ["dlq", "inspect", "--all"],
    ["dlq", "groups"],
    ["dlq", "stats"],
    ["dlq", "history", "1"],
    ["dlq", "export"],
    ["outbox", "list"],
    ["outbox", "inspect", "1"],
    ["workers", "list"],
    ["subscriptions", "list"],
    ["db", "check"],
]
WRITING = [
    ["dlq", "replay", "1"],
    ["dlq", "replay-all", "--all", "-y"],
    ["dlq", "purge", "1", "-y"],
    ["dlq", "purge", "--all", "-y", "--hard"],
    ["dlq", "restore", "1"],
    ["dlq", "mark", "1", "--review"],
    ["dlq", "edit", "1", "--header", "a=b"],
    ["dlq", "inspect", "1", "--reveal"],
    ["outbox", "cancel", "1"],
    ["outbox", "run-now", "1"],
]

ROUTES = (
    *("/api/dlq", "/api/dlq?q=error:isbn", "/api/dlq/{letter}", "/api/dlq/id/{letter}"),
    *("/api/dlq/id/{lost}/inspect", "/api/dlq/inspect", "/api/dlq/groups", "/api/dlq/stats"),
    *("/api/dlq/id/{letter}/history", "/api/dlq/export?as=jsonl", "/api/outbox"),
    *("/api/outbox/{row}", "/api/subscriptions", "/api/workers", "/dlt-messages", "/metrics"),
    *("/dlt-messages/{letter}", "/health", "/health/ready"),
)
ORDERS = (
    ("POST", "/api/dlq/{letter}/replay", None),
    ("POST", "/api/dlq/replay", {"ids": [1]}),
    ("POST", "/api/dlq/replay-all", {"all": True}),
    ("DELETE", "/api/dlq?all=true", None),
    ("POST", "/api/dlq/id/{letter}/purge", {}),
    ("POST", "/api/dlq/restore", {"ids": [1]}),
    ("POST", "/api/dlq/mark", {"ids": [1], "review": True}),
    ("POST", "/api/dlq/id/{letter}/edit", {"set_headers": {"a": "b"}}),
    ("POST", "/api/dlq/id/{letter}/inspect", {"reveal": True}),
    ("POST", "/api/outbox/cancel", {"ids": [1]}),
    ("POST", "/api/outbox/id/{row}/run-now", None),
    ("POST", "/replay", {"messageId": "m-1"}),
)


@asynccontextmanager
async def a_reader(world):
    """An engine of a role that may SELECT, and nothing else."""
    role, schema = f"r_{uuid4().hex[:12]}", world.database.schema
    async with world.engine.begin() as connection:
        await connection.execute(text(f"create role {role} login"))
        await connection.execute(text(f"grant usage on schema {schema} to {role}"))
        await connection.execute(text(f"grant select on all tables in schema {schema} to {role}"))
    url = make_url(world.database.url).set(username=role)
    engine = create_async_engine(url, connect_args=world.database.connect_args)
    try:
        yield engine
    finally:
        await engine.dispose()
        async with world.engine.begin() as connection:
            await connection.execute(text(f"drop owned by {role}"))
            await connection.execute(text(f"drop role {role}"))


async def everything(world):
    """What is in every table, as the server itself prints it."""
    async with world.engine.connect() as connection:
        found = {}
        for name, table in world.tables.items():
            rows = await connection.execute(text(f"select t::text from {table.name} t"))
            found[name] = sorted(rows.scalars())
    return found


def test_over_http_a_reader_reads_and_is_refused_in_sentences(postgres):
    """A role with SELECT alone: every GET answers; what writes is 403 by scope, 501 by right."""

    async def body(api, _):
        world = api.world
        letter = await world.plant(message_id="m-1", error_message="isbn")
        lost = await world.plant(state="replaying", replayed_as=987_654)
        row = await world.add("orders")
        before = await everything(world)
        named = {"letter": letter, "lost": lost, "row": row}
        async with a_reader(world) as engine:
            app = make_app(world.make_desk(engine), api.book, options=api.options)
            async with api.client(app, api.made["inspect"].secret) as caller:
                for route in ROUTES:
                    answer = await caller.get(route.format(**named))
                    assert answer.status_code == 200, (route, answer.text)
                for method, route, asked in ORDERS:
                    answer = await caller.request(method, route.format(**named), json=asked)
                    assert problem(answer, 403)["error"], route
            async with api.client(app, api.made["all"].secret) as caller:
                for method, route, asked in ORDERS:
                    answer = await caller.request(method, route.format(**named), json=asked)
                    said = problem(answer, 501)
                    assert "permission denied" in said["error"], (route, said)
                    assert "--dsn" in said["remedy"], route
        assert await everything(world) == before

    run_api(postgres, body)


@pytest.fixture
def folder():
    """A folder that anybody can look into."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


@contextmanager
def as_nobody():
    """Rights count for root only when it is not root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


class ReadOnly:
    """A file that is locked away from its readers, and what is in its folder."""

    def __init__(self, path, folder_mode):
        self.path, self._folder_mode = path, folder_mode

    def contents(self):
        return {each.name: each.read_bytes() for each in sorted(self.path.parent.iterdir())}

    @contextmanager
    def locked_away(self):
        self.path.chmod(0o444)
        self.path.parent.chmod(self._folder_mode)
        try:
            with as_nobody():
                yield
        finally:
            self.path.parent.chmod(0o755)
            self.path.chmod(0o644)


@pytest.fixture(params=["wal", "delete"])
def planted(request, folder, monkeypatch, capsys):
    """Letters in a file, with or without a write-ahead log; nobody has it open."""
    from tests.conftest import Database

    path = folder / "shop %23?.db" if request.param == "wal" else folder / "shop.db"
    quoted = str(path).replace("%", "%25").replace("?", "%3f")
    database = Database(f"sqlite+aiosqlite:///{quoted}")
    command = Command(database, monkeypatch, capsys)
    (first,) = command.plant()
    (lost,) = command.plant(state="replaying", replayed_as=987_654)
    assert (first, lost) == (1, 2)

    async def row(engine):
        async with engine.connect() as connection:
            mode = await connection.exec_driver_sql(f"pragma journal_mode={request.param}")
            assert mode.scalar_one() == request.param
            values = {"queue": "orders", "payload": b"{}", "headers": {}}
            await connection.execute(insert(command.outbox).values(values))
            await connection.commit()

    database.run(row)
    for verb in (READING[0], WRITING[0]):
        # whoever is nobody may not read our modules either: they are loaded before
        command.run(*verb, "--dsn", folder / "nowhere.db")
    command.run(*READING[8])
    assert [each.name for each in folder.iterdir()] == [path.name]
    command.path = path
    return command


@pytest.mark.parametrize("folder_mode", [0o555, 0o777], ids=["folder-555", "folder-777"])
def test_a_file_that_may_only_be_read_is_read(planted, folder_mode):
    """Mode 0444, with and without a write-ahead log: every look works and nothing is left there."""
    file = ReadOnly(planted.path, folder_mode)
    before = file.contents()
    with file.locked_away():
        for verb in READING:
            done = planted.run(*verb, "--dsn", planted.path)
            assert done.status == 0, (verb, done.err)
        for verb in WRITING:
            done = planted.run(*verb, "--dsn", planted.path)
            assert done.status in {1, 2}, (verb, done.out)
            assert "readonly" in done.err, (verb, done.err)
            assert "unexpected" not in done.err
    assert file.contents() == before


def test_a_reader_sees_what_stands_in_the_log_of_somebody_at_work(folder, monkeypatch, capsys):
    """A file that its owner has open, in a folder that is not the reader's: the newest rows too."""
    from tests.conftest import Database

    path = folder / "shop.db"
    database = Database(f"sqlite+aiosqlite:///{path}")
    command = Command(database, monkeypatch, capsys)
    command.run("dlq", "export")

    async def body(engine):
        async with engine.connect() as owner:
            await owner.exec_driver_sql("pragma journal_mode=wal")
            await owner.exec_driver_sql("create table other (id integer)")
            await owner.commit()
            await asyncio.to_thread(command.plant, 3)
            assert Path(f"{path}-wal").stat().st_size > 0
            file = ReadOnly(path, 0o555)
            with file.locked_away():
                return await asyncio.to_thread(command.run, "dlq", "list", "--json")

    done = database.run(body)
    assert done.status == 0, done.err
    assert done.document["total"] == 3


def test_a_file_that_cannot_be_opened_leaves_nothing_running(folder, monkeypatch, capsys):
    """The driver's thread ends before its loop does: else it would say so with a traceback."""
    from aiosqlite.core import Connection

    from tests.conftest import Database

    path = folder / "shop.db"
    command = Command(Database(f"sqlite+aiosqlite:///{path}"), monkeypatch, capsys)
    command.run("dlq", "list")
    before, lost, stop = set(threading.enumerate()), [], Connection.stop

    def slowly(self):
        self._tx.put_nowait((None, lambda: threading.Event().wait(0.2)))
        return stop(self)

    monkeypatch.setattr(Connection, "stop", slowly)
    monkeypatch.setattr(threading, "excepthook", lost.append)
    path.chmod(0)
    with as_nobody():
        done = command.run("dlq", "list")
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert (done.status, done.out) == (2, "")
    assert "unable to open database file" in done.err
    assert lost == []
