"""What the routes share: the desk behind the application, one answer per request, slots.

In: a request. Out: the desk, its documents, refusals in the desk's own words.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Request

from outlast.api.asking import Change, Filter, ReplayBody
from outlast.api.options import ApiOptions
from outlast.api.payloads import bytes_of, patch_in
from outlast.api.problems import Refused
from outlast.model.edit import Edit
from outlast.model.query import Query
from outlast.model.replay import BulkReplay
from outlast.ops import Actor, BadRequest, Desk
from outlast.ops.replaying import ReplayOptions
from outlast.ops.subscriptions import UnknownSubscription
from outlast.ops.transforms import load_transform
from outlast.policy.filter_text import render

_ID_DIGITS_MAX = 30
_KNOWN_TOLD = 100


def desk_of(request: Request) -> Desk:
    """The desk of this application."""
    desk: Desk = request.app.state.desk
    return desk


def options_of(request: Request) -> ApiOptions:
    """The options of this application."""
    options: ApiOptions = request.app.state.options
    return options


async def heavy(request: Request) -> AsyncIterator[None]:
    """A slot for what reads or changes many letters; 429 when all are taken."""
    state = request.app.state
    if state.heavy >= state.options.heavy_max:
        raise Refused(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"{state.heavy} requests on many letters are under way; come again",
            headers={"Retry-After": "1"},
        )
    state.heavy += 1
    try:
        yield
    finally:
        state.heavy -= 1


def no_parameters(request: Request) -> None:
    """What stands in the URL of a route that reads nothing there was meant for another one."""
    for name in request.query_params:
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{request.scope['path']} takes no parameter {name[:100]!r}",
        )


TheDesk = Annotated[Desk, Depends(desk_of)]
TheOptions = Annotated[ApiOptions, Depends(options_of)]
HEAVY = Depends(heavy)
BARE = Depends(no_parameters)


async def once(
    desk: Desk,
    actor: Actor,
    request: Request,
    kind: str,
    run: Callable[[], Awaitable[Mapping[str, Any]]],
    *,
    dry_run: bool = False,
) -> Mapping[str, Any]:
    """Run it, or answer as the first time this key came. The bytes of a request are its meaning."""
    if actor.request_id is None or dry_run:
        return await run()
    body = hashlib.sha256(await request.body()).hexdigest()
    asked = [
        request.method,
        request.scope["path"],
        request.scope["query_string"].decode("latin-1"),
        body,
    ]
    return await desk.once(actor, kind, asked, run)


def id_of(text: str) -> int:
    """The id that a path names; 0 for what is none."""
    if text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS_MAX:
        return int(text)
    return 0


def not_found(text: str) -> Refused:
    """404, with the id as it was written."""
    shown = text[:100]
    return Refused(
        HTTPStatus.NOT_FOUND,
        f"DLQ message '{shown}' not found",
        {"remedy": "GET /api/dlq lists what is there"},
    )


def need_filter(query: Query, *, everything: bool) -> None:
    """Refuse to act on all letters unless that was said."""
    if query.is_empty and not everything:
        raise BadRequest(
            "without a filter this would take every letter", 'give a filter, or say "all": true'
        )


async def need_known(desk: Desk, actor: Actor, asked: Filter) -> None:
    """404 for a subscription that nobody and nothing names. For answers that are empty."""
    if not asked.subscription or "inspect" not in actor.scopes:
        return
    try:
        await desk.need_subscription(actor, *asked.subscription)
    except UnknownSubscription as error:
        raise Refused(
            HTTPStatus.NOT_FOUND,
            f"No subscription for '{error.name[:255]}'",
            {"known": list(error.known[:_KNOWN_TOLD])},
        ) from None


async def replay_options(
    request: Request, actor: Actor, body: ReplayBody, options: ApiOptions
) -> ReplayOptions:
    """How a replay is meant, checked before anything is done."""
    if body.wait is not None:
        actor.needs("inspect", "see what becomes of a replay")
    change: Change | None = getattr(body, "change", None)
    edit = None if change is None else await edit_of(request, change, options, "change")
    return ReplayOptions(
        to=body.to,
        original=body.original,
        dry_run=body.dry_run,
        force=body.force,
        reason=body.reason,
        include_poison=body.include_poison,
        edit=edit,
    )


async def edit_of(request: Request, change: Change, options: ApiOptions, *steps: str) -> Edit:
    """What becomes of a message; `steps` lead to it in the body of the request.

    Of the server's own code only what its settings name is run.
    """
    transform = None
    if change.transform is not None:
        if change.transform not in options.transforms:
            raise BadRequest(
                "this transform is not among those that requests may use",
                "name it in the setting transforms of the server",
            )
        transform = load_transform(change.transform)
    return Edit(
        payload=bytes_of(change.payload_text, change.payload_base64),
        patch=None if change.patch is None else patch_in(await request.body(), *steps),
        transform=transform,
        set_headers=change.set_headers,
        unset_headers=tuple(change.unset_headers),
        not_idempotent=change.not_idempotent,
    )


async def with_outcome(
    desk: Desk, actor: Actor, done: BulkReplay, seconds: float | None
) -> tuple[BulkReplay, dict[str, Any]]:
    """The result with what became of it within this time, if that was asked for."""
    sent = [result.dlq_id for result in done.results if result.outcome == "replayed"]
    if seconds is None or not sent:
        return done, {}
    waited = await desk.wait_for_outcome(actor, sent, seconds)
    told = {str(letter_id): note for letter_id, note in waited.notes.items()}
    more: dict[str, Any] = {"unserved": list(waited.unserved or ())}
    return waited.told_in(done), more | ({"outcome_notes": told} if told else {})


def read_as(query: Query) -> dict[str, Any]:
    """The filter as it was understood, times in UTC."""
    return {"filter": render(query)}
