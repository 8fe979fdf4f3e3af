"""The routes that change dead letters: replay, purge, restore, mark, edit.

In: ids or a filter, and how it is meant. Out: the documents of the desk. Many letters: 200 and what
became of each. One letter: what cannot be done is 404 or 409.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query

from outlast.api import replies, schemas
from outlast.api.answers import Document, ExactDocument
from outlast.api.asking import (
    BulkReplayBody,
    ChangedReplayBody,
    EditBody,
    Filter,
    IdsBody,
    MarkBody,
    MarkIdsBody,
    PurgeFilter,
    PurgeIdsBody,
    PurgeOptions,
    ReasonBody,
    ReplayIdsBody,
)
from outlast.api.auth import Call, Discarding, Editing, Replaying
from outlast.api.desk import (
    BARE,
    HEAVY,
    edit_of,
    id_of,
    need_filter,
    need_known,
    not_found,
    read_as,
    replay_options,
    with_outcome,
)
from outlast.api.dlq_looking import DlqId
from outlast.api.problems import Refused
from outlast.model.replay import BulkReplay
from outlast.ops import BadRequest, LetterNotFound
from outlast.ops.tally import BulkChange

router = APIRouter(prefix="/api/dlq", tags=["dead letters"])

PACED_SECONDS = 30
"""How long one request goes on at a `rate`; the cursor goes on after it."""

Change = Callable[[], Awaitable[BulkChange]]


@router.post("/replay-all", dependencies=[HEAVY], responses=replies.of(schemas.BulkReplayed, 404))
async def replay_all(
    call: Replaying, asked: Annotated[Filter, Query()], body: BulkReplayBody | None = None
) -> Document:
    """Replay all that the filter takes, at most 10,000 a request; `cursor` goes on."""
    said = body or BulkReplayBody()
    query, wanted = asked.query(), await replay_options(call, said)
    most = call.options.bulk_max
    if said.rate is not None:
        most = min(most, max(1, int(said.rate * PACED_SECONDS)))
    if said.cursor is None:
        need_filter(query, everything=said.all)

    async def run() -> Mapping[str, Any]:
        done = await call.desk.replay_all(
            call.actor,
            query,
            wanted,
            everything=said.all,
            cursor=said.cursor,
            most=most,
            rate=said.rate,
        )
        if not done.results:
            await need_known(call.desk, call.actor, asked)
        done, more = await with_outcome(call, done, said.wait)
        target = next(iter(done.by_queue)) if len(done.by_queue) == 1 else None
        if target is None and len(asked.subscription) == 1:
            target = asked.subscription[0]
        shown = {"status": "ok", "target_stream": target} | done.as_json() | more
        return shown if said.cursor else shown | read_as(query)

    return Document(await call.once("replayed", run, dry_run=said.dry_run))


@router.post("/replay", dependencies=[BARE, HEAVY], responses=replies.of(schemas.BulkReplayed))
async def replay_ids(call: Replaying, body: ReplayIdsBody) -> Document:
    """Replay dead letters by their ids."""
    wanted = await replay_options(call, body)

    async def run() -> Mapping[str, Any]:
        done = await call.desk.replay(call.actor, body.ids, wanted)
        done, more = await with_outcome(call, done, body.wait)
        return done.as_json() | more

    return Document(await call.once("replayed", run, dry_run=body.dry_run))


@router.post(
    "/{dlq_id}/replay", dependencies=[BARE], responses=replies.of(schemas.OneReplayed, 404, 409)
)
@router.post(
    "/id/{dlq_id}/replay", dependencies=[BARE], responses=replies.of(schemas.OneReplayed, 404, 409)
)
async def replay(call: Replaying, dlq_id: DlqId, body: ChangedReplayBody | None = None) -> Document:
    """Replay one dead letter; 409 with `gate` where a gate refuses it."""
    said = body or ChangedReplayBody()
    wanted = await replay_options(call, said)

    async def run() -> Mapping[str, Any]:
        done = await call.desk.replay(call.actor, [id_of(dlq_id)], wanted)
        done, more = await with_outcome(call, done, said.wait)
        return _one_replay(dlq_id, done) | more

    return Document(await call.once("replayed", run, dry_run=said.dry_run))


def _one_replay(text: str, done: BulkReplay) -> dict[str, Any]:
    result = done.results[0]
    shown = result.as_json()
    if result.outcome in {"replayed", "would_replay"}:
        is_sent = result.outcome == "replayed"
        said = {"status": "ok", "replayed": is_sent, "target_stream": result.queue}
        return said | shown | ({} if is_sent else {"dry_run": True})
    raise _cannot(text, shown)


def _cannot(text: str, result: Mapping[str, Any]) -> Refused:
    """Why one letter stays as it is: it is not there, or its state or a gate is against it."""
    reason = str(result.get("reason") or "this cannot be done now")
    if reason.endswith("not found."):
        return not_found(text)
    told = {name: result[name] for name in ("gate", "remedy", "outcome") if name in result}
    return Refused(HTTPStatus.CONFLICT, reason, told)


@router.delete("", dependencies=[HEAVY], responses=replies.of(schemas.Purged, 404))
async def purge_all(call: Discarding, asked: Annotated[PurgeFilter, Query()]) -> Document:
    """Purge all that the filter takes, at most 10,000 a request; `cursor` goes on."""
    query = asked.query()
    if asked.cursor is None:
        need_filter(query, everything=asked.all)

    async def run() -> Mapping[str, Any]:
        done = await call.desk.purge_all(
            call.actor,
            query,
            reason=asked.reason,
            hard=asked.hard,
            dry_run=asked.dry_run,
            everything=asked.all,
            cursor=asked.cursor,
            most=call.options.bulk_max,
        )
        if not done.results:
            await need_known(call.desk, call.actor, asked)
        shown = {"status": "ok"} | done.as_json()
        return shown if asked.cursor else shown | read_as(query)

    return Document(await call.once("discarded", run, dry_run=asked.dry_run))


@router.post("/purge", dependencies=[BARE, HEAVY], responses=replies.of(schemas.Purged))
async def purge_ids(call: Discarding, body: PurgeIdsBody) -> Document:
    """Purge dead letters by their ids."""
    change = _purge(call, body.ids, body)
    return await _changed(call, "discarded", change, dry_run=body.dry_run)


@router.post(
    "/id/{dlq_id}/purge", dependencies=[BARE], responses=replies.of(schemas.OneChanged, 404, 409)
)
async def purge(call: Discarding, dlq_id: DlqId, body: PurgeOptions | None = None) -> Document:
    """Purge one dead letter."""
    how = body or PurgeOptions()
    change = _purge(call, [id_of(dlq_id)], how)
    return await _changed(call, "discarded", change, one=dlq_id, dry_run=how.dry_run)


def _purge(call: Call, ids: list[int], how: PurgeOptions) -> Change:
    return partial(
        call.desk.purge,
        call.actor,
        ids,
        reason=how.reason,
        hard=how.hard,
        dry_run=how.dry_run,
    )


@router.post("/restore", dependencies=[BARE, HEAVY], responses=replies.of(schemas.Changed))
async def restore_ids(call: Discarding, body: IdsBody) -> Document:
    """Bring purged letters back."""
    change = partial(call.desk.restore, call.actor, body.ids, reason=body.reason)
    return await _changed(call, "restored", change)


@router.post(
    "/id/{dlq_id}/restore", dependencies=[BARE], responses=replies.of(schemas.OneChanged, 404, 409)
)
async def restore(call: Discarding, dlq_id: DlqId, body: ReasonBody | None = None) -> Document:
    """Bring one purged letter back."""
    reason = None if body is None else body.reason
    change = partial(call.desk.restore, call.actor, [id_of(dlq_id)], reason=reason)
    return await _changed(call, "restored", change, one=dlq_id)


@router.post("/mark", dependencies=[BARE, HEAVY], responses=replies.of(schemas.Changed))
async def mark_ids(call: Editing, body: MarkIdsBody) -> Document:
    """Open letters again, or say something about them."""
    return await _changed(call, "noted", _mark(call, body.ids, body))


@router.post(
    "/id/{dlq_id}/mark", dependencies=[BARE], responses=replies.of(schemas.OneChanged, 404, 409)
)
async def mark(call: Editing, dlq_id: DlqId, body: MarkBody) -> Document:
    """Open one letter again, or say something about it."""
    return await _changed(call, "noted", _mark(call, [id_of(dlq_id)], body), one=dlq_id)


def _mark(call: Call, ids: list[int], body: MarkBody) -> Change:
    return partial(
        call.desk.mark,
        call.actor,
        ids,
        reopen=body.open,
        review=body.review,
        owner=body.owner,
        triage=body.triage,
        note=body.note,
        reason=body.reason,
    )


async def _changed(
    call: Call, kind: str, change: Change, *, one: str | None = None, dry_run: bool = False
) -> Document:
    """`one`: the letter that the path names; what cannot be done to it is refused."""

    async def run() -> Mapping[str, Any]:
        done = await change()
        said: dict[str, Any] = {"status": "ok"}
        if one is None:
            return said | done.as_json()
        result = done.results[0].as_json()
        if not done.done:
            raise _cannot(one, result)
        return said | {done.verb: True} | result | ({"dry_run": True} if done.dry_run else {})

    return Document(await call.once(kind, run, dry_run=dry_run))


@router.post(
    "/id/{dlq_id}/edit", dependencies=[BARE], responses=replies.of(schemas.Edited, 404, 409, 412)
)
async def edit(
    call: Editing,
    dlq_id: DlqId,
    body: EditBody,
    if_match: Annotated[
        str | None,
        Header(max_length=300, description="The ETag that was seen; 412 if the letter changed."),
    ] = None,
) -> ExactDocument:
    """Add a revision; the original is kept, and a replay sends the newest."""
    change, expected = await edit_of(call, body), _expected(if_match)

    async def run() -> Mapping[str, Any]:
        try:
            done = await call.desk.edit(
                call.actor,
                id_of(dlq_id),
                change,
                expected=expected,
                reason=body.reason,
                dry_run=body.dry_run,
            )
        except LetterNotFound:
            raise not_found(dlq_id) from None
        return {"status": "ok"} | done.as_json()

    answer = await call.once("edited", run, dry_run=body.dry_run)
    return ExactDocument(answer, headers={"ETag": f'"{answer["etag"]}"'})


def _expected(if_match: str | None) -> str | None:
    if if_match is None or if_match.strip() == "*":
        return None
    tag = if_match.strip()
    if not (len(tag) > 1 and tag[0] == tag[-1] == '"' and '"' not in tag[1:-1]):
        raise BadRequest('If-Match takes one ETag in double quotes, as If-Match: "…"')
    return tag[1:-1]
