"""What kind of error it was. By type and attributes, never by parsing its text.

Order: an attribute of the exception, its HTTP status, known types (drivers by qualified name:
nothing is imported), the members of a group, UNKNOWN.
"""

import socket

VALIDATION = "VALIDATION"
EXTERNAL = "EXTERNAL"
TIMEOUT = "TIMEOUT"
AUTH = "AUTH"
POISON = "POISON"
UNKNOWN = "UNKNOWN"

CATEGORY_ATTRIBUTE = "outlast_category"

_BY_NAME = {
    "pydantic_core._pydantic_core.ValidationError": VALIDATION,
    "pydantic.error_wrappers.ValidationError": VALIDATION,
    "fast_depends.exceptions.ValidationError": VALIDATION,
    "msgspec.ValidationError": VALIDATION,
    "msgspec.DecodeError": VALIDATION,
    "json.decoder.JSONDecodeError": VALIDATION,
    "builtins.UnicodeDecodeError": VALIDATION,
    "asyncpg.exceptions._base.InterfaceError": EXTERNAL,
    "asyncpg.exceptions.PostgresConnectionError": EXTERNAL,
    "psycopg.OperationalError": EXTERNAL,
    "psycopg.errors.OperationalError": EXTERNAL,
    "sqlalchemy.exc.OperationalError": EXTERNAL,
    "sqlalchemy.exc.InterfaceError": EXTERNAL,
    "sqlalchemy.exc.TimeoutError": TIMEOUT,
    "redis.exceptions.ConnectionError": EXTERNAL,
    "redis.exceptions.TimeoutError": TIMEOUT,
    "aiormq.exceptions.AMQPConnectionError": EXTERNAL,
    "aio_pika.exceptions.AMQPConnectionError": EXTERNAL,
    "nats.errors.ConnectionClosedError": EXTERNAL,
    "nats.errors.NoServersError": EXTERNAL,
    "nats.errors.TimeoutError": TIMEOUT,
    "aiokafka.errors.KafkaConnectionError": EXTERNAL,
    "aiokafka.errors.KafkaTimeoutError": TIMEOUT,
    "httpx.TimeoutException": TIMEOUT,
    "httpx.TransportError": EXTERNAL,
    "aiohttp.client_exceptions.ClientConnectionError": EXTERNAL,
    "aiohttp.client_exceptions.ServerTimeoutError": TIMEOUT,
    "requests.exceptions.Timeout": TIMEOUT,
    "requests.exceptions.ConnectionError": EXTERNAL,
}


def http_status(exception: BaseException) -> int | None:
    """The HTTP status an exception carries, where clients usually put it."""
    response = getattr(exception, "response", None)
    for owner, name in (
        (response, "status_code"),
        (response, "status"),
        (exception, "status_code"),
        (exception, "status"),
        (exception, "code"),
    ):
        value = getattr(owner, name, None) if owner is not None else None
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:  # noqa: PLR2004
            return int(value)
    return None


def _by_status(status: int) -> str | None:
    if status in {408, 429} or status >= 500:  # noqa: PLR2004
        return EXTERNAL
    if status in {401, 403}:
        return AUTH
    if status >= 400:  # noqa: PLR2004
        return VALIDATION
    return None


def _by_type(exception: BaseException) -> str | None:
    for cls in type(exception).__mro__:
        found = _BY_NAME.get(f"{cls.__module__}.{cls.__qualname__}")
        if found is not None:
            return found
    if isinstance(exception, TimeoutError):
        return TIMEOUT
    if isinstance(exception, (ConnectionError, socket.gaierror)):
        return EXTERNAL
    return None


def _by_members(group: BaseExceptionGroup[BaseException]) -> str:
    found = {categorize(member) for member in group.exceptions}
    if VALIDATION in found:
        return VALIDATION
    if len(found) == 1:
        return found.pop()
    if found <= {EXTERNAL, TIMEOUT}:
        return EXTERNAL
    return UNKNOWN


def categorize(exception: BaseException | None, reason: str | None = None) -> str:
    """One of the categories above, or whatever the exception says of itself."""
    if reason == "undecodable":
        return VALIDATION
    if reason == "max_deliveries":
        return POISON
    if exception is None:
        return UNKNOWN
    own = getattr(exception, CATEGORY_ATTRIBUTE, None)
    if isinstance(own, str) and own and len(own) <= 64:  # noqa: PLR2004 - the column's width
        return own.upper()
    if isinstance(exception, BaseExceptionGroup):
        return _by_members(exception)
    status = http_status(exception)
    by_status = _by_status(status) if status is not None else None
    return by_status or _by_type(exception) or UNKNOWN
