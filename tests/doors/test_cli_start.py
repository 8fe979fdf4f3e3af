"""What a verb loads: the desk and the driver of its database, and nothing of the application."""

import os
import subprocess
import sys

import pytest

from tests.doors.dlq_command import Command

# the frameworks, the other doors, the engine, what measures it, what migrates it
FOREIGN = {
    *("faststream", "fast_depends", "fastapi", "starlette", "uvicorn", "httpx"),
    *("alembic", "prometheus_client", "opentelemetry", "psycopg"),
}
ROOMS = {f"outlast.{room}" for room in ("faststream", "api", "demo", "engine", "publish")}

LOADED = """
import atexit, sys
def tell():
    sys.stderr.write("MODULES:" + " ".join(sorted(sys.modules)))
atexit.register(tell)
from outlast.cli import main
main()
"""


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    return Command(database, monkeypatch, capsys)


@pytest.mark.parametrize(
    "verb",
    [["dlq", "list"], ["dlq", "stats"], ["db", "check"], ["db", "print"], ["workers", "list"]],
    ids=" ".join,
)
def test_looking_loads_no_framework_and_no_application(anywhere, tmp_path, verb):
    """`dlq list` starts fast, because it imports neither FastStream nor the application."""
    (tmp_path / "shop_handlers.py").write_text("raise SystemExit('the application was loaded')\n")
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *verb],
        env=os.environ
        | anywhere.environment
        | {"OUTLAST_APP": "shop_handlers:app", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.rpartition("MODULES:")[2].split())
    assert "shop_handlers" not in loaded
    assert not FOREIGN & loaded
    assert not ROOMS & loaded
    other = "aiosqlite" if anywhere.database.is_postgres else "asyncpg"
    assert other not in loaded
    # the measure can see
    assert {"outlast.ops", "sqlalchemy"} <= loaded
