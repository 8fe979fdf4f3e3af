"""Keymate's routes: its words for what the desk does.

In: its filters. Out: its documents. A subscriber is the handler's name or, where no letter names
it, a queue. FAILED: open, in review, escalated, replaying; PROCESSED: resolved.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, StringConstraints, model_validator

from outlast.api import replies
from outlast.api.answers import Document, ExactDocument
from outlast.api.asking import Cursor, Form, Reason
from outlast.api.auth import Inspector, Replaying
from outlast.api.desk import BARE, HEAVY, TheDesk, detail_of, details_of, need_filter, read_as
from outlast.api.dlq_looking import DlqId
from outlast.api.problems import Refused
from outlast.api.schemas import HistoryEntry, Json, Maybe
from outlast.model.query import Condition, FilterError, Word
from outlast.model.query import Query as Question
from outlast.ops import Actor, BadRequest, Desk
from outlast.ops.replaying import ReplayOptions
from outlast.ops.views import LetterDetail, history_json, iso
from outlast.policy.filter_scan import quoted
from outlast.policy.filter_text import parse

router = APIRouter(tags=["Keymate"])

SIZE_MAX, SIZE_DEFAULT = 100, 20
MESSAGES_MAX = 100
_LETTERS_OF_ONE = 1000
_OFFSET_MAX = 10_000

_Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
_WORDS = {
    "messageId": "message",
    "errorMessage": "error",
    "startDate": "since",
    "endDate": "until",
}
_ANYWHERE = Word("state", (Condition("=", "any"),))
_FAILED = ("open", "needs_review", "escalated", "replaying")
_STATES: Mapping[str, tuple[str, ...]] = {
    "FAILED": _FAILED,
    "PROCESSED": ("resolved",),
    "ANY": ("any",),
}


class Criteria(Form):
    """Which dead letters, in Keymate's words."""

    messageId: _Text | None = None  # noqa: N815 - Keymate's spelling, here and below
    subscriberId: _Text | None = None  # noqa: N815
    errorMessage: _Text | None = None  # noqa: N815
    startDate: Annotated[  # noqa: N815
        str | None, Field(max_length=100, description="Inclusive; without a zone it is UTC.")
    ] = None
    endDate: Annotated[str | None, Field(max_length=100, description="Exclusive.")] = None  # noqa: N815


class DltPage(Criteria):
    """A page of dead letters. A dead letter is never NEW."""

    status: Literal["NEW", "FAILED", "PROCESSED", "ANY"] = "FAILED"
    page: Annotated[int, Field(ge=0, le=_OFFSET_MAX, description="From 0.")] = 0
    size: Annotated[int, Field(ge=1, le=SIZE_MAX)] = SIZE_DEFAULT


class ReplayCriteria(Criteria):
    """The same filters; only what failed can be replayed."""

    status: Literal["FAILED"] = "FAILED"


class DltReplay(Form):
    """One message, several, or all that the criteria take."""

    messageId: _Text | None = None  # noqa: N815
    messageIds: Annotated[list[_Text] | None, Field(min_length=1, max_length=MESSAGES_MAX)] = None  # noqa: N815
    criteria: ReplayCriteria | None = None
    subscriberId: Annotated[  # noqa: N815
        _Text | None, Field(description="Only this subscriber's letters of the messages.")
    ] = None
    all: Annotated[bool, Field(description="Every letter; in place of criteria.")] = False
    reason: Reason = None
    cursor: Cursor = None

    @model_validator(mode="after")
    def _one_way(self) -> "DltReplay":
        ways = (self.messageId, self.messageIds, self.criteria, self.cursor)
        if sum(way is not None for way in ways) + self.all != 1:
            raise ValueError("say one of messageId, messageIds, criteria, all, cursor")
        return self


class DltMessage(BaseModel):
    """A dead letter in Keymate's words. `endpoint` is the queue."""

    id: int
    messageId: Maybe  # noqa: N815
    eventType: Maybe  # noqa: N815
    subscriberId: Maybe  # noqa: N815
    endpoint: str
    payload: Json
    errorCode: Maybe  # noqa: N815
    errorMessage: Maybe  # noqa: N815
    errorCause: Maybe  # noqa: N815
    status: str = Field(examples=["FAILED"])
    resolution: Maybe
    createdAt: Maybe  # noqa: N815
    processedAt: Maybe  # noqa: N815
    firstFailedAt: Maybe  # noqa: N815
    lastFailedAt: Maybe  # noqa: N815
    attempts: int | None


class DltList(BaseModel):
    """A page, the newest failure first."""

    items: list[DltMessage]
    total: int
    total_is: str = Field(examples=["exact"])
    page: int
    size: int
    filter: str


class DltDetail(DltMessage):
    """With its history; null: not recorded."""

    history: list[HistoryEntry] | None


class DltResult(BaseModel):
    """What became of one message."""

    messageId: Maybe  # noqa: N815
    outcome: str = Field(examples=["replayed"])
    error: str | None = None


class DltReplayed(BaseModel):
    """`requested` letters and ids; each has a result."""

    requested: int
    replayed: int
    failed: int
    skipped: int
    results: list[DltResult]
    more: bool = False
    cursor: str | None = None


@router.get("/dlt-messages", dependencies=[HEAVY], responses=replies.of(DltList))
async def dlt_messages(
    desk: TheDesk, actor: Inspector, asked: Annotated[DltPage, Query()]
) -> ExactDocument:
    """Dead letters, the newest failure first, each with its payload."""
    offset = asked.page * asked.size
    if offset > _OFFSET_MAX:
        raise BadRequest(f"page times size is at most {_OFFSET_MAX}", "narrow the filter")
    place = {"page": asked.page, "size": asked.size}
    if asked.status == "NEW":
        return ExactDocument({"items": [], "total": 0, "total_is": "exact", "filter": ""} | place)
    query = await _query(desk, actor, asked, _STATES[asked.status])
    found = await desk.list(actor, query, limit=asked.size, offset=offset)
    items = [_message(detail) for detail in await details_of(desk, actor, found.letters)]
    counted = found.as_json()
    shown = {"items": items, "total": found.total, "total_is": counted["total_is"]}
    return ExactDocument(shown | place | read_as(query))


@router.get("/dlt-messages/{dlq_id}", dependencies=[BARE], responses=replies.of(DltDetail, 404))
async def dlt_message(desk: TheDesk, actor: Inspector, dlq_id: DlqId) -> ExactDocument:
    """One dead letter in any state, with its history."""
    detail = await detail_of(desk, actor, dlq_id)
    history = None if detail.history is None else [history_json(e) for e in detail.history]
    return ExactDocument(_message(detail) | {"history": history})


@router.post("/replay", dependencies=[BARE, HEAVY], responses=replies.of(DltReplayed, 404))
async def replay(call: Replaying, body: DltReplay) -> Document:
    """Replay messages by their ids, or all that the criteria take (10,000 a request)."""
    # whoever may replay a message by its id may be told which letters it has
    looker = replace(call.actor, scopes=call.actor.scopes | {"inspect"})

    async def run() -> Mapping[str, Any]:
        if body.messageId is not None or body.messageIds is not None:
            ids = [body.messageId] if body.messageId is not None else body.messageIds or []
            return await _replay_named(call.desk, looker, list(dict.fromkeys(ids)), body)
        return await _replay_matching(call.desk, looker, body, call.options.bulk_max)

    return Document(await call.once("replayed", run))


async def _replay_named(
    desk: Desk, actor: Actor, message_ids: Sequence[str], body: DltReplay
) -> dict[str, Any]:
    owners: dict[int, str] = {}
    results: list[dict[str, Any]] = []
    for message_id in message_ids:
        asked = Criteria(messageId=message_id, subscriberId=body.subscriberId)
        letters = await _letters(desk, actor, await _query(desk, actor, asked, ("any",)))
        open_ids = [letter_id for letter_id, state in letters if state in {None, "open"}]
        owners |= dict.fromkeys(open_ids, message_id)
        if not open_ids:
            results.append(_not_open(message_id, [state for _, state in letters]))
    if owners:
        wanted = ReplayOptions(reason=body.reason)
        done = await desk.replay(actor, list(owners), wanted)
        results += [_result(owners[one.dlq_id], one.as_json()) for one in done.results]
    elif len(message_ids) == 1 and results[0]["outcome"] == "not_found":
        raise Refused(HTTPStatus.NOT_FOUND, results[0]["error"])
    return _summary(results)


def _not_open(message_id: str, states: Sequence[str | None]) -> dict[str, Any]:
    if not states:
        why = f"no dead letter has the message id '{message_id}'"
        return {"messageId": message_id, "outcome": "not_found", "error": why}
    known = ", ".join(sorted({state or "open" for state in states}))
    why = f"no letter of this message is open: {known}"
    return {"messageId": message_id, "outcome": "refused", "error": why}


async def _replay_matching(desk: Desk, actor: Actor, body: DltReplay, most: int) -> dict[str, Any]:
    query = Question()
    if body.criteria is not None:
        # no word for a state: by rule this takes open letters that kill no worker
        query = await _query(desk, actor, body.criteria, ())
    if body.cursor is None:
        need_filter(query, everything=body.all)
    done = await desk.replay_all(
        actor,
        query,
        ReplayOptions(reason=body.reason),
        everything=body.all,
        cursor=body.cursor,
        most=most,
    )
    names = await _message_ids(desk, actor, [result.dlq_id for result in done.results])
    results = [_result(names.get(one.dlq_id), one.as_json()) for one in done.results]
    shown = _summary(results)
    return shown | ({"more": True, "cursor": done.cursor} if done.more else {})


async def _query(desk: Desk, actor: Actor, asked: Criteria, states: Sequence[str]) -> Question:
    found = [Word("state", tuple(Condition("=", state) for state in states))] if states else []
    for name, word in _WORDS.items():
        value: str | None = getattr(asked, name)
        if value is not None:
            found += _read(name, word, value)
    if asked.subscriberId is not None:
        handler = _read("subscriberId", "subscriber", asked.subscriberId)
        known = await desk.list(actor, Question((*handler, _ANYWHERE)), limit=1)
        found += handler if known.letters else _read("subscriberId", "queue", asked.subscriberId)
    return Question(tuple(found))


def _read(name: str, word: str, value: str) -> tuple[Word, ...]:
    """The value of a stranger as a word of the filter: quoted, then read as everything else."""
    try:
        return parse(f"{word}:{quoted(value)}", now=datetime.now(UTC)).words
    except FilterError as error:
        raise BadRequest(f"{name}: {str(error).removeprefix(f'{word}: ')}") from None


async def _letters(desk: Desk, actor: Actor, query: Question) -> list[tuple[int, str | None]]:
    """Every letter of one message, with its state."""
    page = await desk.list(actor, query, limit=_LETTERS_OF_ONE)
    if page.more:
        raise BadRequest(
            f"this message has more than {_LETTERS_OF_ONE} dead letters",
            "use criteria, or a subscriberId",
        )
    return [(letter.id, letter.state) for letter in page.letters]


async def _message_ids(desk: Desk, actor: Actor, ids: Sequence[int]) -> dict[int, str | None]:
    names: dict[int, str | None] = {}
    for start in range(0, len(ids), _LETTERS_OF_ONE):
        some = ids[start : start + _LETTERS_OF_ONE]
        named = Word("id", tuple(Condition("=", letter_id) for letter_id in some))
        page = await desk.list(actor, Question((named, _ANYWHERE)), limit=_LETTERS_OF_ONE)
        names |= {letter.id: letter.message_id for letter in page.letters}
    return names


def _result(message_id: str | None, result: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"messageId": message_id, "outcome": result["outcome"], "dlqId": result["dlq_id"]}
    reason = result.get("reason")
    return shown | ({"error": reason} if reason else {})


def _summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = Counter(str(result["outcome"]) for result in results)
    return {
        "requested": len(results),
        "replayed": counts["replayed"],
        "failed": counts["failed"] + counts["refused"] + counts["not_found"],
        "skipped": counts["skipped"],
        "results": list(results),
    }


def _message(detail: LetterDetail) -> dict[str, Any]:
    letter = detail.letter
    status = letter.keymate
    payload = detail.payload
    return {
        "id": letter.id,
        "messageId": letter.message_id,
        "eventType": letter.event_type,
        "subscriberId": letter.subscriber or letter.queue,
        "endpoint": letter.queue,
        "payload": payload.value if payload.kind == "json" else payload.text,
        "errorCode": str(letter.http_status) if letter.http_status else letter.error_type,
        "errorMessage": letter.error_message or letter.last_exception,
        "errorCause": letter.failure_reason,
        "status": status.status,
        "resolution": status.resolution,
        "createdAt": iso(letter.created_at),
        "processedAt": iso(status.processed_at),
        "firstFailedAt": iso(letter.first_failure_at or letter.failed_at),
        "lastFailedAt": iso(letter.latest_failure_at),
        "attempts": letter.attempts_count,
    }
