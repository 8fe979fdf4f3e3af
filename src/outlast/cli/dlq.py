"""`outlast dlq …`: the forms of the verbs on dead letters. What they do is loaded when they run."""

from typing import Annotated

import typer

from outlast.cli.asking import Mending, Wanted, asked, flag, mended, wanted, wanted_or_id

_HELP = "Look at dead letters, mend, replay, purge and restore them."

app = typer.Typer(help=_HELP, no_args_is_help=True)

_Ids = Annotated[list[str], typer.Argument(metavar="ID", help="DLQ ids.")]
_Id = Annotated[str, typer.Argument(metavar="ID", help="A DLQ id.")]
_Yes = Annotated[bool, flag("Do not ask.", "--yes", "-y")]
_All = Annotated[bool, flag("Every letter; in place of a filter.", "--all")]
_DryRun = Annotated[bool, flag("Say what would be done.", "--dry-run")]
_Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the history.")]
_To = Annotated[str | None, typer.Option(metavar="QUEUE", help="Another queue, for this pass.")]
_Original = Annotated[bool, flag("The first bytes, not the newest.", "--original")]
_Force = Annotated[bool, flag("Pass the gates; needs --reason.", "--force")]
_Poison = Annotated[bool, flag("Also letters that may kill their worker.", "--include-poison")]
_Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="TIME", help="Wait for the outcome; --wait=30s, else 10m."),
]


@app.callback()
@asked
def _dlq(ctx: typer.Context) -> None:
    pass


@app.command("list")
@asked
@wanted
def list_(
    ctx: typer.Context,
    wanted: Wanted,
    limit: Annotated[int, typer.Option(metavar="N", help="Letters to show.")] = 100,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on where a list ended.")
    ] = None,
    wide: Annotated[bool, flag("Cut no cell.", "--wide")] = False,
) -> None:
    """Show dead letters, the newest failure first."""
    from outlast.cli.looking import list_letters  # noqa: PLC0415

    raise typer.Exit(list_letters(ctx.obj, wanted, limit, after, wide))


@app.command()
@asked
@wanted_or_id
def inspect(
    ctx: typer.Context,
    wanted: Wanted,
    everything: Annotated[bool, flag("All that the filter takes, in short.", "--all")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="Letters to show with --all.")] = 10,
    reveal: Annotated[bool, flag("Show what is masked; this is recorded.", "--reveal")] = False,
) -> None:
    """Show everything about one dead letter, or many in short."""
    from outlast.cli.looking import inspect_letter, inspect_some  # noqa: PLC0415

    if everything:
        raise typer.Exit(inspect_some(ctx.obj, wanted, limit, reveal=reveal))
    if len(wanted.words) != 1 or wanted.has_options:
        raise typer.BadParameter("give one id, or --all and a filter")
    raise typer.Exit(inspect_letter(ctx.obj, wanted.words[0], reveal=reveal))


@app.command()
@asked
@mended
def replay(
    ctx: typer.Context,
    dlq_ids: _Ids,
    mending: Mending,
    to: _To = None,
    original: _Original = False,
    dry_run: _DryRun = False,
    force: _Force = False,
    include_poison: _Poison = False,
    reason: _Reason = None,
    wait: _Wait = None,
) -> None:
    """Send dead letters again, as they are or mended."""
    from outlast.cli.acting import Way, replay_letters  # noqa: PLC0415

    given = Way(to, original, dry_run, force, include_poison, reason, wait, mending)
    raise typer.Exit(replay_letters(ctx.obj, dlq_ids, given))


@app.command("replay-all")
@asked
@wanted
@mended
def replay_all(
    ctx: typer.Context,
    wanted: Wanted,
    mending: Mending,
    everything: _All = False,
    yes: _Yes = False,
    to: _To = None,
    original: _Original = False,
    dry_run: _DryRun = False,
    force: _Force = False,
    include_poison: _Poison = False,
    reason: _Reason = None,
    wait: _Wait = None,
    rate: Annotated[str | None, typer.Option(metavar="N/s", help="Letters a second.")] = None,
) -> None:
    """Send all dead letters again that a filter takes."""
    from outlast.cli.acting import Way, replay_selected  # noqa: PLC0415

    given = Way(to, original, dry_run, force, include_poison, reason, wait, mending)
    status = replay_selected(ctx.obj, wanted, given, everything=everything, yes=yes, rate=rate)
    raise typer.Exit(status)


@app.command()
@asked
@wanted_or_id
def purge(
    ctx: typer.Context,
    wanted: Wanted,
    everything: _All = False,
    yes: _Yes = False,
    hard: Annotated[bool, flag("Delete at once, for good.", "--hard")] = False,
    dry_run: _DryRun = False,
    reason: _Reason = None,
) -> None:
    """Discard dead letters, by a filter or by their ids."""
    from outlast.cli.acting import purge_letters  # noqa: PLC0415

    status = purge_letters(
        ctx.obj,
        wanted,
        everything=everything,
        yes=yes,
        hard=hard,
        dry_run=dry_run,
        reason=reason,
    )
    raise typer.Exit(status)


@app.command()
@asked
def restore(ctx: typer.Context, dlq_ids: _Ids, reason: _Reason = None) -> None:
    """Bring purged letters back."""
    from outlast.cli.acting import restore_letters  # noqa: PLC0415

    raise typer.Exit(restore_letters(ctx.obj, dlq_ids, reason))


@app.command()
@asked
@mended
def edit(
    ctx: typer.Context,
    dlq_id: _Id,
    mending: Mending,
    payload: Annotated[
        str | None, typer.Option(metavar="FILE", help="The new body; - is stdin.")
    ] = None,
    reveal: Annotated[
        bool, flag("Secrets too in the editor; this is recorded.", "--reveal")
    ] = False,
    reason: _Reason = None,
    dry_run: _DryRun = False,
) -> None:
    """Give a dead letter another body or other headers: a revision, which a replay then sends.

    Without a change, on a terminal, $EDITOR opens on the body.
    """
    from outlast.cli.editing import Rewriting, edit_letter  # noqa: PLC0415

    given = Rewriting(payload, mending, reveal, reason, dry_run)
    raise typer.Exit(edit_letter(ctx.obj, dlq_id, given))


@app.command()
@asked
@wanted
def export(
    ctx: typer.Context,
    wanted: Wanted,
    kind: Annotated[
        str, typer.Option("--as", metavar="KIND", help="json, jsonl, csv or pytest.")
    ] = "json",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="A new file, for its owner alone."),
    ] = None,
    overwrite: Annotated[bool, flag("The file may be there already.", "--overwrite")] = False,
    reveal: Annotated[bool, flag("Write what is masked; this is recorded.", "--reveal")] = False,
    reason: _Reason = None,
) -> None:
    """Write dead letters down, to a file or to stdout."""
    from outlast.cli.carrying import Carriage, export_letters  # noqa: PLC0415

    given = Carriage(kind, output, overwrite, reveal, reason)
    raise typer.Exit(export_letters(ctx.obj, wanted, given))


@app.command("import")
@asked
def import_(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="An export; - is stdin.")],
    reason: _Reason = None,
    dry_run: _DryRun = False,
) -> None:
    """Take dead letters in that were exported with --reveal, as json or jsonl."""
    from outlast.cli.carrying import import_letters  # noqa: PLC0415

    raise typer.Exit(import_letters(ctx.obj, file, reason, dry_run=dry_run))


@app.command()
@asked
def mark(
    ctx: typer.Context,
    dlq_ids: _Ids,
    reopen: Annotated[bool, flag("Open; lifts the replay limit.", "--open")] = False,
    review: Annotated[bool, flag("For somebody to look at.", "--review")] = False,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="Who looks after it.")] = None,
    triage: Annotated[str | None, typer.Option(metavar="CAUSE", help="The root cause.")] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="A note.")] = None,
    reason: _Reason = None,
) -> None:
    """Open letters again, or say something about them."""
    from outlast.cli.acting import mark_letters  # noqa: PLC0415

    status = mark_letters(
        ctx.obj,
        dlq_ids,
        reopen=reopen,
        review=review,
        owner=owner,
        triage=triage,
        note=note,
        reason=reason,
    )
    raise typer.Exit(status)


@app.command()
@asked
def history(ctx: typer.Context, dlq_id: _Id) -> None:
    """Show what happened to a dead letter."""
    from outlast.cli.looking import history_of  # noqa: PLC0415

    raise typer.Exit(history_of(ctx.obj, dlq_id))


@app.command()
@asked
@wanted
def groups(
    ctx: typer.Context,
    wanted: Wanted,
    limit: Annotated[int, typer.Option(metavar="N", help="Groups to show.")] = 50,
) -> None:
    """Show dead letters by cause, the commonest first."""
    from outlast.cli.looking import groups_of  # noqa: PLC0415

    raise typer.Exit(groups_of(ctx.obj, wanted, limit))


@app.command()
@asked
@wanted
def stats(ctx: typer.Context, wanted: Wanted) -> None:
    """Count dead letters by queue, category and state."""
    from outlast.cli.looking import stats_of  # noqa: PLC0415

    raise typer.Exit(stats_of(ctx.obj, wanted))
