"""What the routes share: the desk behind the application, letters, changes, slots.

In: a request. Out: the desk, its documents, refusals in the desk's own words. A new body is a text
or base64, never a JSON value, so that nothing of it is lost on the way.
"""

import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Request

from outlast.api.asking import Change, ChangedReplayBody, Filter
from outlast.api.auth import Call
from outlast.api.problems import Refused
from outlast.model.edit import Edit
from outlast.model.letter_view import LetterView
from outlast.model.query import Query
from outlast.model.replay import BulkReplay
from outlast.ops import Actor, BadRequest, Desk, LetterNotFound
from outlast.ops.replaying import ReplayOptions
from outlast.ops.subscriptions import UnknownSubscription
from outlast.ops.transforms import load_transform
from outlast.ops.views import LetterDetail
from outlast.policy.exact_json import NotJson, Unkept, loads
from outlast.policy.filter_text import render

_ID_DIGITS_MAX = 30
_KNOWN_TOLD = 100


def desk_of(request: Request) -> Desk:
    """The desk of this application."""
    desk: Desk = request.app.state.desk
    return desk


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
HEAVY = Depends(heavy)
BARE = Depends(no_parameters)


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


async def detail_of(
    desk: Desk, actor: Actor, text: str, *, reveal: bool = False, reason: str | None = None
) -> LetterDetail:
    """The letter that a path names, or 404."""
    try:
        return await desk.inspect(actor, id_of(text), reveal=reveal, reason=reason)
    except LetterNotFound:
        raise not_found(text) from None


async def details_of(desk: Desk, actor: Actor, letters: Iterable[LetterView]) -> list[LetterDetail]:
    """The letters of a list whole; one that is gone since is none of the list's any more."""
    found = []
    for letter in letters:
        with contextlib.suppress(LetterNotFound):
            found.append(await desk.inspect(actor, letter.id))
    return found


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


async def replay_options(call: Call, body: ChangedReplayBody) -> ReplayOptions:
    """How a replay is meant, checked before anything is done."""
    if body.wait is not None:
        call.actor.needs("inspect", "see what becomes of a replay")
    return ReplayOptions(
        to=body.to,
        original=body.original,
        dry_run=body.dry_run,
        force=body.force,
        reason=body.reason,
        include_poison=body.include_poison,
        edit=None if body.change is None else await edit_of(call, body.change, "change"),
    )


async def edit_of(call: Call, change: Change, *steps: str) -> Edit:
    """What becomes of a message; `steps` lead to it in the body of the request.

    Of the server's own code only what its settings name is run.
    """
    transform = None
    if change.transform is not None:
        if change.transform not in call.options.transforms:
            raise BadRequest(
                "this transform is not among those that requests may use",
                "name it in the setting transforms of the server",
            )
        transform = load_transform(change.transform)
    has_patch = change.patch is not None
    return Edit(
        payload=_bytes_of(change.payload_text, change.payload_base64),
        patch=_patch_in(await call.request.body(), *steps) if has_patch else None,
        transform=transform,
        set_headers=change.set_headers,
        unset_headers=tuple(change.unset_headers),
        not_idempotent=change.not_idempotent,
    )


def _bytes_of(text: str | None, encoded: str | None) -> bytes | None:
    """The new body; None: it stays."""
    if text is not None and encoded is not None:
        raise BadRequest("payload_text and payload_base64 are two ways to say one thing")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("payload_base64 is no base64") from None
    if text is None:
        return None
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRequest("payload_text has half a character in it") from None


def _patch_in(body: bytes, *steps: str) -> tuple[Mapping[str, Any], ...]:
    """The member `patch` of a request that was read before, exactly."""
    try:
        found: Any = loads(body)
    except (NotJson, Unkept) as error:
        raise BadRequest(f"the patch cannot be read: {error}") from None
    for step in (*steps, "patch"):
        found = found[step]
    return tuple(found)


async def with_outcome(
    call: Call, done: BulkReplay, seconds: float | None
) -> tuple[BulkReplay, dict[str, Any]]:
    """The result with what became of it within this time, if that was asked for."""
    sent = [result.dlq_id for result in done.results if result.outcome == "replayed"]
    if seconds is None or not sent:
        return done, {}
    waited = await call.desk.wait_for_outcome(call.actor, sent, seconds)
    told = {str(letter_id): note for letter_id, note in waited.notes.items()}
    more: dict[str, Any] = {"unserved": list(waited.unserved or ())}
    return waited.told_in(done), more | ({"outcome_notes": told} if told else {})


def read_as(query: Query) -> dict[str, Any]:
    """The filter as it was understood, times in UTC."""
    return {"filter": render(query)}
