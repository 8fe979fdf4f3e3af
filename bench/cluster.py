"""A private PostgreSQL with its default settings, for the time of one run."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

USER = "postgres"


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_release, reverse=True)
    if found:
        return found[0].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise SystemExit("bench: no PostgreSQL server here: initdb is not installed")
    return Path(on_path).resolve().parent


def _release(path: Path) -> float:
    try:
        return float(path.parent.parent.name)
    except ValueError:
        return 0.0


def _as_user(*command: str | Path) -> list[str]:
    words = [str(word) for word in command]
    # the server refuses to run as root
    return ["runuser", "-u", USER, "--", *words] if os.geteuid() == 0 else words


@contextlib.contextmanager
def private_cluster() -> Iterator[str]:
    """Gives the DSN of an empty database; the server is gone afterwards."""
    binaries = _binaries()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="outlast-bench-"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER)
    data, log = folder / "data", folder / "log"
    control = binaries / "pg_ctl"
    try:
        subprocess.run(
            _as_user(binaries / "initdb", "-D", data, "-A", "trust", "-U", USER, "-E", "UTF8"),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        subprocess.run(
            _as_user(control, "-D", data, "-o", options, "-l", log, "-w", "start"),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run(
            _as_user(control, "-D", data, "-m", "fast", "-w", "stop"),
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        shutil.rmtree(folder, ignore_errors=True)
