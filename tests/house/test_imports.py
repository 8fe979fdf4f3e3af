"""Who may import whom: the contracts hold, and each of them refuses what it is there for."""

import json
import shutil
import subprocess
import sys

import pytest

from tools.import_contracts import lint

from .package import PACKAGE, ROOT, imported, modules, name_of, parsed


def test_the_contracts_hold():
    result = lint()
    assert result.returncode == 0, result.stdout + result.stderr


PLANTS = [
    # (module, planted line, the contract that must break, the edge it must name)
    ("model/errors.py", "import outlast.policy.retry", "Floors", "outlast.policy.retry"),
    ("model/errors.py", "import pydantic", "Values", "pydantic"),
    ("policy/jitter.py", "from outlast.ports import store", "Floors", "outlast.ports.store"),
    ("ports/store.py", "import sqlalchemy", "Values", "sqlalchemy"),
    ("tables/outbox.py", "import outlast.stores.memory", "Floors", "outlast.stores.memory"),
    ("stores/memory/store.py", "import outlast.engine.options", "Floors", "outlast.engine.options"),
    ("stores/memory/store.py", "import faststream", "Stores", "faststream"),
    ("engine/options.py", "import outlast.stores.memory", "The engine", "outlast.stores.memory"),
    ("engine/options.py", "import sqlalchemy", "The engine", "sqlalchemy"),
    ("engine/options.py", "import faststream", "The engine", "faststream"),
    ("engine/options.py", "from outlast.publish import plan", "Floors", "outlast.publish.plan"),
    ("publish/plan.py", "import outlast.stores.memory", "The front", "outlast.stores.memory"),
    ("publish/plan.py", "import outlast.engine.options", "Floors", "outlast.engine.options"),
    ("observe/logs.py", "import outlast.engine.options", "Floors", "outlast.engine.options"),
    ("observe/logs.py", "import outlast.tables", "Observers", "outlast.tables"),
    ("faststream/config.py", "import outlast.testing", "Floors", "outlast.testing"),
    ("testing.py", "import outlast.cli", "Floors", "outlast.cli"),
    (
        "engine/options.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import outlast.publish.plan",
        "Floors",
        "outlast.publish.plan",
    ),
]


def copy_of_the_package(target):
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, target / "src" / "outlast", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", target)


def broken(output):
    lines = output.splitlines()
    return [line for line in lines if line.endswith(" BROKEN")]


@pytest.mark.parametrize(
    ("module", "line", "contract", "edge"), PLANTS, ids=lambda value: value.split("\n")[-1].strip()
)
def test_a_planted_import_is_refused(tmp_path, module, line, contract, edge):
    copy_of_the_package(tmp_path)
    path = tmp_path / "src" / "outlast" / module
    path.write_text(path.read_text("utf-8") + f"\n{line}\n", "utf-8")
    result = lint(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(broke.startswith(contract) for broke in broken(result.stdout)), result.stdout
    importer = "outlast." + module.removesuffix(".py").replace("/", ".")
    assert f"{importer} -> {edge} " in result.stdout


def test_a_room_without_a_floor_is_refused(tmp_path):
    copy_of_the_package(tmp_path)
    (tmp_path / "src" / "outlast" / "attic.py").write_text('"""A room nobody planned."""\n')
    result = lint(tmp_path)
    assert result.returncode == 1
    assert "attic" in result.stdout


def test_private_framework_names_are_imported_in_one_place():
    inside = {
        name_of(path)
        for path in modules()
        if any(name.startswith("faststream._internal") for name in imported(parsed(path)))
    }
    assert inside <= {"src/outlast/faststream/upstream.py"}


@pytest.mark.parametrize("room", ["model", "policy", "ports"])
def test_the_ground_floors_need_the_standard_library_only(room):
    for path in sorted((PACKAGE / room).rglob("*.py")):
        foreign = {
            name
            for name in imported(parsed(path))
            if name.split(".")[0] not in {*sys.stdlib_module_names, "outlast"}
        }
        assert not foreign, f"{name_of(path)} imports {foreign}"


def test_rooms_do_not_ask_the_lazy_root_for_names():
    """The root resolves every door: a room that imports from it imports the whole house."""
    for path in modules():
        room = path.relative_to(PACKAGE).parts[0]
        if room in {"cli", "demo", "__main__.py"}:
            continue
        assert "outlast" not in imported(parsed(path)), name_of(path)


HEAVY = [
    *("asyncpg", "aiosqlite", "sqlite3", "psycopg", "sqlalchemy", "alembic"),
    *("faststream", "fast_depends", "pydantic", "fastapi", "starlette"),
    *("typer", "click", "rich", "prometheus_client", "opentelemetry"),
]


def loaded_by(code):
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "code",
    [
        "import outlast",
        "import outlast; dir(outlast)",
        "import outlast.model.events, outlast.policy.retry",
        "import outlast.engine.engine",
        "from outlast import ExponentialRetry, NoRetry, LeaseLimitExceeded, MetricsRecorder",
        "import outlast.metrics.prometheus, outlast.metrics.opentelemetry",
    ],
)
def test_importing_loads_no_driver_and_no_framework(code):
    assert not loaded_by(code).intersection(HEAVY)


def test_the_measure_above_can_see():
    assert {"sqlalchemy", "faststream"} <= loaded_by("import sqlalchemy, faststream")
