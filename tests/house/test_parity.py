"""What one door can do, every door can: verbs, routes, methods and options, compared by machine.

A new verb, route or method fails here until it stands in the table with its partners, or among
those that have none by nature, with the reason.
"""

import inspect
from typing import NamedTuple

import pytest
import typer

from outlast.api import make_app
from outlast.api.app import document_of
from outlast.cli.app import app as command_line
from outlast.cli.asking import ASKED
from outlast.ops import Desk


class Partners(NamedTuple):
    """One ability at its three doors."""

    verb: str
    routes: tuple[str, ...]
    methods: tuple[str, ...]


TABLE = (
    Partners(
        "dlq list",
        ("GET /api/dlq", "GET /dlt-messages"),
        ("list", "count"),
    ),
    Partners(
        "dlq inspect",
        (
            "GET /api/dlq/{dlq_id}",
            "GET /api/dlq/id/{dlq_id}",
            "GET /api/dlq/id/{dlq_id}/inspect",
            "POST /api/dlq/id/{dlq_id}/inspect",
            "GET /api/dlq/inspect",
            "GET /dlt-messages/{dlq_id}",
        ),
        ("inspect",),
    ),
    Partners(
        "dlq replay",
        (
            "POST /api/dlq/{dlq_id}/replay",
            "POST /api/dlq/id/{dlq_id}/replay",
            "POST /api/dlq/replay",
        ),
        ("replay",),
    ),
    Partners("dlq replay-all", ("POST /api/dlq/replay-all", "POST /replay"), ("replay_all",)),
    Partners(
        "dlq purge",
        ("DELETE /api/dlq", "POST /api/dlq/purge", "POST /api/dlq/id/{dlq_id}/purge"),
        ("purge", "purge_all"),
    ),
    Partners(
        "dlq restore",
        ("POST /api/dlq/restore", "POST /api/dlq/id/{dlq_id}/restore"),
        ("restore",),
    ),
    Partners("dlq edit", ("POST /api/dlq/id/{dlq_id}/edit",), ("edit",)),
    Partners("dlq mark", ("POST /api/dlq/mark", "POST /api/dlq/id/{dlq_id}/mark"), ("mark",)),
    Partners("dlq history", ("GET /api/dlq/id/{dlq_id}/history",), ("history",)),
    Partners("dlq groups", ("GET /api/dlq/groups",), ("groups",)),
    Partners("dlq stats", ("GET /api/dlq/stats",), ("stats",)),
    Partners("dlq export", ("GET /api/dlq/export", "POST /api/dlq/export"), ("export",)),
    Partners("dlq import", ("POST /api/dlq/import",), ("import_letters",)),
    Partners("outbox list", ("GET /api/outbox",), ("outbox_list",)),
    Partners(
        "outbox inspect",
        (
            "GET /api/outbox/{row_id}",
            "GET /api/outbox/id/{row_id}",
            "GET /api/outbox/id/{row_id}/inspect",
        ),
        ("outbox_inspect",),
    ),
    Partners(
        "outbox cancel",
        ("POST /api/outbox/cancel", "POST /api/outbox/id/{row_id}/cancel"),
        ("outbox_cancel",),
    ),
    Partners(
        "outbox run-now",
        ("POST /api/outbox/run-now", "POST /api/outbox/id/{row_id}/run-now"),
        ("outbox_run_now",),
    ),
    Partners("subscriptions list", ("GET /api/subscriptions",), ("subscriptions",)),
    Partners("workers list", ("GET /api/workers",), ("workers",)),
)

VERBS_ALONE = {
    "serve": "is the other door",
    "tokens new": "who could ask for a token over HTTP needs none",
    "tokens list": "reads the settings of this process",
    "db check": "is /health over HTTP",
    "db print": "a schema is the business of whoever owns the database",
    "db create": "a schema is the business of whoever owns the database",
    "demo": "plays on a file of its own",
    "version": "is in /openapi.json",
}
ROUTES_ALONE = {
    "GET /health": "for load balancers; `db check` says the same",
    "GET /health/live": "for load balancers",
    "GET /health/ready": "for load balancers",
    "GET /metrics": "`dlq stats`, as Prometheus reads it",
    "GET /openapi.json": "describes the other routes",
}
METHODS_ALONE = {
    "plan_purge": "counts before somebody is asked; a dry run is the same over HTTP",
    "plan_replay": "counts before somebody is asked; a dry run is the same over HTTP",
    "wait_for_outcome": "the option `wait`",
    "need_subscription": "how an unknown name is told",
    "notes": "what is told beside an action",
    "once": "the header Idempotency-Key",
    "ping": "/health/ready",
    "print_command": "names a command in a remedy",
    "reconcile": "done by serve, and by who looks at a letter",
    "sweep": "done by serve",
    "schema_create": "db create",
    "schema_plan": "db print",
    "schema_state": "db check and /health",
}


def verbs():
    """Every verb of the command line, with its parser."""

    def walk(command, path):
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(path), command
        for name, one in (inner or {}).items():
            yield from walk(one, (*path, name))

    return dict(walk(typer.main.get_command(command_line), ()))


def routes():
    """Every route; the application needs no database to tell them."""
    app = make_app(Desk.__new__(Desk))
    return {f"{m} {r.path}" for r in app.routes for m in r.methods if m != "HEAD"}


def methods():
    return {name for name, _ in inspect.getmembers(Desk) if not name.startswith("_")}


def unmatched(verbs, routes, methods, table=TABLE):
    """What stands at one door and not in the table, and what the table has and no door."""
    told = {
        "verb": ({row.verb for row in table} | VERBS_ALONE.keys(), verbs),
        "route": ({r for row in table for r in row.routes} | ROUTES_ALONE.keys(), routes),
        "method": ({m for row in table for m in row.methods} | METHODS_ALONE.keys(), methods),
    }
    found = []
    for what, (known, live) in told.items():
        found += [f"{what} {name} has no partners in the table" for name in sorted(live - known)]
        found += [f"{what} {name} of the table does not exist" for name in sorted(known - live)]
    found += [f"{row.verb} lacks a partner" for row in table if not (row.routes and row.methods)]
    return found


def test_every_verb_has_its_route_and_its_method():
    """S2-38 S4-66: what a person decides at one door can be decided at each."""
    assert unmatched(set(verbs()), routes(), methods()) == []


@pytest.mark.parametrize("door", ["verb", "route", "method"])
def test_a_newcomer_without_partners_is_seen(door):
    doors = {"verb": set(verbs()), "route": routes(), "method": methods()}
    doors[door] |= {"another"}
    assert unmatched(*doors.values()) == [f"{door} another has no partners in the table"]
    assert unmatched(set(verbs()) - {"dlq list"}, routes(), methods())
    halved = (TABLE[0]._replace(routes=()), *TABLE[1:])
    assert "dlq list lacks a partner" in unmatched(set(verbs()), routes(), methods(), halved)


def test_nothing_stands_in_the_table_twice():
    for told in (
        [r for row in TABLE for r in row.routes],
        [m for row in TABLE for m in row.methods],
    ):
        assert len(told) == len(set(told))
    assert not {row.verb for row in TABLE} & VERBS_ALONE.keys()


FILTER = {"q", "subscription", "queue", "subscriber", "category", "state", "since", "until"}
CHANGE = {
    "change.patch",
    "change.transform",
    "change.set_headers",
    "change.unset_headers",
    "change.not_idempotent",
}
HTTP_NAMES = {
    "words": "q",
    "everything": "all",
    "reopen": "open",
    "dlq_ids": "ids",
    "kind": "as",
    "patch": "change.patch",
    "transform": "change.transform",
    "header": "change.set_headers",
    "unset_header": "change.unset_headers",
    "not_idempotent": "change.not_idempotent",
}
"""Arguments and options of the command line that HTTP calls otherwise, all else is the same."""

TERMINAL = {
    "yes": "nobody is asked over HTTP",
    "wide": "columns are a terminal's",
    "output": "an answer is the caller's to write down",
    "overwrite": "an answer is the caller's to write down",
}
HTTP = {
    "change.payload_text": "a whole body is `dlq edit --payload` on the command line",
    "change.payload_base64": "a whole body is `dlq edit --payload` on the command line",
    "cursor": "a large run, or the next page, over several requests",
    "offset": "Protean's",
}
OPTIONS = (
    ("dlq list", ("GET /api/dlq",)),
    ("dlq replay", ("POST /api/dlq/replay",)),
    ("dlq replay-all", ("POST /api/dlq/replay-all",)),
    ("dlq purge", ("DELETE /api/dlq", "POST /api/dlq/purge")),
    ("dlq restore", ("POST /api/dlq/restore",)),
    ("dlq mark", ("POST /api/dlq/mark",)),
    ("dlq groups", ("GET /api/dlq/groups",)),
    ("dlq stats", ("GET /api/dlq/stats",)),
    ("outbox list", ("GET /api/outbox",)),
    ("outbox cancel", ("POST /api/outbox/cancel",)),
)


def options_of(verb):
    """What a verb takes, in the words of HTTP."""
    given = {param.name for param in verbs()[verb].params} - set(ASKED) - {"help"} - TERMINAL.keys()
    if verb.startswith("outbox"):
        given = {"ids" if name == "row_ids" else name for name in given}
    named = {HTTP_NAMES.get(name, name) for name in given}
    # the ids of a purge stand where a filter would
    return named | ({"ids"} if verb == "dlq purge" else set())


def members_of(document, route):
    """What a route takes: parameters of the query, members of the body, those of `change` too."""
    method, path = route.split()
    operation = document["paths"][path][method.lower()]
    found = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
    for media in operation.get("requestBody", {}).get("content", {}).values():
        found |= _members(document, media["schema"])
    return found - HTTP.keys()


def _members(document, schema):
    for one in schema.get("anyOf", ()):
        found = _members(document, one)
        if found:
            return found
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    found = set()
    for name, inner in schema.get("properties", {}).items():
        nested = _members(document, inner) if name == "change" else set()
        found |= {f"{name}.{one}" for one in nested} or {name}
    return found


@pytest.mark.parametrize(("verb", "at"), OPTIONS, ids=[verb for verb, _ in OPTIONS])
def test_options_of_a_verb_are_members_of_its_route(verb, at):
    """S2-38: the same options, with `_`; what only one door has is named with its reason."""
    document = document_of(make_app(Desk.__new__(Desk)))
    members = set().union(*(members_of(document, route) for route in at))
    assert options_of(verb) == members


def test_the_comparison_of_options_can_see():
    document = document_of(make_app(Desk.__new__(Desk)))
    assert members_of(document, "GET /api/dlq") >= FILTER | {"limit"}
    assert members_of(document, "POST /api/dlq/replay") >= CHANGE | {"ids", "force", "wait"}
    assert options_of("dlq replay") >= CHANGE | {"ids", "force", "wait"}
    assert options_of("dlq list") >= FILTER | {"limit", "after"}
