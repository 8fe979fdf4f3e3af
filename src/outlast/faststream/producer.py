"""From a publish command to rows: encoded, enveloped, planned, inserted, and told.

Runs innermost, after the publish middlewares. The transaction is the caller's.
"""

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from faststream.message import encode_message

from outlast.faststream.parser import decode_body, parse_row
from outlast.faststream.response import OutboxPublishCommand
from outlast.faststream.upstream import DefaultCodec, ProducerProto
from outlast.model import events
from outlast.publish.envelope import envelope
from outlast.publish.plan import Plan, Row, batch_rows
from outlast.publish.run import publish, publish_batch

if TYPE_CHECKING:
    from outlast.faststream.config import OutboxBrokerConfig


class OutboxProducer(ProducerProto[OutboxPublishCommand]):
    """The broker's producer."""

    _parser = staticmethod(parse_row)
    _decoder = staticmethod(decode_body)
    codec = DefaultCodec()

    def __init__(self) -> None:
        self._config: OutboxBrokerConfig | None = None
        self._serializer: tuple[Any, Any] = (None, None)

    def attach(self, config: "OutboxBrokerConfig") -> None:
        """The broker's configuration: its writer is asked for at every publish."""
        self._config = config

    @property
    def config(self) -> "OutboxBrokerConfig":
        """The broker's configuration."""
        assert self._config is not None, "attached by the broker"
        return self._config

    async def publish(self, cmd: OutboxPublishCommand) -> int | None:
        """One message; its row id, or None when its timer is taken."""
        started, size = perf_counter(), 0
        try:
            payload, headers = self._encoded(cmd, cmd.body, cmd.correlation_id)
            plan = self._plan(cmd, (Row(payload, headers),))
            size = plan.size_bytes
            row_id = await publish(plan, cmd.session, self.config.writer)
        except BaseException as error:
            self._tell(cmd, 0, size, started, error)
            raise
        self._tell(cmd, 0 if row_id is None else 1, size, started)
        return row_id

    async def publish_batch(self, cmd: OutboxPublishCommand) -> None:
        """Many messages, in order."""
        started, size = perf_counter(), 0
        try:
            plan = self._plan(cmd, batch_rows(self._each(cmd)))
            size = plan.size_bytes
            await publish_batch(plan, cmd.session, self.config.writer)
        except BaseException as error:
            self._tell(cmd, 0, size, started, error)
            raise
        self._tell(cmd, len(plan.rows), size, started)

    async def request(self, cmd: OutboxPublishCommand) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("the outbox has no request-reply: nobody waits for an answer")

    def _each(self, cmd: OutboxPublishCommand) -> Iterator[tuple[bytes, dict[str, Any]]]:
        for body in cmd.batch_bodies:
            yield self._encoded(cmd, body, None)

    def _encoded(
        self, cmd: OutboxPublishCommand, body: Any, correlation_id: str | None
    ) -> tuple[bytes, dict[str, Any]]:
        fd_config = self.config.fd_config
        made_for, serializer = self._serializer
        if made_for is not fd_config:
            serializer = fd_config._serializer  # noqa: SLF001 - built anew at every access
            self._serializer = (fd_config, serializer)
        payload, content_type = encode_message(body, serializer)
        headers = envelope(
            cmd.headers,
            content_type=content_type,
            correlation_id=correlation_id,
            new_correlation_id=self.config.id_generator,
            message_id=cmd.message_id,
            event_type=cmd.event_type,
        )
        return payload, headers

    @staticmethod
    def _plan(cmd: OutboxPublishCommand, rows: tuple[Row, ...]) -> Plan:
        return Plan(
            queue=cmd.destination,
            rows=rows,
            activate_in=cmd.activate_in,
            activate_at=cmd.activate_at,
            timer_id=cmd.timer_id,
            timer_conflict=cmd.timer_conflict,
        )

    def _tell(
        self,
        cmd: OutboxPublishCommand,
        count: int,
        size: int,
        started: float,
        error: BaseException | None = None,
    ) -> None:
        tags: dict[str, Any] = {
            "queue": cmd.destination,
            "status": "success" if error is None else "error",
            "count": count,
            "size_bytes": size,
            "duration_seconds": perf_counter() - started,
        }
        if error is not None:
            tags["exception_type"] = type(error).__name__
        self.config.emit(events.PUBLISHED, tags)
