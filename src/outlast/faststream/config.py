"""The configuration objects of the door: what a broker, its subscribers and publishers share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream import AckPolicy
from sqlalchemy import Table

from outlast.faststream.upstream import (
    BrokerConfig,
    PublisherUsecaseConfig,
    SubscriberUsecaseConfig,
    UnderlyingDriverAnnotation,
)
from outlast.model.events import Emit
from outlast.observe.recorder import silent

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outlast.faststream.client import AbstractOutboxClient
    from outlast.faststream.consuming import Consuming
    from outlast.faststream.registration import Registration
    from outlast.publish.run import Writer

LastExceptionRenderer = Callable[[BaseException], str | None]


def _annotations() -> dict[Any, Any]:
    # the shortcuts import the broker, which imports this module
    from outlast.faststream import annotations  # noqa: PLC0415
    from outlast.faststream.broker import OutboxBroker  # noqa: PLC0415
    from outlast.faststream.message import OutboxMessage  # noqa: PLC0415

    return {
        driver: UnderlyingDriverAnnotation(
            type_hint=hint, module="outlast.annotations", name=driver.__name__
        )
        for driver, hint in (
            (OutboxBroker, annotations.OutboxBroker),
            (OutboxMessage, annotations.OutboxMessage),
        )
    }


@dataclass(kw_only=True)
class OutboxBrokerConfig(BrokerConfig):
    """What every part of one broker sees."""

    outbox_table: Table
    dlq_table: Table | None = None
    engine: "AsyncEngine | None" = None
    writer: "Writer"
    consuming: "Consuming"
    client: "AbstractOutboxClient | None" = None
    emit: Emit = silent
    session_optional: bool = False
    """A test double needs no transaction to join."""
    last_exception_renderer: LastExceptionRenderer | None = None
    default_driver_annotations: Any = field(default_factory=_annotations)


@dataclass(kw_only=True)
class OutboxRouterConfig(BrokerConfig):
    """What a router adds; the rest comes from the broker that includes it."""


@dataclass(kw_only=True)
class OutboxSubscriberConfig(SubscriberUsecaseConfig):
    """One subscriber."""

    registration: "Registration"

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy it was registered with."""
        return self.registration.ack_policy


@dataclass(kw_only=True)
class OutboxPublisherConfig(PublisherUsecaseConfig):
    """One publisher."""

    queue: str
    headers: dict[str, str]
