"""Would the application's handler take this body? Asked without running it.

In: an application by name, or at hand; a dead letter and a queue. Out: accepted, refused, unknown.
The body is decoded and matched as FastStream does; neither handler nor dependency nor middleware
runs, and what cannot be known without them is unknown.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fast_depends.exceptions import ValidationError as DependsError
from faststream import BaseMiddleware
from pydantic import ValidationError

from outlast.faststream.app_loading import brokers_of, load_app
from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.parser import decode_body, parse_row
from outlast.faststream.subscriber import OutboxSubscriber
from outlast.faststream.upstream import ContextField, default_filter
from outlast.model.letter_view import LetterView
from outlast.ops.options import BodyTest

__all__ = ["Known", "body_test_of", "known_of", "load_app"]

Answer = Literal["accepted", "refused", "unknown"]

_REFUSALS = (ValidationError, DependsError)
_OURS = ("outlast.", "faststream.")
_CHANGES_MESSAGES = ("__init__", "__call__", "__aenter__", "on_receive", "consume_scope")
_DEPTH_MAX = 20


class Known(NamedTuple):
    """What an application names: an operator who filters by it has not mistyped."""

    queues: frozenset[str]
    subscribers: frozenset[str]


class _CannotTell(Exception):  # noqa: N818 - an answer
    """It depends on what must not be run."""


def known_of(app: Any) -> Known:
    """The queues that the application serves, and the names of its subscribers."""
    served = _subscribers(app)
    return Known(
        frozenset(queue for subscriber in served for queue in subscriber.queues),
        frozenset(
            name
            for subscriber in served
            if (name := subscriber.specification.call_name) is not None
        ),
    )


def body_test_of(app: Any) -> BodyTest:
    """Asks the handlers of this application, broker or router. Never raises."""
    checks: dict[str, list[_SubscriberCheck]] = {}
    for subscriber in _subscribers(app):
        check = _SubscriberCheck(subscriber)
        for queue in subscriber.queues:
            checks.setdefault(queue, []).append(check)

    def test(letter: LetterView, queue: str) -> Answer:
        # whoever of them is free first gets the message
        return _unanimous(check.ask(letter, queue) for check in checks.get(queue, ()))

    return test


def _subscribers(app: Any) -> list[OutboxSubscriber]:
    found = [subscriber for broker in brokers_of(app) for subscriber in broker.subscribers]
    return [subscriber for subscriber in found if isinstance(subscriber, OutboxSubscriber)]


def _unanimous(answers: Iterable[Answer]) -> Answer:
    given = set(answers)
    return given.pop() if len(given) == 1 else "unknown"


class _SubscriberCheck:
    """One subscriber, whose models are made when it is first asked."""

    def __init__(self, subscriber: OutboxSubscriber) -> None:
        self._subscriber = subscriber
        self._models: list[_Model] | None = None

    def ask(self, letter: LetterView, queue: str) -> Answer:
        try:
            if letter.payload is None or not all(map(_is_harmless, self._middlewares())):
                return "unknown"
            return self._asked(_row_of(letter, queue, letter.payload))
        except Exception:  # noqa: BLE001 - an application that cannot be asked is no reason to fail
            return "unknown"

    def _middlewares(self) -> Sequence[Any]:
        return tuple(self._subscriber.outer_config.broker_middlewares)

    def _asked(self, row: OutboxInnerMessage) -> Answer:
        if self._models is None:
            self._models = []  # once: an application that cannot be asked stays so
            self._models = self._made()
        if not self._models:
            return "unknown"
        try:
            body = _at_once(decode_body(_at_once(parse_row(row))))
        except _CannotTell:
            raise
        except Exception:  # noqa: BLE001 - whatever it is, the body is not readable
            return "refused"
        return _unanimous(model.ask(body) for model in self._models)

    def _made(self) -> "list[_Model]":
        """The models of the handlers that the message may reach."""
        subscriber = self._subscriber
        if any(call.dependant is None for call in subscriber.calls):
            # what a start does first; nothing is opened
            subscriber._build_fastdepends_model()  # noqa: SLF001 - of our own class
        config = subscriber.outer_config.fd_config
        models: list[_Model] = []
        for call in subscriber.calls:
            is_plain = call.parser is parse_row and call.decoder is decode_body
            if not is_plain or config.get_dependent is not None:
                raise _CannotTell
            models.append(_Model(call.dependant, casts=config.use_fastdepends))
            if call.filter is default_filter:
                break
        return models


class _Model:
    """What one handler takes from a body: its own parameters, and those of its dependencies."""

    def __init__(self, call: Any, *, casts: bool) -> None:
        self._call = call
        self._casts = casts
        given = call.flat_params
        self._takes_several = len(given) > 1 or any(
            option.kind is inspect.Parameter.VAR_POSITIONAL for option in given
        )
        self._parts: dict[int, Callable[[dict[str, Any]], Any]] = {}

    def ask(self, body: Any) -> Answer:
        """Whether every model takes what it would get."""
        positional: Sequence[Any] = (body,)
        named: Mapping[str, Any] = {}
        if self._takes_several:
            # as FastStream spreads a body over several parameters
            if isinstance(body, Mapping):
                positional, named = (), body
            elif isinstance(body, Sequence):
                positional = body
            else:
                return "refused"
        if not self._casts or self._call.serializer is None:
            return "unknown" if self._takes_several else "accepted"
        try:
            self._match(self._call, positional, named, 0)
        except _REFUSALS:
            return "refused"
        except _CannotTell:
            return "unknown"
        return "accepted"

    def _match(
        self, call: Any, positional: Sequence[Any], named: Mapping[str, Any], depth: int
    ) -> None:
        foreign = [
            field for field in call.custom_fields.values() if type(field) is not ContextField
        ]
        if foreign or depth > _DEPTH_MAX:
            # a field of its own kind may change what the model gets
            raise _CannotTell
        rest, matched = self._matched(call, positional, named)
        if call.params:
            self._part(call)(matched)
        provider = call.dependency_provider
        for key in (*call.extra_dependencies, *call.dependencies.values()):
            self._match(provider.get_dependant(key), rest, matched, depth + 1)

    @staticmethod
    def _matched(
        call: Any, positional: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Which parameter gets what: the first half of a call, before any dependency is asked."""
        steps = call._solve(*positional, cache_dependencies={}, **named)  # noqa: SLF001
        try:
            rest, matched = next(steps)
            return rest, dict(matched)
        finally:
            steps.close()

    def _part(self, call: Any) -> Callable[[dict[str, Any]], Any]:
        """The model without what does not come from the body."""
        part = self._parts.get(id(call))
        if part is None:
            if call.serializer_cls is None:
                raise _CannotTell
            part = call.serializer_cls(
                name=call.call_name,
                options=list(call.params),
                response_type=inspect.Parameter.empty,
            )
            self._parts[id(call)] = part
        return part


def _is_harmless(middleware: Any) -> bool:
    """Whether a middleware surely lets the message through as it is."""
    kind = middleware if isinstance(middleware, type) else type(middleware)
    if kind.__module__.startswith(_OURS):
        return True
    if middleware is not kind or not issubclass(kind, BaseMiddleware):
        return False
    own = kind.__mro__[: kind.__mro__.index(BaseMiddleware)]
    return not any(name in vars(one) for one in own for name in _CHANGES_MESSAGES)


def _row_of(letter: LetterView, queue: str, payload: bytes) -> OutboxInnerMessage:
    return OutboxInnerMessage(
        id=letter.original_id,
        queue=queue,
        payload=bytes(payload),
        headers=None if letter.headers is None else dict(letter.headers),
        attempts_count=0,
        deliveries_count=1,
        created_at=letter.created_at,
        next_attempt_at=letter.created_at,
        first_attempt_at=None,
        last_attempt_at=None,
        acquired_at=None,
        acquired_token=None,
    )


def _at_once(steps: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    steps.close()
    raise _CannotTell
