"""`outlast db …`: the forms of the verbs on tables."""

import typer

from outlast.cli.asking import asked

app = typer.Typer(help="Check the tables, and make them whole.", no_args_is_help=True)


@app.callback()
@asked
def _db(ctx: typer.Context) -> None:
    """Check the tables, and make them whole."""


@app.command()
@asked
def check(ctx: typer.Context) -> None:
    """Compare the tables with what they should be; status 1 when they drift."""
    from outlast.cli.schema import check_tables  # noqa: PLC0415

    raise typer.Exit(check_tables(ctx.obj))


@app.command("print")
@asked
def print_sql(ctx: typer.Context) -> None:
    """Print the SQL that adds what is missing, for psql or sqlite3. Nothing is changed."""
    from outlast.cli.schema import print_plan  # noqa: PLC0415

    raise typer.Exit(print_plan(ctx.obj))


@app.command()
@asked
def create(ctx: typer.Context) -> None:
    """Run that SQL; a SQLite file that does not exist is made."""
    from outlast.cli.schema import create_tables  # noqa: PLC0415

    raise typer.Exit(create_tables(ctx.obj))
