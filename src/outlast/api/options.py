"""The options of the API: frozen, checked where they are made."""

import ipaddress
from dataclasses import dataclass

from outlast.ops import BadRequest


def is_loopback(host: str) -> bool:
    """Whether only this machine can come here."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class ApiOptions:
    """What holds for every request of one application."""

    no_auth: bool = False
    """Whoever has no token may do everything. For loopback only: the Host header is checked."""
    origins: tuple[str, ...] = ()
    """Other origins whose pages may call us from a browser, as `https://admin.example`."""
    transforms: tuple[str, ...] = ()
    """The transforms that a request may name: nothing else of the server's code is run."""
    body_bytes_max: int = 8 * 1024 * 1024
    body_seconds: float = 30.0
    """How long a body may take to arrive."""
    send_seconds: float = 30.0
    """How long a client may take nothing of its answer; then the connection ends."""
    stream_seconds: float = 3600.0
    """How long one answer may take from its first byte to its last: an export of everything."""
    header_bytes_max: int = 32 * 1024
    headers_max: int = 100
    url_bytes_max: int = 48 * 1024
    requests_max: int = 64
    """Requests that are answered at once."""
    heavy_max: int = 4
    """Of these: actions on many letters, counts of all of them, exports, imports."""
    bulk_max: int = 10_000
    """Letters of one request; a cursor goes on."""
    health_seconds: float = 1.0
    """How old an answer about the database's health may be: anybody may ask for it."""
    ready_seconds: float = 5.0
    """How long the database may take to say that it is there."""

    def __post_init__(self) -> None:
        for name in ("body_bytes_max", "requests_max", "heavy_max", "bulk_max", "headers_max"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} must be >= 1, got {getattr(self, name)!r}")
        for origin in self.origins:
            scheme, _, rest = origin.partition("://")
            if scheme not in {"http", "https"} or not rest or "/" in rest or "*" in rest:
                raise BadRequest(f"{origin!r} is no origin", "write it as https://host or :port")
