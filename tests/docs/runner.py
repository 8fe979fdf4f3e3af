"""Runs the blocks of one page, in order, in one namespace and one directory.

`python`: in one namespace on one event loop; `await` and `async with` may stand at the top level.
A URL of PostgreSQL is replaced by one of a database of the page's own. `sql`: on that database,
where the tables of outlast are.
`sh`, `console`: the commands named in `_COMMANDS`, one a line; one of outlast that ends in `&` runs
until the page ends, and is interrupted then; curl calls it (`tests/docs/rest.py`). Anything else
must be named in `NOT_CODE`, so that no block is left out by accident.
"""

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import tomllib
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import asyncpg
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from outlast import make_dlq_table, make_outbox_table
from tests.docs.pages import ROOT, Block, blocks, name_of
from tests.docs.rest import Rest

NOT_CODE = {"text"}
DEMO_SECONDS = "1"
PATIENCE_SECONDS = 60

_POSTGRES_URL = re.compile(r"postgresql\+asyncpg://[^\s\"']+")
_EXTRAS = re.compile(r"^outlast(?:\[([\w,-]+)\])?$")
_DEPENDENCIES = {"faststream", "uvicorn"}
"""What a page may ask to install beside outlast."""


class Broken(AssertionError):
    """A block does not do what a reader expects."""


class Page:
    """One page under way. `postgres` makes a database when it is first needed, or skips."""

    def __init__(self, path: Path, folder: Path, postgres: Callable[[], str]) -> None:
        self.path = path
        self._folder = folder
        self._postgres = postgres
        self._module = types.ModuleType("page_" + re.sub(r"\W", "_", name_of(path)))
        self._loop = asyncio.Runner()
        self._has_tables = False
        self._background: list[subprocess.Popen[str]] = []
        self._rest = Rest(folder)
        self.ran = 0

    def run(self) -> None:
        sys.modules[self._module.__name__] = self._module
        try:
            with self._loop, warnings.catch_warnings():
                # FastStream reads the source of its caller, and a page is none
                warnings.filterwarnings("ignore", "(?s).*AST parsing", RuntimeWarning)
                for block in blocks(self.path):
                    self._run(block)
                self._interrupt()
        finally:
            for process in self._background:
                process.kill()
                process.communicate()
            del sys.modules[self._module.__name__]

    def _run(self, block: Block) -> None:
        if block.not_run is not None or block.language in NOT_CODE:
            return
        where = f"{name_of(self.path)}:{block.line}"
        work = {
            "python": self._python,
            "sql": self._sql,
            "sh": self._shell,
            "console": self._shell,
            "json": lambda b: json.loads(b.text),
            "toml": lambda b: tomllib.loads(b.text),
        }.get(block.language)
        if work is None:
            raise Broken(f"{where}: nobody runs blocks of {block.language!r}")
        try:
            work(block)
        except Exception as error:
            error.add_note(f"in the block at {where}")
            raise
        self.ran += 1

    def _python(self, block: Block) -> None:
        text = block.text
        if _POSTGRES_URL.search(text):
            text = _POSTGRES_URL.sub(lambda _: self._postgres(), text)
        # padded, so that a traceback shows the line of the page
        padded = "\n" * (block.line - 1) + text
        code = compile(padded, str(self.path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if not code.co_flags & inspect.CO_COROUTINE:
            with _bounded():
                exec(code, vars(self._module))
            return

        async def within_time() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await eval(code, vars(self._module))

        self._loop.run(within_time())

    def _sql(self, block: Block) -> None:
        dsn = self._postgres().replace("postgresql+asyncpg", "postgresql")

        async def execute() -> None:
            if not self._has_tables:
                await self._make_tables()
            connection = await asyncpg.connect(dsn)
            try:
                for statement in re.split(r";\s*$", block.text, flags=re.MULTILINE):
                    if statement.strip():
                        await connection.execute(statement)
            finally:
                await connection.close()

        self._loop.run(execute())

    async def _make_tables(self) -> None:
        self._has_tables = True
        metadata = MetaData()
        make_outbox_table(metadata)
        make_dlq_table(metadata)
        engine = create_async_engine(self._postgres())
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        await engine.dispose()

    def _shell(self, block: Block) -> None:
        if block.language == "console":
            lines = [x[2:] for x in block.text.splitlines() if x.startswith("$ ")]
        else:
            lines = block.text.replace("\\\n", " ").splitlines()
        commands = [words for line in lines if (words := shlex.split(line, comments=True))]
        if not commands:
            raise Broken("a block of commands without a command")
        for words in commands:
            program, *arguments = words
            if self._is_rest(program, arguments):
                continue
            if program == "outlast" and arguments[-1:] == ["&"]:
                self._background.append(_begin(arguments[:-1], self._folder))
                continue
            if program not in _COMMANDS:
                raise Broken(f"nobody runs {program!r}; {', '.join(_COMMANDS)} are known")
            _COMMANDS[program](arguments, self._folder)

    def _is_rest(self, program: str, arguments: list[str]) -> bool:
        try:
            match program, *arguments:
                case "outlast", "tokens", "new", *_:
                    self._rest.make_token(arguments)
                case "outlast", "serve", *_:
                    self._background.append(self._rest.serve(arguments[:-1]))
                case "export", *_:
                    self._rest.export(arguments)
                case "curl", *_:
                    self._rest.curl(arguments)
                case _:
                    return False
        except AssertionError as error:
            raise Broken(str(error)) from None
        return True

    def _interrupt(self) -> None:
        for process in self._background:
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE_SECONDS)
            if process.returncode:
                raise Broken(f"{process.args} failed: {errors or output}")


@contextmanager
def _bounded() -> Iterator[None]:
    """A block that waits for ever fails. It has a loop of its own, so only a signal ends it."""

    def give_up(*_: object) -> None:
        raise Broken(f"not done within {PATIENCE_SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _outlast(arguments: list[str], folder: Path) -> None:
    if arguments[:1] == ["demo"] and "--fixed" not in arguments:
        # the same command, for a shorter time
        if "--seconds" in arguments:
            place = arguments.index("--seconds")
            arguments = [*arguments[:place], *arguments[place + 2 :]]
        arguments = [*arguments, "--seconds", DEMO_SECONDS]
    done = subprocess.run(
        [sys.executable, "-m", "outlast", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise Broken(f"outlast {' '.join(arguments)} failed: {done.stderr or done.stdout}")


def _begin(arguments: list[str], folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "outlast", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _pip(arguments: list[str], _folder: Path) -> None:
    if arguments[:1] != ["install"]:
        raise Broken(f"pip {arguments} installs nothing")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for requirement in arguments[1:]:
        ours = _EXTRAS.match(requirement)
        if ours is None and requirement.partition("[")[0] not in _DEPENDENCIES:
            raise Broken(f"{requirement!r} is not known to be installable")
        for extra in (ours[1] or "").split(",") if ours else ():
            if extra and extra not in project["optional-dependencies"]:
                raise Broken(f"there is no extra {extra!r}")


def _make(arguments: list[str], _folder: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for argument in arguments:
        if "=" not in argument and not re.search(
            rf"^{re.escape(argument)}:", makefile, re.MULTILINE
        ):
            raise Broken(f"there is no target {argument!r} in the Makefile")


def _sqlite3(arguments: list[str], folder: Path) -> None:
    file, query = arguments
    if not (folder / file).exists():
        raise Broken(f"no command before has made {file}")
    with closing(sqlite3.connect(folder / file)) as connection:
        connection.execute(query).fetchall()


_COMMANDS: dict[str, Callable[[list[str], Path], None]] = {
    "outlast": _outlast,
    "pip": _pip,
    "make": _make,
    "sqlite3": _sqlite3,
}
