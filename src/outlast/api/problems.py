"""Every refusal as problem+json: a status, and Protean's sentence in the member `error`.

In: an exception of the desk, of FastAPI, or of anybody. Out: a response that never shows a
traceback, a statement or what the caller sent.
"""

import itertools
import logging
import traceback
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from outlast.api.answers import Problem
from outlast.model.errors import (
    CannotWrite,
    OutlastError,
    RowLocked,
    RowRefused,
    SchemaError,
    StoreFailure,
    UnsupportedDatabase,
)
from outlast.model.query import FilterError
from outlast.ops import BadRequest, DeskError, LetterNotFound, NotAllowed, NotRecorded
from outlast.ops.refusals import EditConflict, EditRefused
from outlast.ops.requests import RequestDiffers, RequestUnderWay
from outlast.ops.running import Interrupted
from outlast.policy.filter_text import pointer
from outlast.policy.neutral_text import neutral_text

logger = logging.getLogger("outlast.api")

_NO_RIGHT = ("42501", "SQLITE_READONLY", "SQLITE_PERM")
"""SQLSTATE, or SQLite's name, of what this role or process may not do."""

RETRY_SECONDS = 5
"""What `Retry-After` says while the database is away."""

_FIELDS_TOLD = 20
_JSON = "application/json"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (NotAllowed, HTTPStatus.FORBIDDEN),
    (LetterNotFound, HTTPStatus.NOT_FOUND),
    (RequestUnderWay, HTTPStatus.CONFLICT),
    (EditRefused, HTTPStatus.CONFLICT),
    (EditConflict, HTTPStatus.PRECONDITION_FAILED),
    (RequestDiffers, HTTPStatus.UNPROCESSABLE_ENTITY),
    (FilterError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (BadRequest, HTTPStatus.UNPROCESSABLE_ENTITY),
    (RowRefused, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NotRecorded, HTTPStatus.NOT_IMPLEMENTED),
    (SchemaError, HTTPStatus.NOT_IMPLEMENTED),
    (UnsupportedDatabase, HTTPStatus.NOT_IMPLEMENTED),
    (Interrupted, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreFailure, HTTPStatus.SERVICE_UNAVAILABLE),
)


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is answered with a problem. `more` are members beside the usual ones."""

    def __init__(
        self,
        status: HTTPStatus,
        error: str,
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.more = dict(more or {})
        self.headers = dict(headers or {})


def problem(
    status: HTTPStatus,
    error: str,
    more: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Problem:
    """The response."""
    document = {"type": "about:blank", "title": status.phrase, "status": status.value}
    shown = document | {"error": neutral_text(error)} | dict(more or {})
    return Problem(shown, status.value, dict(headers or {}))


def refused(refusal: Refused) -> Problem:
    """The response of a refusal."""
    return problem(refusal.status, refusal.error, refusal.more, refusal.headers)


def of_desk(error: OutlastError) -> Problem:
    """What the desk refused, or could not do."""
    status = next(
        (status for kind, status in _STATUS if isinstance(error, kind)),
        HTTPStatus.UNPROCESSABLE_ENTITY,
    )
    more: dict[str, Any] = {}
    if isinstance(error, CannotWrite) and str(error.state).startswith(_NO_RIGHT):
        status = HTTPStatus.NOT_IMPLEMENTED
        more["remedy"] = "the database role of this server may only read: --dsn names another"
    if isinstance(error, DeskError) and error.remedy:
        more["remedy"] = error.remedy
    if isinstance(error, NotAllowed):
        more["scope"] = error.scope
    if isinstance(error, FilterError):
        more |= _place(error)
    if isinstance(error, Interrupted) and hasattr(error.done, "as_json"):
        more["done"] = error.done.as_json()
    headers = {}
    if status is HTTPStatus.SERVICE_UNAVAILABLE and not isinstance(error, CannotWrite):
        seconds = 1 if isinstance(error, RowLocked) else RETRY_SECONDS
        headers["Retry-After"] = str(seconds)
    return problem(status, str(error), more, headers)


def of_fault(error: Exception, path: str) -> Problem:
    """What nobody expected: logged by its kind and place, as its text may hold anything."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
    logger.error("%s failed: %s at %s", neutral_text(path), type(error).__name__, place)
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "this request failed; the log of the server says where"
    )


def add_handlers(app: FastAPI) -> None:
    """Give an application these answers."""

    async def on_refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused), "registered for it"
        return refused(error)

    async def on_desk(_request: Request, error: Exception) -> Response:
        assert isinstance(error, OutlastError), "registered for it"
        return of_desk(error)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError), "registered for it"
        return _of_validation(error.errors(), request.headers.get("content-type", ""))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "registered for it"
        return _of_http(request, error)

    app.add_exception_handler(Refused, on_refused)
    app.add_exception_handler(OutlastError, on_desk)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)


def _place(error: FilterError) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if error.position is not None:
        more["position"] = error.position
        text = getattr(error, "text", None)
        if isinstance(text, str):
            more["pointer"] = pointer(text, error)
    if error.nearest:
        more["nearest"] = error.nearest
    return more


def _of_validation(errors: Iterable[Any], media: str) -> Problem:
    """Where, and what is wrong there; never the value."""
    told = []
    for error in itertools.islice(errors, _FIELDS_TOLD):
        place = [str(step) for step in error["loc"]] or ["request"]
        message = _said(error, media if place == ["body"] else _JSON)
        if error["type"] == "json_invalid":
            place = place[:1]
        pointer_ = "".join(f"/{neutral_text(step)[:100]}" for step in place[1:])
        told.append({"in": place[0], "pointer": pointer_, "message": neutral_text(message)})
    first = told[0] if told else {"in": "request", "pointer": "", "message": "cannot be read"}
    where = first["pointer"].lstrip("/") or f"the {first['in']}"
    sentence = f"{where}: {first['message']}"
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, sentence, {"errors": told})


def _said(error: Mapping[str, Any], media: str) -> str:
    if media.partition(";")[0].strip().lower() != _JSON:
        return f"send it as JSON, with Content-Type: {_JSON}"
    match error["type"]:
        case "extra_forbidden":
            return "nothing here has this name; /openapi.json lists what has"
        case "json_invalid":
            return f"it is no JSON from character {error['loc'][-1]} on"
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
    return str(error["msg"])


def _of_http(request: Request, error: HTTPException) -> Problem:
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.NOT_FOUND:
        return problem(status, f"there is no route {request.scope['path']}")
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        return not_here(request)
    if status is HTTPStatus.BAD_REQUEST:
        return problem(
            status, "the body cannot be read: it is nested too deep, or a number too long"
        )
    return problem(status, str(error.detail), headers=error.headers)


def not_here(request: Request) -> Problem:
    """A method that this path does not know, and those it knows."""
    known = [name for name in _METHODS if _matches(request, name.replace("HEAD", "GET"))]
    return problem(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"{request.method} is not for {request.scope['path']}; {', '.join(known) or 'nothing'} is",
        headers={"Allow": ", ".join(known)},
    )


def is_word(request: Request) -> bool:
    """Whether this path is a fixed one, and none with an id in it."""
    return request.state.path in request.app.state.words


def _matches(request: Request, method: str) -> bool:
    scope = {**request.scope, "method": method}
    fixed = is_word(request)
    return any(
        route.matches(scope)[0] is Match.FULL
        for route in request.app.router.routes
        if not fixed or getattr(route, "path", None) == request.state.path
    )
