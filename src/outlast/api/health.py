"""Whether the process lives, whether the database answers, whether the tables are right.

In: nothing. Out: a status for anybody; the items only for somebody with a token. An answer is kept
for a second, so that strangers cannot keep the database busy.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from outlast.api import replies, schemas
from outlast.api.answers import Document
from outlast.api.desk import TheDesk
from outlast.model.errors import OutlastError
from outlast.ops import Actor

router = APIRouter(prefix="/health", tags=["health and metrics"])

_PROBE = Actor("health", frozenset({"inspect"}))

Found = tuple[HTTPStatus, dict[str, Any]]


class Lately:
    """One answer for all who ask within a while; one question at a time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._found: dict[str, tuple[float, Found]] = {}

    async def answer(self, name: str, ask: Callable[[], Awaitable[Found]]) -> Found:
        """The answer, fresh enough."""
        async with self._lock:
            at, found = self._found.get(name, (0.0, None))
            if found is None or time.monotonic() - at >= self._seconds:
                found = await ask()
                self._found[name] = (time.monotonic(), found)
            return found


def lately_of(request: Request) -> Lately:
    """The answers of this application."""
    lately: Lately = request.app.state.lately
    return lately


TheAnswers = Annotated[Lately, Depends(lately_of)]


@router.get("/live", responses=replies.of(schemas.Status, anybody=True))
async def live() -> Document:
    """The process answers. The database is not asked."""
    return Document({"status": "ok"})


@router.get("/ready", responses=replies.of(schemas.Status, 503, anybody=True))
async def ready(request: Request, desk: TheDesk, lately: TheAnswers) -> Document:
    """The database answers."""
    seconds: float = request.app.state.options.ready_seconds

    async def ask() -> Found:
        try:
            async with asyncio.timeout(seconds):
                await desk.ping()
        except (OutlastError, OSError):
            return HTTPStatus.SERVICE_UNAVAILABLE, {"status": "unavailable"}
        return HTTPStatus.OK, {"status": "ok"}

    return _document(*await lately.answer("ready", ask))


@router.get("", responses=replies.of(schemas.Health, 503, anybody=True))
async def health(request: Request, desk: TheDesk, lately: TheAnswers) -> Document:
    """The tables are as this release needs them; 503 while they are not."""
    seconds: float = request.app.state.options.ready_seconds

    async def ask() -> Found:
        try:
            async with asyncio.timeout(seconds):
                found = await desk.schema_state(_PROBE)
        except (OutlastError, OSError) as error:
            away = {"status": "unavailable", "items": [str(error)], "advice": []}
            return HTTPStatus.SERVICE_UNAVAILABLE, away
        document = {"items": list(found.drift), "advice": list(found.advice)}
        if found.drift:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"status": "drift"} | document
        return HTTPStatus.OK, {"status": "ok"} | document

    status, document = await lately.answer("health", ask)
    actor: Actor | None = request.state.actor
    if actor is None:
        document = {"status": document["status"]}
    return _document(status, document)


def _document(status: HTTPStatus, document: dict[str, Any]) -> Document:
    headers = {} if status is HTTPStatus.OK else {"Retry-After": "5"}
    return Document(document, status.value, headers)
