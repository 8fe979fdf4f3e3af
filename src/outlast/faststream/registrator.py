"""Registering subscribers and publishers, on a broker or a router."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from faststream import AckPolicy

from outlast.faststream.config import (
    OutboxBrokerConfig,
    OutboxPublisherConfig,
    OutboxSubscriberConfig,
)
from outlast.faststream.handler import OutboxCalls
from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.publisher import OutboxPublisher
from outlast.faststream.registration import register, warn_about_duplicates
from outlast.faststream.specification import (
    OutboxPublisherSpecification,
    OutboxPublisherSpecificationConfig,
    OutboxSubscriberSpecification,
    OutboxSubscriberSpecificationConfig,
)
from outlast.faststream.subscriber import OutboxSubscriber
from outlast.faststream.upstream import Registrator
from outlast.policy.names import check_queue
from outlast.policy.retry import RetryStrategyProto

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant


class OutboxRegistrator(Registrator[OutboxInnerMessage, OutboxBrokerConfig]):
    """What a broker and a router have in common."""

    def subscriber(  # type: ignore[override]
        self,
        queues: str | list[str],
        *,
        max_workers: int = 1,
        retry_strategy: RetryStrategyProto | None = None,
        fetch_batch_size: int = 10,
        min_fetch_interval: float = 1.0,
        max_fetch_interval: float = 10.0,
        lease_ttl_seconds: float = 60.0,
        lease_limit_seconds: float | None = None,
        max_deliveries: int | None = None,
        terminal_flush_batch_size: int = 1,
        ack_policy: AckPolicy | None = None,
        propagate_inbound_headers: bool = False,
        dependencies: "Sequence[Dependant]" = (),
        parser: Any = None,
        decoder: Any = None,
        title_: str | None = None,
        description_: str | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
    ) -> OutboxSubscriber:
        """A decorator that makes a function the handler of these queues."""
        registration = register(
            queues,
            ack_policy=ack_policy,
            retry_strategy=retry_strategy,
            propagate_inbound_headers=propagate_inbound_headers,
            max_workers=max_workers,
            fetch_batch_size=fetch_batch_size,
            min_fetch_interval=min_fetch_interval,
            max_fetch_interval=max_fetch_interval,
            lease_ttl_seconds=lease_ttl_seconds,
            lease_limit_seconds=lease_limit_seconds,
            max_deliveries=max_deliveries,
            terminal_flush_batch_size=terminal_flush_batch_size,
        )
        names = registration.options.queues
        warn_about_duplicates(
            names, [q for s in self._subscribers for q in cast("OutboxSubscriber", s).queues]
        )
        outer = cast("OutboxBrokerConfig", self.config)
        calls = OutboxCalls(propagate=propagate_inbound_headers)
        specification = OutboxSubscriberSpecification(
            outer,
            OutboxSubscriberSpecificationConfig(
                queues=names,
                title_=title_,
                description_=description_,
                include_in_schema=include_in_schema,
            ),
            calls,
        )
        subscriber = OutboxSubscriber(
            OutboxSubscriberConfig(_outer_config=outer, registration=registration),
            specification,
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        queue: str,
        *,
        headers: dict[str, str] | None = None,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        persistent: bool = True,
    ) -> OutboxPublisher:
        """A publisher of one queue."""
        outer = cast("OutboxBrokerConfig", self.config)
        publisher = OutboxPublisher(
            OutboxPublisherConfig(
                _outer_config=outer, queue=check_queue(queue), headers=dict(headers or {})
            ),
            OutboxPublisherSpecification(
                outer,
                OutboxPublisherSpecificationConfig(
                    queue=queue,
                    schema_=schema,
                    title_=title,
                    description_=description,
                    include_in_schema=include_in_schema,
                ),
            ),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(
        self,
        router: Any,
        *,
        prefix: str = "",
        dependencies: "Sequence[Dependant]" = (),
        middlewares: Sequence[Any] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Include a router. Queues have no prefixes: a name is what stands in the table."""
        if prefix:
            raise ValueError(
                f"prefix={prefix!r} is not supported: the name of a queue is what stands in the "
                "outbox table; name the queues in full",
            )
        super().include_router(
            router,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
