"""FastStream's OpenTelemetry middleware, told what is what in an outbox message."""

from typing import TYPE_CHECKING, Any

from faststream.message import StreamMessage

from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.response import OutboxPublishCommand
from outlast.observe import BROKER_SYSTEM

try:
    from faststream.opentelemetry import TelemetrySettingsProvider
    from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
    from faststream.opentelemetry.middleware import TelemetryMiddleware
    from opentelemetry.semconv.trace import SpanAttributes
except ImportError as error:
    raise ImportError(
        "OutboxTelemetryMiddleware needs opentelemetry-sdk: pip install 'outlast[opentelemetry]'"
    ) from error

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider


class OutboxTelemetrySettingsProvider(
    TelemetrySettingsProvider[OutboxInnerMessage, OutboxPublishCommand]
):
    """Attributes of outbox messages."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = BROKER_SYSTEM

    def get_consume_attrs_from_message(
        self, msg: StreamMessage[OutboxInnerMessage]
    ) -> dict[str, Any]:
        """Of a consumed message."""
        return {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: len(msg.body),
            MESSAGING_DESTINATION_PUBLISH_NAME: msg.raw_message.queue,
        }

    def get_consume_destination_name(self, msg: StreamMessage[OutboxInnerMessage]) -> str:
        """Where from."""
        return msg.raw_message.queue

    def get_publish_attrs_from_cmd(self, cmd: OutboxPublishCommand) -> dict[str, Any]:
        """Of a publish."""
        attributes: dict[str, Any] = {
            SpanAttributes.MESSAGING_SYSTEM: self.messaging_system,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
        }
        if cmd.correlation_id:
            attributes[SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID] = cmd.correlation_id
        if len(cmd.batch_bodies) > 1:
            attributes[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(cmd.batch_bodies)
        return attributes

    def get_publish_destination_name(self, cmd: OutboxPublishCommand) -> str:
        """Where to."""
        return cmd.destination


class OutboxTelemetryMiddleware(TelemetryMiddleware[OutboxPublishCommand]):
    """Add it to the broker's middlewares."""

    def __init__(
        self,
        *,
        tracer_provider: "TracerProvider | None" = None,
        meter_provider: "MeterProvider | None" = None,
        meter: "Meter | None" = None,
        include_messages_counters: bool = False,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: OutboxTelemetrySettingsProvider(),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )
