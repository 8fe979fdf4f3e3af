"""`outlast outbox …` and `outlast workers …`: the forms of the verbs on live rows and workers."""

from typing import Annotated

import typer

from outlast.cli.asking import asked

outbox = typer.Typer(help="Look at live messages and take them back.", no_args_is_help=True)
workers = typer.Typer(help="See which workers run.", no_args_is_help=True)


@outbox.callback()
@asked
def _outbox(ctx: typer.Context) -> None:
    """Look at live messages and take them back."""


@outbox.command("list")
@asked
def list_rows(
    ctx: typer.Context,
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    limit: Annotated[int, typer.Option(help="Rows to show.")] = 100,
    after: Annotated[int, typer.Option(metavar="ID", help="Go on behind this id.")] = 0,
) -> None:
    """Show live messages by id; no row is changed."""
    from outlast.cli.rows import list_outbox  # noqa: PLC0415

    raise typer.Exit(list_outbox(ctx.obj, queue, limit, after))


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
    row_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of rows.")],
    reason: Annotated[str | None, typer.Option(help="Why, for the history.")] = None,
) -> None:
    """Take messages back that no worker holds; a replayed letter is open again."""
    from outlast.cli.rows import cancel_rows  # noqa: PLC0415

    raise typer.Exit(cancel_rows(ctx.obj, row_ids, reason))


@workers.callback()
@asked
def _workers(ctx: typer.Context) -> None:
    """See which workers run."""


@workers.command("list")
@asked
def list_workers(ctx: typer.Context) -> None:
    """Show the workers that were seen, their versions and queues."""
    from outlast.cli.rows import print_workers  # noqa: PLC0415

    raise typer.Exit(print_workers(ctx.obj))
