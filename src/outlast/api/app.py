"""The application: every route of the desk, behind the guard.

In: a desk, a book of tokens, options. Out: an ASGI application, to serve or to mount under a
prefix. It opens nothing by itself.
"""

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from starlette.responses import Response

from outlast.api import (
    dlq_acting,
    dlq_looking,
    dlq_transfer,
    health,
    keymate,
    metrics,
    outbox,
    replies,
    schemas,
)
from outlast.api.answers import Document
from outlast.api.auth import SCHEME, ActorFinder, Anybody, May
from outlast.api.desk import BARE
from outlast.api.guard import Guard
from outlast.api.options import ApiOptions
from outlast.api.problems import add_handlers
from outlast.ops import Desk
from outlast.ops.tokens import TokenBook

TITLE = "outlast"
ABOUT = """Dead letters: see, understand, fix, replay.

Errors are `application/problem+json` with a sentence in `error`. A request with an
`Idempotency-Key` may be repeated for a day. Times without a zone are UTC. The scope that a token
needs stands in `security`."""

_BY_ID = (
    ("/api/dlq/{dlq_id}", dlq_looking.protean_letter, schemas.ProteanLetter),
    ("/api/outbox/{row_id}", outbox.inspect_row, schemas.RowWhole),
)
"""Registered last: fixed words win over ids."""


def make_app(
    desk: Desk, book: TokenBook | None = None, *, options: ApiOptions | None = None
) -> FastAPI:
    """The API over this desk. Without tokens nothing answers but the health routes."""
    given = options or ApiOptions()
    app = FastAPI(
        title=TITLE,
        description=ABOUT,
        version=_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.desk, app.state.options = desk, given
    app.state.heavy, app.state.lately = 0, health.Lately(given.health_seconds, given.ready_seconds)
    for part in (dlq_looking, dlq_acting, dlq_transfer, keymate, outbox, health, metrics):
        # flat, so that the routes of the application are all there are
        app.router.routes.extend(part.router.routes)
    app.add_api_route("/openapi.json", _openapi(app), dependencies=[BARE], include_in_schema=False)
    app.state.words = frozenset(getattr(route, "path", "") for route in app.routes)
    for path, answer, model in _BY_ID:
        app.add_api_route(
            path,
            answer,
            dependencies=[BARE],
            responses=replies.of(model, 404),
            tags=["dead letters" if "dlq" in path else "outbox"],
        )
    add_handlers(app)
    app.add_middleware(
        Guard, finder=ActorFinder(book or TokenBook(), no_auth=given.no_auth), options=given
    )
    if given.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(given.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match"],
            expose_headers=["ETag", "Retry-After"],
        )
    return app


def _openapi(app: FastAPI) -> Any:
    async def openapi(request: Request, _actor: Anybody) -> Response:
        """This description."""
        below = request.scope.get("root_path", "")
        servers = {"servers": [{"url": below}]} if below else {}
        return Document(document_of(app) | servers)

    return openapi


def document_of(app: FastAPI) -> dict[str, Any]:
    """The description of the API, with the one shape of its problems."""
    document = app.openapi()
    shapes = document.setdefault("components", {}).setdefault("schemas", {})
    shapes["ProblemDocument"] = replies.ProblemDocument.model_json_schema()
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                operation = document["paths"][route.path][method.lower()]
                operation["operationId"] = _operation_id(method, route.path)
                operation["summary"] = re.split(r"[.;] |\.$", operation["description"])[0]
                if "security" in operation:
                    operation["security"] = [{SCHEME: _scopes_of(route)}]
    return document


def _scopes_of(route: APIRoute) -> list[str]:
    asked: list[Any] = [needed.call for needed in route.dependant.dependencies]
    return [one.scope for one in asked if isinstance(one, May) and one.scope]


def _operation_id(method: str, path: str) -> str:
    """`get_dlq`, `post_dlq_id_replay`: as stable as the path."""
    named = re.sub(r"/id/\{\w+\}", "/id", path.removeprefix("/api"))
    return "_".join([method.lower(), *re.findall(r"\w+", named)])


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - needed once

    return version("outlast")
