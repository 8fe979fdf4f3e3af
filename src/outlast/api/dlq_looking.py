"""The routes that look at dead letters. None of them writes; what reveals a secret is a POST.

In: a filter or an id. Out: the documents of the desk, Protean's keys among them.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request

from outlast.api import replies, schemas
from outlast.api.answers import Document, ExactDocument
from outlast.api.asking import Filter, GroupsPage, InspectBody, Page
from outlast.api.auth import Inspector
from outlast.api.desk import (
    BARE,
    HEAVY,
    TheDesk,
    detail_of,
    details_of,
    id_of,
    need_known,
    not_found,
    read_as,
)
from outlast.api.problems import is_word, not_here
from outlast.ops import BadRequest, LetterNotFound
from outlast.ops.views import LetterDetail, history_json, stats_json

router = APIRouter(prefix="/api/dlq", tags=["dead letters"])

INSPECT_MAX = 50

DlqId = Annotated[str, Path(max_length=100, description="A DLQ id.", examples=["17"])]


class InspectPage(Filter):
    """How many letters are shown whole."""

    limit: int = 10


@router.get("", responses=replies.of(schemas.LetterList, 404))
async def list_letters(desk: TheDesk, actor: Inspector, page: Annotated[Page, Query()]) -> Document:
    """Dead letters, the newest failure first."""
    if page.cursor is not None and page.after is not None:
        raise BadRequest("cursor and after are two words for one thing")
    query = page.query()
    after = page.cursor if page.cursor is not None else page.after
    found = await desk.list(actor, query, limit=page.limit, offset=page.offset, after=after)
    if not found.total:
        await need_known(desk, actor, page)
    document = found.as_json() | read_as(query)
    entries = {"entries": document["items"], "total_count": document["total"]}
    return Document(entries | document)


@router.get("/stats", dependencies=[HEAVY], responses=replies.of(schemas.StatsDocument))
async def stats(desk: TheDesk, actor: Inspector, asked: Annotated[Filter, Query()]) -> Document:
    """Depth, ages, arrivals and causes."""
    query = asked.query()
    return Document(stats_json(await desk.stats(actor, query)) | read_as(query))


@router.get("/groups", dependencies=[HEAVY], responses=replies.of(schemas.GroupList))
async def groups(
    desk: TheDesk, actor: Inspector, asked: Annotated[GroupsPage, Query()]
) -> Document:
    """Dead letters by cause, the commonest first."""
    query = asked.query()
    found = await desk.groups(actor, query, limit=asked.limit)
    return Document(found.as_json() | read_as(query))


@router.get("/inspect", dependencies=[HEAVY], responses=replies.of(schemas.DetailList))
async def inspect_some(
    desk: TheDesk, actor: Inspector, asked: Annotated[InspectPage, Query()]
) -> ExactDocument:
    """The newest dead letters that the filter takes, each with its body."""
    if not 1 <= asked.limit <= INSPECT_MAX:
        raise BadRequest(f"limit is 1 to {INSPECT_MAX}, got {asked.limit}")
    query = asked.query()
    page = await desk.list(actor, query, limit=asked.limit)
    details = await details_of(desk, actor, page.letters)
    shown = {"items": [detail.as_json() for detail in details]}
    return ExactDocument(page.as_json() | shown | read_as(query))


@router.get("/id/{dlq_id}", dependencies=[BARE], responses=replies.of(schemas.LetterDocument, 404))
@router.get(
    "/id/{dlq_id}/inspect", dependencies=[BARE], responses=replies.of(schemas.LetterDocument, 404)
)
async def inspect(desk: TheDesk, actor: Inspector, dlq_id: DlqId) -> ExactDocument:
    """Everything about one dead letter, masked."""
    detail = await detail_of(desk, actor, dlq_id)
    return _tagged(detail, detail.as_json())


@router.post(
    "/id/{dlq_id}/inspect", dependencies=[BARE], responses=replies.of(schemas.LetterDocument, 404)
)
async def inspect_revealed(
    desk: TheDesk, actor: Inspector, dlq_id: DlqId, body: InspectBody
) -> ExactDocument:
    """Everything about one dead letter; `reveal` unmasks (scope `reveal`) and is recorded."""
    detail = await detail_of(desk, actor, dlq_id, reveal=body.reveal, reason=body.reason)
    return _tagged(detail, detail.as_json())


@router.get(
    "/id/{dlq_id}/history", dependencies=[BARE], responses=replies.of(schemas.HistoryList, 404)
)
async def history(desk: TheDesk, actor: Inspector, dlq_id: DlqId) -> Document:
    """What happened to a dead letter, also to one that is gone. `items` null: not recorded."""
    try:
        found = await desk.history(actor, id_of(dlq_id))
    except LetterNotFound:
        raise not_found(dlq_id) from None
    items = None if found is None else [history_json(entry) for entry in found]
    return Document({"items": items, "total": len(found or ())})


async def protean_letter(
    desk: TheDesk, actor: Inspector, dlq_id: DlqId, request: Request
) -> Document:
    """One dead letter with Protean's keys; `payload` is the body itself, `body` tells about it."""
    if is_word(request):
        return not_here(request)
    detail = await detail_of(desk, actor, dlq_id)
    document = detail.as_json()
    shown = document["payload"]
    return _tagged(detail, document | {"payload": shown.pop("value"), "body": shown})


def _tagged(detail: LetterDetail, document: dict[str, Any]) -> ExactDocument:
    return ExactDocument(document, headers={"ETag": f'"{detail.etag}"'})
