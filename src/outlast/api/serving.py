"""The API as a process: `serve` runs it until SIGTERM or SIGINT, with the desk's upkeep beside it.

In: a desk, a book of tokens, an address. Out: exit status 0, or a refusal before anything listens:
an address that others can reach needs tokens.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from http import HTTPStatus

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from outlast.api.app import make_app
from outlast.api.options import ApiOptions, is_loopback
from outlast.api.problems import problem
from outlast.api.slow_heads import HeadInTime
from outlast.ops import Actor, BadRequest, Desk
from outlast.ops.tokens import TokenBook
from outlast.ops.upkeep import upkeep

logger = logging.getLogger("outlast.api")

HOST, PORT = "127.0.0.1", 8787
STOP_SECONDS = 10
"""How long requests under way may take when the process is asked to stop."""

_BACKLOG = 128
_CLOSE_SECONDS = 5
_REQUEST_HEAD_BYTES_MAX = 256 * 1024
"""Beyond what the guard takes, so that it is the guard who refuses."""

_PORT_MAX = 65_535


async def serve(
    desk: Desk,
    book: TokenBook,
    *,
    host: str = HOST,
    port: int = PORT,
    prefix: str = "",
    options: ApiOptions | None = None,
    keep_up: bool = True,
) -> int:
    """Listen until a signal; BadRequest where it must not. `keep_up`: sweep and reconcile, too."""
    given = options or ApiOptions()
    check_address(host, port, book, no_auth=given.no_auth)
    app = under_prefix(make_app(desk, book, options=given), prefix)
    listening = _listen(host, port, given.send_seconds)
    server = _Server(config_of(app))
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        server.should_exit = True
        stop.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, end)
    tasks = []
    if keep_up:
        keeper = Actor("outlast serve", frozenset({"inspect", "replay", "discard"}))
        tasks.append(asyncio.create_task(upkeep(desk, keeper, stop)))
    address = f"[{host}]" if ":" in host else host
    logger.info("listening on http://%s:%s%s", address, listening.getsockname()[1], prefix)
    if not book.entries and not given.no_auth:
        logger.warning("there are no tokens: nothing answers but /health (outlast tokens new)")
    try:
        await server.serve(sockets=[listening])
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(name)
        listening.close()
    return 0


def check_address(host: str, port: int, book: TokenBook, *, no_auth: bool) -> None:
    """Refuse to be open to others."""
    if not 0 <= port <= _PORT_MAX:
        raise BadRequest(f"a port is 0 to {_PORT_MAX}, got {port}")
    if is_loopback(host):
        return
    if no_auth:
        raise BadRequest(
            f"--no-auth is for loopback only, and {host} is none",
            "make a token with outlast tokens new, or listen on 127.0.0.1",
        )
    if not book.entries:
        raise BadRequest(
            f"{host} can be reached by others, and there are no tokens",
            "make one with outlast tokens new --name N --scopes inspect,replay",
        )


def under_prefix(app: ASGIApp, prefix: str) -> ASGIApp:
    """The application under a path such as `/outlast`; beside it is nothing."""
    root = prefix.rstrip("/")
    if prefix and not (prefix.startswith("/") and prefix.isascii() and prefix.isprintable()):
        raise BadRequest(f"a prefix begins with a slash, got {prefix!r}", "write it as /outlast")
    if not root:
        return app

    async def below(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http" or path == root or path.startswith(f"{root}/"):
            await app({**scope, "root_path": scope.get("root_path", "") + root}, receive, send)
            return
        remedy = {"remedy": f"what there is, is below {root}"}
        nothing = problem(HTTPStatus.NOT_FOUND, f"there is no route {path}", remedy)
        await nothing(scope, receive, send)

    return below


def _listen(host: str, port: int, send_seconds: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no address"
        raise BadRequest(f"cannot listen on {host}:{port}: {said}") from None
    made.setblocking(False)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # after the guard gave up, so that the log tells: what was sent is kept until it is taken
        milliseconds = int((send_seconds + _CLOSE_SECONDS) * 1000)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return made


def config_of(app: ASGIApp) -> uvicorn.Config:
    """How it is served: nothing of ours in the headers, bounds above those of the guard."""
    return uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",  # what matters is logged by us, without tracebacks
        access_log=False,  # ours has no query in it, and no control characters
        server_header=False,
        date_header=True,
        http=HeadInTime,
        h11_max_incomplete_event_size=_REQUEST_HEAD_BYTES_MAX,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=30,
    )


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again when it is done, and end us unfinished."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
