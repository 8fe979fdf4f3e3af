"""A publisher: one queue and its static headers, to publish to with a session."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from outlast.faststream.config import OutboxPublisherConfig
from outlast.faststream.response import OutboxPublishCommand, correlation_of
from outlast.faststream.upstream import PublisherUsecase
from outlast.publish.arguments import SessionOrConnection, TimerConflict

if TYPE_CHECKING:
    from outlast.faststream.config import OutboxBrokerConfig


class OutboxPublisher(PublisherUsecase):
    """`publish` inserts one message on the caller's transaction."""

    _outer_config: "OutboxBrokerConfig"

    def __init__(self, config: OutboxPublisherConfig, specification: Any) -> None:
        super().__init__(config, specification)
        self.queue = config.queue
        self.headers = config.headers

    async def publish(
        self,
        body: Any,
        *,
        session: SessionOrConnection | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
        message_id: str | None = None,
        event_type: str | None = None,
    ) -> int | None:
        """One message; its row id, or None when its timer is taken."""
        merged = self.headers | headers if headers else dict(self.headers)
        cmd = OutboxPublishCommand(
            body,
            queue=self.queue,
            session=session,
            headers=merged,
            correlation_id=correlation_id,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
            message_id=message_id,
            event_type=event_type,
            session_optional=self._outer_config.session_optional,
        )
        cmd.correlation_id = correlation_of(merged, correlation_id)
        row_id: int | None = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return row_id

    async def request(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("the outbox has no request-reply: nobody waits for an answer")

    async def _publish(self, cmd: Any, *, _extra_middlewares: Iterable[Any]) -> None:
        raise NotImplementedError(
            f"the publisher of queue {self.queue!r} takes no results: a message needs a session"
        )

    def __call__(self, func: Any) -> NoReturn:
        """Not supported."""
        raise NotImplementedError(
            f"the publisher of queue {self.queue!r} cannot decorate a handler: the message needs "
            "the session it belongs to. Return an OutboxResponse, or call publish(..., session=...)"
            " in the handler",
        )
