"""The command `outlast`: what it says, what it loads, and how it fails."""

import json
import platform
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from outlast.cli import main
from outlast.model.errors import SchemaError


def outlast(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "outlast", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_version_tells_what_a_bug_report_needs():
    done = outlast("version")
    assert done.returncode == 0, done.stderr
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert told["outlast"] == version("outlast")
    assert told["python"].startswith(platform.python_version())
    assert told["sqlite"] == sqlite3.sqlite_version
    for name in ("faststream", "sqlalchemy", "aiosqlite"):
        assert told[name] == version(name)


def test_an_optional_package_that_is_absent_is_said_to_be(monkeypatch):
    from outlast.cli import versions

    monkeypatch.setattr(versions, "_OPTIONAL", ("no-such-package",))
    assert list(versions.version_lines())[-1].endswith("not installed")


@pytest.mark.parametrize("option", ["version", "--version"])
def test_the_verb_and_the_option_say_the_same(option):
    assert outlast(option).stdout == outlast("version").stdout


def test_the_installed_command_is_the_module():
    command = Path(sys.executable).parent / "outlast"
    if not command.exists():
        pytest.skip("the package is not installed with its command")
    done = subprocess.run([command, "version"], capture_output=True, text=True, check=True)
    assert done.stdout == outlast("version").stdout


def test_help_names_the_verbs():
    done = outlast("--help")
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in ("demo", "version"))


def loaded_by(*arguments):
    script = (
        "import json, sys\n"
        f"sys.argv = ['outlast', *{list(arguments)!r}]\n"
        "from outlast.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["demo", "--help"]])
def test_a_verb_loads_what_it_needs_and_no_framework(arguments):
    heavy = {"faststream", "fast_depends", "sqlalchemy", "aiosqlite", "asyncpg"}
    assert not loaded_by(*arguments).intersection(heavy)


def test_the_measure_above_can_see():
    assert {"faststream", "sqlalchemy"} <= loaded_by("demo", "--seconds", "0.1")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-verb"],
        ["demo", "--no-such-option"],
        *(["demo", "--seconds", bad] for bad in ("0", "-1", "nan", "inf", "1e9", "soon")),
        *(["demo", "--rate", bad] for bad in ("0", "nan", "1e9")),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2_and_no_traceback(arguments):
    done = outlast(*arguments)
    assert done.returncode == 2
    assert "Usage: outlast" in done.stderr
    assert "Traceback" not in done.stderr


def run_main(monkeypatch, capsys, failure):
    def fails():
        raise failure

    monkeypatch.setattr("outlast.cli.versions.version_lines", fails)
    monkeypatch.setattr(sys, "argv", ["outlast", "version"])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().err


def test_an_error_of_ours_is_its_sentence(monkeypatch, capsys):
    status, said = run_main(monkeypatch, capsys, SchemaError("the table 'outbox' does not exist"))
    assert (status, said) == (2, "outlast: the table 'outbox' does not exist\n")


def test_an_unexpected_error_is_one_clean_line(monkeypatch, capsys):
    monkeypatch.delenv("OUTLAST_TRACEBACK", raising=False)
    status, said = run_main(monkeypatch, capsys, KeyError("a\x1b[31m", "b"))
    assert status == 1
    assert said.startswith("outlast: unexpected KeyError: ")
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert "Traceback" not in said


def test_control_characters_do_not_reach_the_terminal(monkeypatch, capsys):
    _, said = run_main(monkeypatch, capsys, SchemaError("no table \x1b]0;x\x07 here\nnor there"))
    assert said == "outlast: no table ?]0;x? here nor there\n"


def test_a_traceback_is_there_for_who_asks(monkeypatch):
    def fails():
        raise LookupError("deep inside")

    monkeypatch.setenv("OUTLAST_TRACEBACK", "1")
    monkeypatch.setattr("outlast.cli.versions.version_lines", fails)
    monkeypatch.setattr(sys, "argv", ["outlast", "version"])
    with pytest.raises(LookupError, match="deep inside"):
        main()
