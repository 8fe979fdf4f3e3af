"""The verbs, and the frame around them: errors leave as sentences, never as tracebacks.

In: the arguments of the process. Out: an exit status: 0 done, 1 failed, 2 usage or environment,
3 refused by a gate.
"""

import io
import math
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from outlast.cli import dlq, live
from outlast.cli.asking import asked, shaped
from outlast.model.errors import OutlastError

_SECONDS_MAX = 86_400.0
_RATE_MAX = 10_000.0

app = typer.Typer(
    name="outlast",
    help="A transactional outbox and dead-letter queue.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(dlq.app, name="dlq")
app.add_typer(live.outbox, name="outbox")
app.add_typer(live.workers, name="workers")


def main() -> None:
    """The command `outlast`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that knows fewer characters gets question marks, not an error
            stream.reconfigure(errors="replace")
    try:
        app(args=shaped(sys.argv[1:]), prog_name="outlast")
    except OutlastError as error:
        _leave(str(error), 2)
    except Exception as error:
        if os.environ.get("OUTLAST_TRACEBACK"):
            raise
        said = str(error).partition("\n")[0]
        hint = "OUTLAST_TRACEBACK=1 shows the traceback"
        _leave(f"unexpected {type(error).__name__}: {said} ({hint})", 1)


def _leave(sentence: str, status: int) -> None:
    line = " ".join(sentence.split())
    # no control character reaches a terminal
    sys.stderr.write(f"outlast: {''.join(c if c.isprintable() else '?' for c in line)}\n")
    sys.exit(status)


def _positive(value: float, most: float) -> float:
    if not (math.isfinite(value) and 0 < value <= most):
        raise typer.BadParameter(f"{value:g} is not more than 0 and at most {most:g}")
    return value


def _seconds(value: float) -> float:
    return _positive(value, _SECONDS_MAX)


def _rate(value: float) -> float:
    return _positive(value, _RATE_MAX)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
@asked
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the versions and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option(callback=_seconds, help="How long orders come in.")
    ] = 10.0,
    rate: Annotated[float, typer.Option(callback=_rate, help="Orders per second.")] = 50.0,
    file: Annotated[
        Path | None,
        typer.Option(help="Keep the database in this new file.", show_default="temporary"),
    ] = None,
) -> None:
    """See messages delivered, retried and dead on SQLite, and the proof that none is lost."""
    from outlast.demo.play import Settings, run  # noqa: PLC0415

    raise typer.Exit(run(Settings(seconds=seconds, rate=rate, file=file)))


@app.command()
def version() -> None:
    """The versions of outlast and of what it stands on."""
    from outlast.cli.versions import version_lines  # noqa: PLC0415

    for line in version_lines():
        typer.echo(line)
