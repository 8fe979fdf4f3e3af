"""A PostgreSQL server of our own, to be killed; and a PgBouncer before it.

Own port, own directory, unprivileged user. What is started here ends here.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest


def _binaries() -> Path | None:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    found = shutil.which("initdb")
    return places[0].parent if places else (Path(found).parent if found else None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_server_user(*command: str) -> list[str]:
    """The server refuses to run as root."""
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else [*command]


class Cluster:
    """One server in one directory."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._binaries = binaries
        self._number = 0

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _run(self, tool: str, *arguments: str) -> None:
        command = as_server_user(str(self._binaries / tool), *arguments)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
        )
        assert done.returncode == 0, f"{tool} {arguments}: {done.stdout.decode()[-1000:]}"

    def create(self) -> None:
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "postgres", "-N")

    def start(self) -> None:
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 "
            f"-c unix_socket_directories={self.folder} -c shared_buffers=64MB"
        )
        # the server inherits no pipe of ours, else reading pg_ctl's output would never end
        log = str(self.folder / "log")
        command = as_server_user(
            str(self._binaries / "pg_ctl"),
            "-D",
            str(self.folder / "data"),
            "-o",
            options,
            "-l",
            log,
            "-w",
            "-t",
            "60",
            "start",
        )
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=90, check=False
        )
        assert done.returncode == 0, Path(log).read_text()[-2000:]

    def crash(self) -> None:
        """At once, without a checkpoint: what a killed server leaves behind."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def kill_at_once(self) -> None:
        """The same without waiting: it is down before the caller goes on."""
        os.kill(self._pid(), signal.SIGQUIT)

    def _pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def wait_until_down(self) -> None:
        end = time.monotonic() + 20
        while (self.folder / "data" / "postmaster.pid").exists():
            assert time.monotonic() < end, "the server does not end"
            time.sleep(0.01)

    def restart_after_crash(self) -> None:
        self.crash()
        self.start()

    def database(self) -> str:
        """The URL of a new database."""
        self._number += 1
        name = f"crash_{self._number}"

        async def create() -> None:
            connection = await asyncpg.connect(self.dsn)
            await connection.execute(f"CREATE DATABASE {name}")
            await connection.close()

        asyncio.run(create())
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}/{name}"

    def log_text(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


@contextlib.contextmanager
def new_cluster() -> Iterator[Cluster]:
    """A running server, or a skip that says what is missing."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server binaries (initdb) on this machine")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("running as root without runuser: PostgreSQL cannot be started")
    # outside of pytest's own folders, which only their owner may enter
    folder = Path(tempfile.mkdtemp(prefix="outlast-cluster-"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    cluster = Cluster(folder, binaries)
    try:
        cluster.create()
        cluster.start()
        yield cluster
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            cluster.crash()
        shutil.rmtree(folder, ignore_errors=True)


def find_pgbouncer() -> str:
    """Its path; installed from Debian where that is possible, else a skip with the reason."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "--no-install-recommends", "pgbouncer"]
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run(command, capture_output=True, timeout=120, check=False)
        found = shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        pytest.skip("PgBouncer is not installed and cannot be")
    return found


@contextlib.contextmanager
def pgbouncer(cluster: Cluster, *, pool_size: int = 3) -> Iterator[int]:
    """Transaction pooling before the cluster; the port."""
    program, port = find_pgbouncer(), free_port()
    folder = cluster.folder / "pgbouncer"
    folder.mkdir()
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host=127.0.0.1 port={cluster.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\nauth_file = {folder / 'users'}\npool_mode = transaction\n"
        f"default_pool_size = {pool_size}\nmax_client_conn = 100\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    settings.write_text(settings.read_text().replace("* = ", "* = user=postgres "))
    (folder / "users").write_text('"postgres" ""\n')
    if os.geteuid() == 0:
        for path in (folder, settings, folder / "users"):
            shutil.chown(path, "postgres")
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            as_server_user(program, str(settings)), stdout=output, stderr=output
        )
    try:
        _wait_for(port, process, log)
        yield port
    finally:
        # runuser hands the signal on
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-1500:]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"PgBouncer does not listen: {log.read_text()[-1500:]}")
