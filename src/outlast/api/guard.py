"""What every request passes before a route sees it: limits, host, token, origin, body.

In: an ASGI request. Out: the same with `state.actor` and a body that has arrived whole; or a
problem. Nothing of a body is read for somebody without a token. HEAD is GET without the body.
"""

import asyncio
import logging
import time
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlast.api.asking import REPEATED
from outlast.api.auth import ActorFinder, unauthorized
from outlast.api.options import ApiOptions, is_loopback
from outlast.api.problems import Refused, of_desk, of_fault, refused
from outlast.model.errors import OutlastError
from outlast.ops import Actor
from outlast.policy.masking import Masker
from outlast.policy.neutral_text import neutral_text

logger = logging.getLogger("outlast.api")

OPEN_ROUTES = frozenset({"/health/live", "/health/ready", "/health"})
"""What answers without a token."""

_ASK_NOBODY = frozenset({"/health/live", "/health/ready"})
"""A probe with a stale token is answered all the same."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_PATH_CHARS_LOGGED = 200
_masker = Masker()


class Guard:
    """ASGI middleware, the outermost but for cross-origin headers."""

    def __init__(self, app: ASGIApp, finder: ActorFinder, options: ApiOptions) -> None:
        self._app = app
        self._finder = finder
        self._options = options
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        started, told = time.monotonic(), _Told(scope, send, self._options)
        # a copy, as the server wants to know that it was HEAD
        asked = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        try:
            await self._answer(asked, receive, told)
        except Exception as error:  # noqa: BLE001 - nothing but a problem leaves
            if told.is_over:
                logger.warning("%s: the answer was not taken in time", _told_path(scope))
                raise _Broken from None
            response = of_fault(error, _told_path(scope))
            if told.status:
                raise _Broken from None  # too late to say it: the connection ends
            await response(asked, receive, told)
        finally:
            actor = asked.get("state", {}).get("actor")
            _log(scope, actor, told.status, time.monotonic() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = False
        try:
            path = _path_of(scope)
            if path not in OPEN_ROUTES:
                self._enter()
                counted = True
            actor = self._admit(scope, path)
            _check_parameters(scope)
            scope["state"] = {**scope.get("state", {}), "actor": actor, "path": path}
            body = await self._body(scope, receive)
            await self._app(scope, _Replayed(body, receive), send)
        except Refused as refusal:
            await refused(refusal)(scope, receive, send)
        except OutlastError as error:
            await of_desk(error)(scope, receive, send)
        finally:
            self._under_way -= counted

    def _enter(self) -> None:
        if self._under_way >= self._options.requests_max:
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self._under_way} requests are being answered; come again",
                headers={"Retry-After": "1"},
            )
        self._under_way += 1

    def _admit(self, scope: Scope, path: str) -> Actor | None:
        headers = Headers(scope=scope)
        self._check_size(scope)
        if self._options.no_auth and not is_loopback(_host(headers)):
            # a page whose name was bound to 127.0.0.1 would be our own origin
            raise Refused(HTTPStatus.FORBIDDEN, "without tokens the Host must be a loopback name")
        if path in _ASK_NOBODY:
            return None
        actor = self._finder.actor_of(headers)
        if actor is None and path not in OPEN_ROUTES:
            raise unauthorized("this needs a token")
        if scope["method"] not in _READING:
            self._check_origin(headers)
        return actor

    def _check_size(self, scope: Scope) -> None:
        url = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if url > self._options.url_bytes_max:
            raise Refused(
                HTTPStatus.REQUEST_URI_TOO_LONG, f"a URL has {self._options.url_bytes_max} bytes"
            )
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if (
            size > self._options.header_bytes_max
            or len(scope["headers"]) > self._options.headers_max
        ):
            raise Refused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"headers are {self._options.headers_max} at most, "
                f"of {self._options.header_bytes_max} bytes",
            )

    def _check_origin(self, headers: Headers) -> None:
        """A browser says where a request comes from; nobody else does."""
        origin = headers.get("origin")
        if origin is not None:
            if origin in self._options.origins:
                return
            if origin.partition("://")[2] != headers.get("host"):
                raise Refused(
                    HTTPStatus.FORBIDDEN,
                    "a page of another origin may not do this",
                    {"remedy": "name the origin in the setting origins"},
                )
        if headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
            raise Refused(HTTPStatus.FORBIDDEN, "a page of another site may not do this")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = self._options.body_bytes_max
        said = Headers(scope=scope).get("content-length")
        if said is not None and said.isascii() and said.isdecimal() and int(said[:20]) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._options.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(HTTPStatus.BAD_REQUEST, "the client went away")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the body did not arrive within {self._options.body_seconds:g} s",
                headers={"Connection": "close"},
            ) from None


class _Told:
    """A `send` that adds what every answer has, and that does not wait for ever."""

    def __init__(self, scope: Scope, send: Send, options: ApiOptions) -> None:
        self._is_head = scope["method"] == "HEAD"
        self._send = send
        self._options = options
        self._until = 0.0
        self.status = 0
        self.is_over = False

    async def __call__(self, message: Message) -> None:
        now = asyncio.get_running_loop().time()
        if message["type"] == "http.response.start":
            self.status, self._until = message["status"], now + self._options.stream_seconds
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        elif self._is_head:
            message = {**message, "body": b""}
        # whoever takes nothing would hold a slot for ever
        if self.is_over or not await self._sent(message, now):
            self.is_over = True
            raise _Broken

    async def _sent(self, message: Message, now: float) -> bool:
        if now > self._until:
            return False
        try:
            async with asyncio.timeout_at(min(self._until, now + self._options.send_seconds)):
                await self._send(message)
        except TimeoutError:
            return False
        return True


class _Broken(Exception):  # noqa: N818
    """A response that broke off after it had begun."""


class _Replayed:
    """A `receive` that has the whole body already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


def _too_large(most: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"a body has at most {most} bytes",
        headers={"Connection": "close"},
    )


def _check_parameters(scope: Scope) -> None:
    """Of two values one would be left out in silence, and a filter would take more than it says."""
    seen: set[str] = set()
    for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if name in seen and name not in REPEATED:
            raise Refused(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"the parameter {name[:100]!r} is given twice"
            )
        seen.add(name)


def _path_of(scope: Scope) -> str:
    """The path below where we are mounted."""
    root, path = scope.get("root_path", ""), scope["path"]
    below: str = path[len(root) :] if root and path.startswith(f"{root}/") else path
    return below


def _host(headers: Headers) -> str:
    """The Host header without its port, an address of IPv6 without its brackets."""
    host = headers.get("host", "").lower()
    name, _, port = host.rpartition(":")
    if name and port.isdecimal() and (name[-1] == "]" or ":" not in name):
        host = name
    return host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host


def _told_path(scope: Scope) -> str:
    """The path as a log may have it: a token that was put there by mistake is not in it."""
    # masked before it is cut, as half a token is not known for one
    path = _masker.text(scope["path"][: 5 * _PATH_CHARS_LOGGED]).value
    return neutral_text(path[:_PATH_CHARS_LOGGED])


def _log(scope: Scope, actor: Actor | None, status: int, seconds: float) -> None:
    """One line; no query and no header, where secrets stand."""
    path = _told_path(scope)
    name = neutral_text(actor.name) if actor is not None else "-"
    logger.info("%s %s %d %.0f ms %s", scope["method"], path, status, seconds * 1000, name)
