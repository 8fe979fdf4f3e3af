"""FastStream's Prometheus middleware, told what is what in an outbox message."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from faststream.message import StreamMessage

from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.response import OutboxPublishCommand
from outlast.faststream.upstream import EMPTY
from outlast.observe import BROKER_SYSTEM

try:
    from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
    from faststream.prometheus.middleware import PrometheusMiddleware
except ImportError as error:
    raise ImportError(
        "OutboxPrometheusMiddleware needs prometheus-client: pip install 'outlast[prometheus]'"
    ) from error

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class OutboxMetricsSettingsProvider(
    MetricsSettingsProvider[OutboxInnerMessage, OutboxPublishCommand]
):
    """Names and sizes of outbox messages."""

    __slots__ = ("messaging_system",)

    def __init__(self) -> None:
        self.messaging_system = BROKER_SYSTEM

    def get_consume_attrs_from_message(
        self, msg: StreamMessage[OutboxInnerMessage]
    ) -> ConsumeAttrs:
        """What is consumed."""
        return {
            "destination_name": msg.raw_message.queue,
            "message_size": len(msg.body),
            "messages_count": 1,
        }

    def get_publish_destination_name_from_cmd(self, cmd: OutboxPublishCommand) -> str:
        """Where to."""
        return cmd.destination


class OutboxPrometheusMiddleware(PrometheusMiddleware[OutboxInnerMessage, OutboxPublishCommand]):
    """Add it to the broker's middlewares."""

    def __init__(
        self,
        *,
        registry: "CollectorRegistry",
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: OutboxMetricsSettingsProvider(),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )
