"""The routes on live rows, on what is subscribed, and on the workers that were seen.

In: ids of rows. Out: the documents of the desk. Looking never changes a row.
"""

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from outlast.api import replies, schemas
from outlast.api.answers import Document, ExactDocument
from outlast.api.asking import LIMIT_MAX, Filter, IdsBody, ReasonBody
from outlast.api.auth import Call, Inspector, Replaying
from outlast.api.desk import BARE, HEAVY, TheDesk, id_of, read_as
from outlast.api.problems import Refused, is_word, not_here
from outlast.ops import Actor, Desk, LetterNotFound
from outlast.ops.views import worker_json

router = APIRouter(prefix="/api", tags=["outbox"])

RowId = Annotated[str, Path(max_length=100, description="The id of a row.", examples=["4711"])]


class RowPage(Filter):
    """A page of live rows."""

    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 25
    after: Annotated[int, Field(ge=0, lt=2**63, description="Go on behind this id.")] = 0


@router.get("/outbox", responses=replies.of(schemas.RowList))
async def list_rows(desk: TheDesk, actor: Inspector, page: Annotated[RowPage, Query()]) -> Document:
    """Live messages by id."""
    query = page.query(rows=True)
    found = await desk.outbox_list(actor, query, limit=page.limit, after=page.after)
    return Document(found.as_json() | read_as(query))


@router.post(
    "/outbox/cancel", dependencies=[BARE, HEAVY], responses=replies.of(schemas.RowsChanged)
)
async def cancel_ids(call: Replaying, body: IdsBody) -> Document:
    """Take messages back that no worker holds; a replayed letter is open again."""

    async def run() -> Mapping[str, Any]:
        return {"status": "ok", "results": await _cancel(call, body.ids, body.reason)}

    return Document(await call.once("recalled", run))


@router.post(
    "/outbox/run-now", dependencies=[BARE, HEAVY], responses=replies.of(schemas.RowsChanged)
)
async def run_ids_now(call: Replaying, body: IdsBody) -> Document:
    """Make waiting messages due at once."""

    async def run() -> Mapping[str, Any]:
        return {"status": "ok", "results": await _run_now(call, body.ids)}

    return Document(await call.once("replayed", run))


async def inspect_row(desk: TheDesk, actor: Inspector, row_id: RowId, request: Request) -> Document:
    """One live message with its body, masked."""
    if is_word(request):
        return not_here(request)
    return await _inspect(desk, actor, row_id)


@router.get("/outbox/id/{row_id}", dependencies=[BARE], responses=replies.of(schemas.RowWhole, 404))
@router.get(
    "/outbox/id/{row_id}/inspect", dependencies=[BARE], responses=replies.of(schemas.RowWhole, 404)
)
async def inspect_row_by_id(desk: TheDesk, actor: Inspector, row_id: RowId) -> Document:
    """One live message with its body, masked."""
    return await _inspect(desk, actor, row_id)


async def _inspect(desk: Desk, actor: Actor, text: str) -> Document:
    try:
        found = await desk.outbox_inspect(actor, id_of(text))
    except LetterNotFound as error:
        raise _row_not_found(text, error.remedy) from None
    return ExactDocument(found.as_json())


@router.post(
    "/outbox/id/{row_id}/cancel",
    dependencies=[BARE],
    responses=replies.of(schemas.RowChanged, 404, 409),
)
async def cancel(call: Replaying, row_id: RowId, body: ReasonBody | None = None) -> Document:
    """Take one message back; 409 while a worker holds it."""
    reason = None if body is None else body.reason

    async def run() -> Mapping[str, Any]:
        return _one(row_id, await _cancel(call, [id_of(row_id)], reason))

    return Document(await call.once("recalled", run))


@router.post(
    "/outbox/id/{row_id}/run-now",
    dependencies=[BARE],
    responses=replies.of(schemas.RowChanged, 404, 409),
)
async def run_now(call: Replaying, row_id: RowId) -> Document:
    """Make one waiting message due at once; 409 while a worker holds it."""

    async def run() -> Mapping[str, Any]:
        if id_of(row_id):
            # whoever may run a row may know whether it is there
            looker = replace(call.actor, scopes=call.actor.scopes | {"inspect"})
            await call.desk.outbox_inspect(looker, id_of(row_id))
        return _one(row_id, await _run_now(call, [id_of(row_id)]))

    return Document(await call.once("replayed", run))


async def _cancel(call: Call, ids: list[int], reason: str | None) -> list[dict[str, Any]]:
    answers = await call.desk.outbox_cancel(call.actor, ids, reason=reason)
    return [answer.as_json() for answer in answers]


async def _run_now(call: Call, ids: list[int]) -> list[dict[str, Any]]:
    answers = await call.desk.outbox_run_now(call.actor, ids)
    return [
        {"row_id": row_id, "outcome": "due" if is_due else "not_waiting"}
        for row_id, is_due in answers.items()
    ]


def _one(text: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    outcome = results[0]["outcome"] if results else "not_found"
    if outcome == "not_found":
        raise _row_not_found(text, None)
    if outcome in {"in_hand", "not_waiting"}:
        reason = results[0].get(
            "reason", f"row {text} is in a worker's hands; wait for its outcome"
        )
        raise Refused(HTTPStatus.CONFLICT, reason, {"outcome": outcome})
    return {"status": "ok"} | results[0]


def _row_not_found(text: str, remedy: str | None) -> Refused:
    return Refused(
        HTTPStatus.NOT_FOUND,
        f"outbox row {text[:100]} not found: it was delivered, died, or never was",
        {"remedy": remedy} if remedy else {},
    )


@router.get("/subscriptions", dependencies=[BARE], responses=replies.of(schemas.SubscriptionList))
async def subscriptions(desk: TheDesk, actor: Inspector) -> Document:
    """Queues and handlers: who serves them, in which version, how deep they are."""
    return Document((await desk.subscriptions(actor)).as_json())


@router.get("/workers", dependencies=[BARE], responses=replies.of(schemas.WorkerList))
async def workers(desk: TheDesk, actor: Inspector) -> Document:
    """The workers that were seen."""
    seen = await desk.workers(actor)
    items = [worker_json(worker) for worker in seen or ()]
    return Document({"items": items, "total": len(items), "recorded": seen is not None})
