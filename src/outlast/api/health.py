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

    def __init__(self, seconds: float, patience: float) -> None:
        self._seconds = seconds
        self._patience = patience
        self._lock = asyncio.Lock()
        self._found: dict[str, tuple[float, Found]] = {}

    async def answer(self, name: str, ask: Callable[[], Awaitable[Found]]) -> Found:
        """The answer, fresh enough."""
        async with self._lock:
            at, found = self._found.get(name, (0.0, None))
            if found is None or time.monotonic() - at >= self._seconds:
                found = await self._asked(ask)
                self._found[name] = (time.monotonic(), found)
            return found

    async def _asked(self, ask: Callable[[], Awaitable[Found]]) -> Found:
        try:
            async with asyncio.timeout(self._patience):
                return await ask()
        except TimeoutError:
            why = f"the database did not answer within {self._patience:g} s"
        except (OutlastError, OSError) as error:
            why = str(error)
        away = {"status": "unavailable", "items": [why], "advice": []}
        return HTTPStatus.SERVICE_UNAVAILABLE, away


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
async def ready(desk: TheDesk, lately: TheAnswers) -> Document:
    """The database answers."""

    async def ask() -> Found:
        await desk.ping()
        return HTTPStatus.OK, {"status": "ok"}

    status, document = await lately.answer("ready", ask)
    return _document(status, {"status": document["status"]})


@router.get("", responses=replies.of(schemas.Health, 503, anybody=True))
async def health(request: Request, desk: TheDesk, lately: TheAnswers) -> Document:
    """The tables are as this release needs them; 503 while they are not."""

    async def ask() -> Found:
        found = await desk.schema_state(_PROBE)
        document = {"items": list(found.drift), "advice": list(found.advice)}
        if found.drift:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"status": "drift"} | document
        return HTTPStatus.OK, {"status": "ok"} | document

    status, document = await lately.answer("health", ask)
    actor: Actor | None = request.state.actor
    return _document(status, document if actor is not None else {"status": document["status"]})


def _document(status: HTTPStatus, document: dict[str, Any]) -> Document:
    headers = {} if status is HTTPStatus.OK else {"Retry-After": "5"}
    return Document(document, status.value, headers)
