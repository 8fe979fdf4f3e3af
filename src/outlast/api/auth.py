"""Who asks: the bearer token of a request, as an actor with the scopes of that token.

In: headers. Out: an actor or a call, or 401. Routes say which scope they need; it is asked for
before anything of the request is read.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers

from outlast.api.options import ApiOptions
from outlast.api.problems import Refused
from outlast.ops import SCOPES, Actor, Desk, Scope
from outlast.ops.tokens import TokenBook

ANONYMOUS = Actor("anonymous@loopback", SCOPES)

KEY_CHARS_MAX = 255
SCHEME = "token"
"""The name of the security scheme in the description."""

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name=SCHEME,
    description="A token that `outlast tokens new --name N --scopes inspect,replay` printed.",
)
Token = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
"""For the description alone: the guard has read it."""


class ActorFinder:
    """One book of tokens, and whether a stranger is somebody."""

    def __init__(self, book: TokenBook, *, no_auth: bool) -> None:
        self._book = book
        self._stranger = ANONYMOUS if no_auth else None

    def actor_of(self, headers: Headers) -> Actor | None:
        """None: nothing was said. What was said and is wrong is refused."""
        said = headers.getlist("authorization")
        if not said:
            return self._stranger
        scheme, _, secret = said[0].partition(" ")
        if len(said) > 1 or scheme.lower() != "bearer" or not secret.strip():
            raise unauthorized("write the header as Authorization: Bearer TOKEN")
        actor = self._book.actor_of(secret.strip())
        if actor is None:
            raise unauthorized("this token is not known here", error="invalid_token")
        return actor


def unauthorized(sentence: str, *, error: str | None = None) -> Refused:
    """401, and how to do better."""
    challenge = 'Bearer realm="outlast"' + (f', error="{error}"' if error else "")
    return Refused(
        HTTPStatus.UNAUTHORIZED,
        sentence,
        {
            "remedy": "send Authorization: Bearer TOKEN; "
            "outlast tokens new --name N --scopes inspect prints a token"
        },
        {"WWW-Authenticate": challenge},
    )


class May:
    """What a route asks of whoever calls it."""

    def __init__(self, scope: Scope | None) -> None:
        self.scope = scope

    def actor_of(self, request: Request) -> Actor:
        """The actor, who has the scope."""
        actor: Actor = request.state.actor
        if self.scope is not None:
            actor.needs(self.scope, f"use {request.method} {request.scope['path']}")
        return actor


class _MayLook(May):
    """A dependency: the actor, who has this scope."""

    def __call__(self, request: Request, _token: Token = None) -> Actor:
        return self.actor_of(request)


@dataclass(frozen=True, slots=True)
class Call:
    """A request that changes something: who asks, and of which desk."""

    request: Request
    actor: Actor

    @property
    def desk(self) -> Desk:
        """The desk of this application."""
        desk: Desk = self.request.app.state.desk
        return desk

    @property
    def options(self) -> ApiOptions:
        """The options of this application."""
        options: ApiOptions = self.request.app.state.options
        return options

    async def once(
        self,
        kind: str,
        run: Callable[[], Awaitable[Mapping[str, Any]]],
        *,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Run it, or answer as the first time this key came. The bytes of a request are its
        meaning. `kind` is a word of the history.
        """
        if self.actor.request_id is None or dry_run:
            return await run()
        scope = self.request.scope
        body = hashlib.sha256(await self.request.body()).hexdigest()
        asked = [scope["method"], scope["path"], scope["query_string"].decode("latin-1"), body]
        return await self.desk.once(self.actor, kind, asked, run)


class _MayCall(May):
    """The same for what changes something, as a call: it may be repeated with its key."""

    def __call__(
        self,
        request: Request,
        _token: Token = None,
        idempotency_key: Annotated[
            str | None,
            Header(
                min_length=1,
                max_length=KEY_CHARS_MAX,
                description="Repeated within a day, the first answer comes again.",
            ),
        ] = None,
    ) -> Call:
        actor = self.actor_of(request)
        if len(request.headers.getlist("idempotency-key")) > 1:
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "Idempotency-Key is given twice")
        return Call(request, replace(actor, request_id=idempotency_key))


Inspector = Annotated[Actor, Depends(_MayLook("inspect"))]
Replaying = Annotated[Call, Depends(_MayCall("replay"))]
Editing = Annotated[Call, Depends(_MayCall("edit"))]
Discarding = Annotated[Call, Depends(_MayCall("discard"))]
Anybody = Annotated[Actor, Depends(_MayLook(None))]
"""Who has a token, whatever for."""
