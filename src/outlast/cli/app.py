"""The verbs, and the frame around them: errors leave as sentences, never as tracebacks.

In: the arguments of the process. Out: an exit status: 0 done, 1 failed, 2 usage or environment,
3 refused by a gate.
"""

import gc
import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from outlast.cli import db, dlq, live
from outlast.cli.asking import asked, flag, shaped
from outlast.cli.paper import is_of_output, print_document, tell_unwritten
from outlast.model.errors import OutlastError

_ALLOCATIONS_BETWEEN_LOOKS = 200_000
_SECONDS_MAX = 86_400.0
_RATE_MAX = 10_000.0

_ORDER = ("demo", "dlq", "outbox", "subscriptions", "workers", "serve", "tokens", "db", "version")


class _InOrder(TyperGroup):
    """Verbs in the order in which a newcomer meets them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, as `--help` shows them."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    name="outlast",
    cls=_InOrder,
    help="A transactional outbox and dead-letter queue.",
    epilog="To begin: outlast demo, or outlast dlq list --dsn FILE_OR_URL",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(dlq.app, name="dlq")
app.add_typer(live.outbox, name="outbox")
app.add_typer(live.subscriptions, name="subscriptions")
app.add_typer(live.workers, name="workers")
app.add_typer(live.tokens, name="tokens")
app.add_typer(db.app, name="db")
app.command("serve")(live.serve)


def main() -> None:
    """The command `outlast`."""
    # a verb imports much and keeps all of it: a collector that looks less often saves a tenth
    gc.set_threshold(_ALLOCATIONS_BETWEEN_LOOKS)
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that knows fewer characters gets question marks, not an error
            stream.reconfigure(errors="replace")
    try:
        try:
            app(args=shaped(sys.argv[1:]), prog_name="outlast")
        finally:
            sys.stdout.flush()
    except OutlastError as error:
        _leave(str(error), 2)
    except Exception as error:
        if isinstance(error, OSError) and is_of_output(error):
            tell_unwritten(error)
            sys.exit(1)
        if os.environ.get("OUTLAST_TRACEBACK"):
            raise
        said = str(error).partition("\n")[0]
        hint = "OUTLAST_TRACEBACK=1 shows the traceback"
        _leave(f"unexpected {type(error).__name__}: {said} ({hint})", 1)


def _open_what_is_closed() -> None:
    """A database file must not get the number of a stream that somebody may write to."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _leave(sentence: str, status: int) -> None:
    line = " ".join(sentence.split())
    # no control character reaches a terminal
    sys.stderr.write(f"outlast: {''.join(c if c.isprintable() else '?' for c in line)}\n")
    sys.exit(status)


def _positive(value: float, most: float) -> float:
    if not (math.isfinite(value) and 0 < value <= most):
        raise typer.BadParameter(f"{value:g} is not more than 0 and at most {most:g}")
    return value


def _seconds(value: float | None) -> float | None:
    return None if value is None else _positive(value, _SECONDS_MAX)


def _rate(value: float | None) -> float | None:
    return None if value is None else _positive(value, _RATE_MAX)


def _print_version(wanted: bool) -> None:
    if wanted:
        _show_versions()
        raise typer.Exit


@app.callback()
@asked
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            metavar="",
            help="Show the versions and exit.",
        ),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            callback=_seconds, metavar="N", help="How long orders come in.", show_default="10"
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(callback=_rate, metavar="N", help="Orders per second.", show_default="50"),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The database: a new file, or with --fixed that of an earlier demo.",
            show_default="in a new temporary folder",
        ),
    ] = None,
    fixed: Annotated[
        bool, flag("Run the corrected handlers on the file; no orders.", "--fixed")
    ] = False,
    keep: Annotated[
        bool, flag("Leave the handlers at work until Ctrl-C, to play with.", "--keep")
    ] = False,
) -> None:
    """See messages delivered, retried and dead on SQLite, and the proof that none is lost.

    The file stays, and the commands that mend what is dead are printed.
    """
    if fixed:
        if seconds is not None or rate is not None:
            raise typer.BadParameter(
                "with --fixed no orders come in: --seconds and --rate say nothing"
            )
        from outlast.demo.at_work import run_fixed  # noqa: PLC0415

        raise typer.Exit(run_fixed(file, keep=keep))
    from outlast.demo.play import Settings, run  # noqa: PLC0415

    raise typer.Exit(run(Settings(seconds or 10.0, rate or 50.0, file, keep)))


@app.command()
@asked
def version(ctx: typer.Context) -> None:
    """Show the versions of outlast and of what it stands on."""
    _show_versions(as_json=ctx.obj.json)


def _show_versions(*, as_json: bool = False) -> None:
    from outlast.cli.versions import version_lines, versions  # noqa: PLC0415

    if as_json:
        print_document(json.dumps(dict(versions()), indent=2))
        return
    for line in version_lines():
        typer.echo(line)
