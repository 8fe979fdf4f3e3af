"""Who asks: the bearer token of a request, as an actor with the scopes of that token.

In: headers. Out: an actor, or 401. Routes say with `may` which scope they need; it is asked for
before anything of the request is read.
"""

from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers

from outlast.api.problems import Refused
from outlast.ops import SCOPES, Actor, Scope
from outlast.ops.tokens import TokenBook

ANONYMOUS = Actor("anonymous@loopback", SCOPES)

KEY_CHARS_MAX = 255

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="A token that `outlast tokens new --name N --scopes inspect,replay` printed.",
)


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
        {"remedy": "outlast tokens new --name N --scopes inspect prints a token"},
        {"WWW-Authenticate": challenge},
    )


class May:
    """A dependency: the actor, who has this scope."""

    def __init__(self, scope: Scope | None) -> None:
        self.scope = scope

    def __call__(
        self,
        request: Request,
        _token: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None,
    ) -> Actor:
        actor: Actor = request.state.actor
        if self.scope is not None:
            actor.needs(self.scope, f"use {request.method} {request.scope['path']}")
        return actor


class MayOnce(May):
    """The same for what changes something: a repeated request has the first one's key."""

    def __call__(
        self,
        request: Request,
        _token: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None,
        idempotency_key: Annotated[
            str | None,
            Header(
                min_length=1,
                max_length=KEY_CHARS_MAX,
                description="Repeated within a day, the first answer comes again.",
            ),
        ] = None,
    ) -> Actor:
        actor = super().__call__(request)
        return replace(actor, request_id=idempotency_key)


Inspector = Annotated[Actor, Depends(May("inspect"))]
Replayer = Annotated[Actor, Depends(MayOnce("replay"))]
Editor = Annotated[Actor, Depends(MayOnce("edit"))]
Discarder = Annotated[Actor, Depends(MayOnce("discard"))]
Anybody = Annotated[Actor, Depends(May(None))]
"""Who has a token, whatever for."""
