"""Publishing as FastStream sees it: the command, the response, and the publisher of responses.

Arguments are checked when a command or response is made, so a wrong one fails on the user's line.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

from faststream.response import PublishCommand, PublishType, Response

from outlast.model.errors import OutlastError
from outlast.model.headers import CORRELATION_ID
from outlast.publish.arguments import (
    SessionOrConnection,
    TimerConflict,
    check_arguments,
    check_one_body,
)
from outlast.publish.envelope import envelope

if TYPE_CHECKING:
    from outlast.faststream.config import OutboxBrokerConfig


class ForeignPublisherConflict(OutlastError, RuntimeError):  # noqa: N818 - names what happened
    """A handler answers with an OutboxResponse and publishes to another broker, too."""


class NoOpenTransaction(OutlastError, RuntimeError):  # noqa: N818
    """The session of a response has no transaction that somebody will commit."""


class OutboxPublishCommand(PublishCommand):
    """One publish on its way through the publish middlewares."""

    called = "OutboxPublishCommand"
    """How errors about its arguments begin."""

    def __init__(
        self,
        body: Any,
        *extra_bodies: Any,
        queue: str,
        session: SessionOrConnection | None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
        message_id: str | None = None,
        event_type: str | None = None,
        session_optional: bool = False,
        _publish_type: PublishType = PublishType.PUBLISH,
    ) -> None:
        check_arguments(
            self.called,
            queue=queue,
            session=session,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
            session_optional=session_optional,
        )
        check_one_body(
            1 + len(extra_bodies),
            timer_id=timer_id,
            correlation_id=correlation_id,
            message_id=message_id,
        )
        super().__init__(
            body,
            destination=queue,
            headers=dict(headers) if headers else None,
            correlation_id=correlation_id,
            _publish_type=_publish_type,
        )
        self.extra_bodies: tuple[Any, ...] = extra_bodies
        self.session = session
        self.activate_in = activate_in
        self.activate_at = activate_at
        self.timer_id = timer_id
        self.timer_conflict = timer_conflict
        self.message_id = message_id
        self.event_type = event_type

    @property
    def queue(self) -> str:
        """Where to."""
        return self.destination

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """Every body, in order; None is one, too."""
        return (self.body, *self.extra_bodies)

    @batch_bodies.setter
    def batch_bodies(self, bodies: Sequence[Any]) -> None:
        self.body, *extra = bodies
        self.extra_bodies = tuple(extra)

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> NoReturn:
        """Not supported: another broker's command has no transaction to join."""
        raise NotImplementedError(
            f"{cls.__name__}.from_cmd is not supported: {type(cmd).__name__} carries no session; "
            "return an OutboxResponse, or publish with a session",
        )


class OutboxResponse(Response):
    """Returned from a handler: one message, inserted on this session after the handler ended."""

    def __init__(
        self,
        body: Any,
        *,
        queue: str,
        session: SessionOrConnection,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
        message_id: str | None = None,
        event_type: str | None = None,
    ) -> None:
        check_arguments(
            "OutboxResponse",
            queue=queue,
            session=session,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
        )
        checked = envelope(
            headers,
            content_type=None,
            correlation_id=correlation_id,
            new_correlation_id=lambda: "",
            message_id=message_id,
            event_type=event_type,
        )
        super().__init__(body, headers=headers, correlation_id=checked[CORRELATION_ID] or None)
        self.queue = queue
        self.session = session
        self.activate_in = activate_in
        self.activate_at = activate_at
        self.timer_id = timer_id
        self.timer_conflict = timer_conflict
        self.message_id = message_id
        self.event_type = event_type

    def as_publish_command(self) -> OutboxPublishCommand:
        """The command that inserts it."""
        return OutboxPublishCommand(
            self.body,
            queue=self.queue,
            session=self.session,
            headers=self.headers,
            correlation_id=self.correlation_id,
            activate_in=self.activate_in,
            activate_at=self.activate_at,
            timer_id=self.timer_id,
            timer_conflict=self.timer_conflict,
            message_id=self.message_id,
            event_type=self.event_type,
        )


def correlation_of(headers: dict[str, Any] | None, keyword: str | None) -> str:
    """The correlation id of a publish: the keyword, else the header, else a new one."""
    return keyword or (headers or {}).get(CORRELATION_ID) or str(uuid4())


class ResponsePublisher:
    """First in the line of a handler's publishers: inserts an OutboxResponse, ignores the rest."""

    def __init__(self, config: "OutboxBrokerConfig") -> None:
        self._config = config

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> Any:
        if not isinstance(cmd, OutboxPublishCommand):
            return None
        if cmd.session is None or not cmd.session.in_transaction():
            raise NoOpenTransaction(
                f"an OutboxResponse to queue {cmd.queue!r} was returned after its session's "
                "transaction had ended, or before it began: nobody would commit the message; "
                "return it from inside the transaction, or let a dependency commit after the "
                "handler",
            )
        publish: Any = self._config.producer.publish
        for middleware in _extra_middlewares:
            publish = partial(middleware, publish)
        return await publish(cmd)
