"""The promised commands, and that they ask for nothing but Python and make."""

import os
import shutil
import subprocess
import tomllib

import pytest

from tools.dev_requirements import requirements

from .package import ROOT

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def planned(target, *options):
    """The commands make would run, without running them, on a machine with nothing installed."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        [make, "--dry-run", "--always-make", target, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_promised_commands_make_their_own_environment(target):
    commands = planned(target)
    assert "-m venv .venv" in commands
    assert "pip" in commands
    assert "install" in commands
    assert not any(tool in commands.split() for tool in ("git", "uv", "docker", "curl"))


@pytest.mark.parametrize("target", ["help", "check", "proof", "bench", "reference", "format"])
def test_the_other_commands_exist(target):
    assert planned(target)


def test_the_demo_installs_only_what_the_demo_needs():
    commands = planned("demo")
    assert "dev_requirements" not in commands
    assert ".venv/bin/outlast demo --fast" in planned("demo", "DEMO_ARGS=--fast")


def test_gates_reach_the_benchmarks():
    assert "-m bench --gates T1,T2" in planned("bench", "GATES=T1,T2")
    assert "--gates" not in planned("bench")


def test_an_old_python_is_refused_in_one_line(tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    done = subprocess.run(
        ["make", "demo", f"PYTHON={old}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_continuous_integration_runs_the_tests_and_nothing_else():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [
        line
        for line in script.read_text("utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    assert commands == ["set -eu", 'cd "$(dirname "$0")/.."', "make test"]


def test_the_development_requirements_have_one_source():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    group = project["dependency-groups"]["dev"]
    lines = requirements()
    assert len(lines) == len(group)
    assert "--editable .[all]" in lines
    assert not any(line.startswith("outlast") for line in lines)
