"""Routers: subscribers and publishers without a broker, to be included into one."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from faststream import AckPolicy

from outlast.faststream.config import OutboxBrokerConfig, OutboxRouterConfig
from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.registrator import OutboxRegistrator
from outlast.faststream.upstream import BrokerRouter, SubscriberRoute
from outlast.policy.retry import RetryStrategyProto

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant

_NOT_HANDED_ON = {"self", "call", "queues", "__class__"}


class OutboxRoute(SubscriberRoute):
    """A handler and what its subscriber is registered with."""

    def __init__(
        self,
        call: Callable[..., Any],
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
    ) -> None:
        keywords = {k: v for k, v in locals().items() if k not in _NOT_HANDED_ON}
        super().__init__(call, queues, **keywords)


class OutboxRouter(OutboxRegistrator, BrokerRouter[OutboxInnerMessage, OutboxBrokerConfig]):
    """Includable into an `OutboxBroker`. There are no prefixes."""

    def __init__(
        self,
        handlers: Iterable[OutboxRoute] = (),
        *,
        dependencies: "Sequence[Dependant]" = (),
        middlewares: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
        routers: Iterable[Any] = (),
    ) -> None:
        super().__init__(
            handlers=handlers,
            # until a broker includes it, a router has nothing but its own additions
            config=cast(
                "OutboxBrokerConfig",
                OutboxRouterConfig(
                    broker_dependencies=dependencies,
                    broker_middlewares=tuple(middlewares),
                    broker_parser=parser,
                    broker_decoder=decoder,
                    include_in_schema=include_in_schema,
                ),
            ),
            routers=routers,
        )
