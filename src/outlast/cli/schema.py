"""The verbs on tables: db check, print, create.

In: the shared options. Out: an exit status: 1 when the tables drift. Only `create` changes
anything, and only `create` makes a SQLite file.
"""

import sys

from outlast.cli.address import make_file
from outlast.cli.asking import Asked
from outlast.cli.frame import DONE, FAILED, failed, run, settings_of, show
from outlast.cli.paper import say, tell
from outlast.model.errors import OutlastError
from outlast.ops import Actor, Desk


def check_tables(asked: Asked) -> int:
    """Drift on stdout, advice beside it."""

    async def body(desk: Desk, actor: Actor) -> int:
        state = await desk.schema_state(actor)
        if asked.json:
            show({"drift": list(state.drift), "advice": list(state.advice)})
        elif not state.drift:
            say("The tables are right.")
        for drift in () if asked.json else state.drift:
            say(drift)
        for advice in () if asked.json else state.advice:
            tell(f"advice: {advice}")
        if state.drift or state.advice:
            tell(f"to see the SQL for what is missing: {desk.print_command}")
        if state.manual:
            tell(f"what has another shape is changed by hand: {state.manual}")
        return FAILED if state.drift else DONE

    return run(asked, body)


def print_plan(asked: Asked) -> int:
    """SQL and nothing else."""

    async def body(desk: Desk, actor: Actor) -> int:
        plan = await desk.schema_plan(actor)
        if asked.json:
            show({"statements": list(plan)})
        elif plan:
            # not `say`: SQL is printed as it is run, and its names are known to be printable
            sys.stdout.write("\n\n".join(plan) + "\n")
        else:
            say("-- nothing is missing; outlast db check says whether what is there is right")
        return DONE

    return run(asked, body)


def create_tables(asked: Asked) -> int:
    """Run the plan, and say what was done and what is left."""
    try:
        file = make_file(settings_of(asked).dsn)
    except OutlastError as error:
        return failed(asked, error)
    if file is not None:
        tell(f"made the file {file}; nobody else may read it")

    async def body(desk: Desk, actor: Actor) -> int:
        done = await desk.schema_create(actor, lambda title: None if asked.json else say(title))
        state = await desk.schema_state(actor)
        if asked.json:
            show({"done": list(done), "drift": list(state.drift), "advice": list(state.advice)})
        elif not done:
            say("Nothing was missing.")
        for left in (*state.drift, *state.advice):
            tell(f"left as it is: {left}")
        return FAILED if state.drift else DONE

    status = run(asked, body)
    if file is not None and not file.stat().st_size:
        file.unlink()
        tell(f"removed the file {file}: nothing came into it")
    return status
