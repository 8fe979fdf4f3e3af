"""A page that serves the API and calls it with curl: on a free port, with a token of its own.

`export NAME='the first line'` takes that line of what `outlast tokens new` printed last; `$NAME` in
a later argument is that. curl goes to the page's own server, and must succeed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ADDRESS = "http://127.0.0.1:8787"
PATIENCE_SECONDS = 60

_LINES = {"the first line": 0, "the second line": 1}


class Rest:
    """What a page has exported, and where its server listens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment: dict[str, str] = {}
        self._printed: list[str] = []
        self._port: int | None = None

    def make_token(self, arguments: list[str]) -> None:
        """`outlast tokens new …`: its two lines are remembered."""
        done = subprocess.run(
            [sys.executable, "-m", "outlast", *arguments],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
        self._printed = done.stdout.splitlines()

    def export(self, arguments: list[str]) -> None:
        """`export NAME=value`."""
        for argument in arguments:
            name, _, value = argument.partition("=")
            line = _LINES.get(value)
            self._environment[name] = value if line is None else self._printed[line]

    def serve(self, arguments: list[str]) -> "subprocess.Popen[str]":
        """`outlast serve … &`: once it listens."""
        process = subprocess.Popen(
            [sys.executable, "-m", "outlast", *arguments, "--port", "0"],
            cwd=self._folder,
            env=os.environ | self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None, "it is a pipe"
        said = []
        for line in process.stderr:
            said.append(line)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                self._port = int(found[1])
                return process
        raise AssertionError(f"outlast serve failed: {''.join(said)}")

    def curl(self, arguments: list[str]) -> str:
        """The answer; what is refused is an error."""
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        given = [self._expanded(argument) for argument in arguments]
        urls = [argument for argument in given if "://" in argument]
        if self._port is None or not urls or not all(url.startswith(ADDRESS) for url in urls):
            raise AssertionError(f"no server of this page answers {urls}")
        here = f"http://127.0.0.1:{self._port}"
        given = [a.replace(ADDRESS, here) if a in urls else a for a in given]
        done = subprocess.run(
            ["curl", "--silent", "--show-error", "--fail-with-body", *given],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"curl {' '.join(arguments)}: {done.stdout or done.stderr}")
        return done.stdout

    def _expanded(self, argument: str) -> str:
        return re.sub(r"\$(\w+)", lambda name: self._environment[name[1]], argument)
