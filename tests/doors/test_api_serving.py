"""The API as a process: where it listens, how it ends, what it refuses to be."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import httpx
import pytest
from sqlalchemy import select

from outlast.api import make_app
from outlast.api.options import is_loopback
from outlast.api.serving import check_address, serve, under_prefix
from outlast.ops import BadRequest
from outlast.ops.tokens import TokenBook, new_token
from tests.contract.desks import run_desk
from tests.doors.rest import Api, done, problem, run_api

PATIENCE = 30
TOKEN = new_token("runbook", ["inspect", "replay"])
BOOK = TokenBook.parse(TOKEN.line)


class Served:
    """`outlast serve` as a process; `port` is where it listens."""

    def __init__(self, database, *options, tokens=TOKEN.line):
        path = database.url.partition(":///")[2]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")
        }
        environment |= {"OUTLAST_TOKENS": tokens, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "outlast", "serve", "--dsn", path, "--port", "0", *options],
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines = []
        self._watchdog = threading.Timer(PATIENCE, self.process.kill)
        self._watchdog.start()
        self.port = self._port()

    def _port(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"listening on http://\S+:(\d+)", line)
            if found:
                return int(found[1])
        self._watchdog.cancel()
        raise AssertionError("".join(self.lines))

    def end(self, how):
        self.process.send_signal(how)
        _, rest = self.process.communicate(timeout=PATIENCE)
        self.lines.append(rest)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._watchdog.cancel()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def planted(sqlite):
    """A database with one letter whose replay nobody ended."""

    async def body(world):
        await world.plant(queue="orders")
        await world.plant(state="replaying", replayed_as=99, replay_count=1)

    run_desk(sqlite, body)
    return sqlite


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_asked_to_stop(planted, how):
    with Served(planted, "--prefix", "/outlast") as served:
        address = f"http://127.0.0.1:{served.port}/outlast"
        alive = httpx.get(f"{address}/health/live")
        assert alive.status_code == 200
        assert "server" not in alive.headers
        assert httpx.get(f"{address}/api/dlq?q=error:hunter2").status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN.secret}"}
        answer = httpx.post(f"{address}/api/dlq/1/replay", headers=headers)
        assert answer.json()["replayed"] is True
        assert served.end(how) == 0
    told = "".join(served.lines)
    assert "POST /outlast/api/dlq/1/replay 200" in told
    assert "runbook" in told
    assert "Traceback" not in told
    assert "hunter2" not in told
    assert TOKEN.secret not in told


def test_beside_its_prefix_is_nothing(sqlite):
    """Every path outside is a problem document, for everybody; nothing redirects."""

    async def body(api, caller):
        app = under_prefix(api.app, "/outlast/")
        async with api.client(app, token=api.made["all"].secret) as one:
            for path in ("/", "/api/dlq", "/outlas", "/outlastx/api/dlq", "/%1b%5b2J", "/outlas/t"):
                told = problem(await one.get(path), 404)
                assert "/outlast" in told["remedy"]
                assert "\x1b" not in told["error"]
            for path in ("/outlast", "/outlast/", "/outlast/outlast/api/dlq"):
                problem(await one.get(path), 404)
            problem(await one.request("PUT", "/outlast/api/dlq"), 405)
            assert done(await one.get("/outlast/api/dlq"))["total"] == 0
            described = done(await one.get("/outlast/openapi.json"))
            assert described["servers"] == [{"url": "/outlast"}]
        async with api.client(app) as nobody:
            problem(await nobody.get("/outlast/api/dlq"), 401)
            problem(await nobody.get("/elsewhere"), 404)

    run_api(sqlite, body)


def test_it_ends_what_nobody_ended(planted):
    """The desk's upkeep runs beside it."""

    async def body(world):
        book, options = BOOK, Api(world).options
        serving = asyncio.create_task(serve(world.desk, book, port=0, options=options))
        async with asyncio.timeout(PATIENCE):
            while True:
                async with world.engine.connect() as connection:
                    states = await connection.execute(select(world.dlq.c.state))
                    if "replaying" not in set(states.scalars()):
                        break
                await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0

    async def main(engine):
        from outlast.tables import make_dlq_table, make_operations_tables, make_outbox_table
        from tests.contract.desks import DeskWorld, MetaData

        metadata = MetaData()
        tables = {"outbox": make_outbox_table(metadata), "dlq": make_dlq_table(metadata)}
        tables |= make_operations_tables(metadata)._asdict()
        await body(DeskWorld(engine, None, tables, "sqlite", planted))

    planted.run(main)


def test_a_database_that_is_away_at_the_start_is_no_obstacle(postgres):
    """`live` answers, `ready` says so; the process stays."""

    async def body(world):
        from sqlalchemy.ext.asyncio import create_async_engine

        away = create_async_engine("postgresql+asyncpg://u@127.0.0.1:1/nowhere")
        api = Api(world)
        listening = asyncio.Event()
        port = _free_port()
        serving = asyncio.create_task(
            serve(world.make_desk(away), api.book, port=port, options=api.options)
        )
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as caller:
            while not listening.is_set():
                try:
                    assert (await caller.get("/health/live")).status_code == 200
                    listening.set()
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)
            answer = await caller.get("/health/ready")
            assert (answer.status_code, answer.json()) == (503, {"status": "unavailable"})
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0

    run_desk(postgres, body)


def test_a_database_that_comes_back_is_used_again(postgres):
    """Away: 503 with the time to ask again; back: 200, without a new start."""

    async def body(api, _):
        from sqlalchemy.ext.asyncio import create_async_engine

        port = _free_port()
        url = api.world.engine.url.set(host="127.0.0.1", port=port)
        engine = create_async_engine(url, connect_args=postgres.connect_args)
        app = make_app(api.world.make_desk(engine), api.book, options=api.options)
        await api.world.plant()
        there = api.world.engine.url
        try:
            async with api.client(app, token=api.made["all"].secret) as caller:
                for _ in range(2):
                    for path in ("/health/ready", "/api/dlq", "/health"):
                        away = await caller.get(path)
                        assert (away.status_code, away.headers["retry-after"]) == (503, "5"), path
                    async with _relay(port, there.host, there.port or 5432):
                        assert done(await caller.get("/health/ready")) == {"status": "ok"}
                        assert done(await caller.get("/api/dlq"))["total"] == 1
        finally:
            await engine.dispose()

    run_api(postgres, body)


@contextlib.asynccontextmanager
async def _relay(port, host, to_port):
    """A way to the database; at the end every connection breaks."""
    open_, tasks = [], []

    async def copy(reader, writer):
        with contextlib.suppress(OSError):
            while part := await reader.read(65_536):
                writer.write(part)
                await writer.drain()
        writer.close()

    async def connected(reader, writer):
        there, back = await asyncio.open_connection(host, to_port)
        open_.extend((writer, back))
        tasks.extend(asyncio.create_task(copy(*ends)) for ends in ((reader, back), (there, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        for writer in open_:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


def _free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.mark.parametrize(
    ("options", "tokens", "said"),
    [
        (["--host", "0.0.0.0"], "", "there are no tokens"),
        (["--host", "0.0.0.0", "--no-auth"], TOKEN.line, "--no-auth is for loopback only"),
        (["--host", "no.such.host.invalid"], TOKEN.line, "cannot listen"),
        (["--port", "70000"], TOKEN.line, "70000"),
        (["--prefix", "outlast"], TOKEN.line, "prefix"),
        ([], "rubbish", "token line 1"),
    ],
    ids=["open", "open for all", "no address", "no port", "no prefix", "no token line"],
)
def test_what_it_refuses_to_be(planted, options, tokens, said):
    """F-K02: exit 2, one sentence and the next step, no traceback."""
    with pytest.raises(AssertionError, match=re.escape(said)) as refused:
        with Served(planted, *options, tokens=tokens):
            pass
    assert "Traceback" not in str(refused.value)


def test_a_refusal_is_a_usage_error(planted):
    path = planted.url.partition(":///")[2]
    arguments = ["serve", "--dsn", path, "--host", "0.0.0.0"]
    ended = subprocess.run(
        [sys.executable, "-m", "outlast", *arguments],
        env={k: v for k, v in os.environ.items() if not k.startswith("OUTLAST_")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 2
    assert "outlast tokens new" in ended.stderr


def test_a_port_that_is_taken_is_refused(planted):
    import socket

    async def body(world):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            with pytest.raises(BadRequest, match="cannot listen"):
                await serve(world.desk, BOOK, port=taken.getsockname()[1])

    async def main(engine):
        class World:
            pass

        from outlast.ops import Desk

        world = World()
        world.desk = Desk(engine)
        await body(world)

    planted.run(main)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.nip.io", False),
        ("", False),
    ],
)
def test_what_is_loopback(host, loopback):
    assert is_loopback(host) is loopback
    if loopback:
        check_address(host, 8787, TokenBook(), no_auth=True)
    else:
        with pytest.raises(BadRequest):
            check_address(host, 8787, TokenBook(), no_auth=True)
        with pytest.raises(BadRequest):
            check_address(host, 8787, TokenBook(), no_auth=False)
        check_address(host, 8787, BOOK, no_auth=False)


@pytest.mark.parametrize("prefix", ["outlast", "/\x1b", "/ä"])
def test_a_prefix_that_is_none(prefix):
    with pytest.raises(BadRequest):
        under_prefix(None, prefix)
