"""Dead letters out of the desk and into it: export, streamed, and import.

In: a filter, or the documents of an export. Out: a stream, or what became of each document.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from outlast.api import replies, schemas
from outlast.api.answers import Document
from outlast.api.asking import ExportBody, ExportFilter, Filter, ImportOptions, Kind
from outlast.api.auth import Editing, Inspector
from outlast.api.desk import HEAVY, TheDesk
from outlast.model.query import Query as Question
from outlast.ops import Actor, BadRequest, Desk

router = APIRouter(prefix="/api/dlq", tags=["dead letters"])

_MEDIA: Mapping[Kind, tuple[str, str]] = {
    "json": ("application/json", "json"),
    "jsonl": ("application/x-ndjson", "jsonl"),
    "csv": ("text/csv; charset=utf-8", "csv"),
    "pytest": ("text/x-python; charset=utf-8", "py"),
}
_IMPORTED = {
    "requestBody": {
        "required": True,
        "description": "The documents of an export, as JSON or as JSON lines.",
        "content": {
            "application/json": {"schema": {}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}


@router.get("/export", dependencies=[HEAVY], responses=replies.EXPORTED)
async def export(
    desk: TheDesk, actor: Inspector, asked: Annotated[ExportFilter, Query()]
) -> StreamingResponse:
    """The dead letters that the filter takes, one document each, masked."""
    return await _stream(desk, actor, asked.query(), asked.kind)


@router.post("/export", dependencies=[HEAVY], responses=replies.EXPORTED)
async def export_revealed(
    desk: TheDesk, actor: Inspector, asked: Annotated[Filter, Query()], body: ExportBody
) -> StreamingResponse:
    """The dead letters that the filter takes; `reveal` unmasks (scope `reveal`) and is recorded."""
    query = asked.query()
    return await _stream(desk, actor, query, body.kind, reveal=body.reveal, reason=body.reason)


@router.post(
    "/import", dependencies=[HEAVY], responses=replies.of(schemas.Imported), openapi_extra=_IMPORTED
)
async def import_letters(call: Editing, asked: Annotated[ImportOptions, Query()]) -> Document:
    """Add the letters of an export. Masked ones are refused."""
    try:
        text = (await call.request.body()).decode()
    except UnicodeDecodeError:
        raise BadRequest("the body is not UTF-8") from None

    async def run() -> Mapping[str, Any]:
        done = await call.desk.import_letters(
            call.actor, text, reason=asked.reason, dry_run=asked.dry_run
        )
        return {"status": "ok"} | done.as_json()

    return Document(await call.once("imported", run, dry_run=asked.dry_run))


async def _stream(
    desk: Desk,
    actor: Actor,
    query: Question,
    kind: Kind,
    *,
    reveal: bool = False,
    reason: str | None = None,
) -> StreamingResponse:
    parts = desk.export(actor, query, kind=kind, reveal=reveal, reason=reason)
    # what is refused is refused before the response has begun
    first = await anext(parts, "")
    media, suffix = _MEDIA[kind]
    name = f'attachment; filename="dead-letters.{suffix}"'
    return StreamingResponse(
        _bytes(first, parts), media_type=media, headers={"Content-Disposition": name}
    )


async def _bytes(first: str, rest: AsyncIterator[str]) -> AsyncIterator[bytes]:
    yield first.encode("utf-8", "replace")
    async for part in rest:
        yield part.encode("utf-8", "replace")
