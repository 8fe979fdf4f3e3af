"""AsyncAPI: one channel per queue, its key `<queue>:<HandlerName>`, its address the queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from outlast.faststream.config import OutboxBrokerConfig
from outlast.faststream.upstream import (
    PublisherSpecification,
    PublisherSpecificationConfig,
    SubscriberSpecification,
    SubscriberSpecificationConfig,
)


@dataclass(kw_only=True)
class OutboxSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What a subscriber's channels are made from."""

    queues: Sequence[str]


@dataclass(kw_only=True)
class OutboxPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What a publisher's channel is made from."""

    queue: str


class OutboxSubscriberSpecification(
    SubscriberSpecification[OutboxBrokerConfig, OutboxSubscriberSpecificationConfig],
):
    """The channels of one subscriber."""

    @property
    def channel_labels(self) -> list[str]:
        """One channel per queue."""
        return list(self.config.queues)

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """The channels by key."""
        payloads = self.get_payloads()
        split = len(self.config.queues) > 1
        channels: dict[str, SubscriberSpec] = {}
        for queue in self.config.queues:
            key = self._channel_key(queue, split=split)
            channels[key] = SubscriberSpec(
                address=queue,
                description=self.description,
                operation=Operation(
                    message=Message(title=f"{key}:Message", payload=resolve_payloads(payloads)),
                    bindings=None,
                ),
                bindings=None,
            )
        return channels


class OutboxPublisherSpecification(
    PublisherSpecification[OutboxBrokerConfig, OutboxPublisherSpecificationConfig],
):
    """The channel of one publisher."""

    @property
    def name(self) -> str:
        """Its title, else its queue."""
        return self.config.title_ or f"{self.config.queue}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """The channel by key."""
        payloads: list[tuple[dict[str, Any], str]] = self.get_payloads()
        return {
            self.name: PublisherSpec(
                address=self.config.queue,
                description=self.config.description_,
                operation=Operation(
                    message=Message(
                        title=f"{self.name}:Message",
                        payload=resolve_payloads(payloads, "Publisher"),
                    ),
                    bindings=None,
                ),
                bindings=None,
            ),
        }
