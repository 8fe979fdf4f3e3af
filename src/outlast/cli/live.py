"""The forms of the verbs on what is alive: rows, workers, subscriptions, the API and its tokens."""

from typing import Annotated

import typer

from outlast.cli.asking import Wanted, asked, flag, wanted

outbox = typer.Typer(
    help="Look at messages on their way, take them back, run them now.", no_args_is_help=True
)
workers = typer.Typer(help="See which workers run.", no_args_is_help=True)
subscriptions = typer.Typer(
    help="See which queues are known, and who serves them.", no_args_is_help=True
)
tokens = typer.Typer(help="Make and list tokens for the REST API.", no_args_is_help=True)


@outbox.callback()
@asked
def _outbox(ctx: typer.Context) -> None:
    pass


@outbox.command("list")
@asked
@wanted
def list_rows(
    ctx: typer.Context,
    wanted: Wanted,
    limit: Annotated[int, typer.Option(metavar="N", help="Rows to show.")] = 100,
    after: Annotated[int, typer.Option(metavar="ID", help="Go on behind this id.")] = 0,
) -> None:
    """Show live messages by id; no row is changed."""
    from outlast.cli.rows import list_outbox  # noqa: PLC0415

    raise typer.Exit(list_outbox(ctx.obj, wanted, limit, after))


@outbox.command()
@asked
def inspect(
    ctx: typer.Context,
    row_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a row.")],
) -> None:
    """Show one live message; the row is not changed."""
    from outlast.cli.rows import inspect_row  # noqa: PLC0415

    raise typer.Exit(inspect_row(ctx.obj, row_id))


@outbox.command()
@asked
def cancel(
    ctx: typer.Context,
    row_ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of rows.")],
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why, for the history.")
    ] = None,
) -> None:
    """Take messages back that no worker holds; a replayed letter is open again."""
    from outlast.cli.rows import cancel_rows  # noqa: PLC0415

    raise typer.Exit(cancel_rows(ctx.obj, row_ids, reason))


@outbox.command("run-now")
@asked
def run_now(
    ctx: typer.Context,
    row_ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of rows.")],
) -> None:
    """Make messages due at once that wait for their time."""
    from outlast.cli.rows import run_rows  # noqa: PLC0415

    raise typer.Exit(run_rows(ctx.obj, row_ids))


@workers.callback()
@asked
def _workers(ctx: typer.Context) -> None:
    pass


@workers.command("list")
@asked
def list_workers(ctx: typer.Context) -> None:
    """Show the workers that were seen, whether they live, their versions and queues."""
    from outlast.cli.watching import print_workers  # noqa: PLC0415

    raise typer.Exit(print_workers(ctx.obj))


@subscriptions.callback()
@asked
def _subscriptions(ctx: typer.Context) -> None:
    pass


@subscriptions.command("list")
@asked
def list_subscriptions(ctx: typer.Context) -> None:
    """Show the queues that are known, who serves them, and how much waits there."""
    from outlast.cli.watching import print_subscriptions  # noqa: PLC0415

    raise typer.Exit(print_subscriptions(ctx.obj))


@tokens.callback()
@asked
def _tokens(ctx: typer.Context) -> None:
    pass


@tokens.command("new")
@asked
def new_token(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Whose it is; the actor in the history.")
    ],
    scopes: Annotated[
        str,
        typer.Option(metavar="SCOPE,...", help="inspect, reveal, replay, edit, discard, admin."),
    ],
) -> None:
    """Make a token: its secret, printed this once, and the line for the configuration."""
    from outlast.cli.server import make_token  # noqa: PLC0415

    raise typer.Exit(make_token(ctx.obj, name, scopes))


@tokens.command("list")
@asked
def list_tokens(ctx: typer.Context) -> None:
    """Show whose tokens the settings have, and what they open."""
    from outlast.cli.server import list_tokens as list_  # noqa: PLC0415

    raise typer.Exit(list_(ctx.obj))


@asked
def serve(
    ctx: typer.Context,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where to listen.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="N", help="0: any free one.", show_default="8787")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="PATH", help="A path before every route: /outlast.")
    ] = None,
    no_auth: Annotated[bool, flag("Ask for no token; on loopback only.", "--no-auth")] = False,
) -> None:
    """Serve the REST API until Ctrl-C; meanwhile delete what was kept long enough."""
    from outlast.cli.server import serve_api  # noqa: PLC0415

    raise typer.Exit(serve_api(ctx.obj, no_auth=no_auth, host=host, port=port, prefix=prefix))
