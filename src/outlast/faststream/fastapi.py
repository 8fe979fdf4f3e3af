"""The FastAPI router: an `APIRouter` with a broker, which the application's lifespan starts.

`Depends` in a subscriber is FastAPI's, solved anew for each delivery.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from fastapi import params
from fastapi.datastructures import Default
from fastapi.routing import APIRoute
from fastapi.utils import generate_unique_id
from faststream import AckPolicy
from sqlalchemy import Table
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Lifespan

from outlast.faststream.broker import OutboxBroker
from outlast.faststream.config import LastExceptionRenderer
from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.publisher import OutboxPublisher
from outlast.faststream.subscriber import OutboxSubscriber
from outlast.faststream.upstream import EMPTY, ContextRepo, StreamRouter
from outlast.model.events import Emit
from outlast.policy.retry import RetryStrategyProto

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_NOT_HANDED_ON = {"self", "engine", "queues", "__class__"}


class OutboxRouter(StreamRouter[OutboxInnerMessage]):
    """Subscribers and publishers of an outbox inside a FastAPI application."""

    broker_class = OutboxBroker
    broker: OutboxBroker

    def __init__(
        self,
        engine: "AsyncEngine | None" = None,
        *,
        outbox_table: Table,
        dlq_table: Table | None = None,
        consumer_version: str | None = None,
        consumer_instance: str | None = None,
        notify: bool = True,
        decoder: Any = None,
        parser: Any = None,
        middlewares: Sequence[Any] = (),
        graceful_timeout: float | None = 15.0,
        serializer: Any = EMPTY,
        metrics_recorder: Emit | None = None,
        last_exception_renderer: LastExceptionRenderer | None = None,
        specification: Any = None,
        description: str | None = None,
        specification_tags: Iterable[Any] = (),
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        setup_state: bool = True,
        schema_url: str | None = "/asyncapi",
        context: ContextRepo | None = None,
        prefix: str = "",
        tags: list[str | Enum] | None = None,
        dependencies: Sequence[params.Depends] | None = None,
        default_response_class: type[Response] = Default(JSONResponse),  # noqa: B008
        responses: dict[int | str, dict[str, Any]] | None = None,
        callbacks: list[BaseRoute] | None = None,
        routes: list[BaseRoute] | None = None,
        redirect_slashes: bool = True,
        default: ASGIApp | None = None,
        dependency_overrides_provider: Any = None,
        route_class: type[APIRoute] = APIRoute,
        on_startup: Sequence[Callable[[], Any]] | None = None,
        on_shutdown: Sequence[Callable[[], Any]] | None = None,
        lifespan: Lifespan[Any] | None = None,
        deprecated: bool | None = None,
        include_in_schema: bool = True,
        generate_unique_id_function: Callable[[APIRoute], str] = Default(generate_unique_id),  # noqa: B008
    ) -> None:
        # forty keywords, and each goes on under its own name
        keywords = {k: v for k, v in locals().items() if k not in _NOT_HANDED_ON}
        super().__init__(engine, **keywords)

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
        dependencies: Iterable[params.Depends] = (),
        parser: Any = None,
        decoder: Any = None,
        title_: str | None = None,
        description_: str | None = None,
        include_in_schema: bool = True,
        response_model: Any = Default(None),  # noqa: B008
        response_model_include: Any = None,
        response_model_exclude: Any = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
    ) -> OutboxSubscriber:
        """A decorator that makes a function the handler of these queues."""
        keywords = {k: v for k, v in locals().items() if k not in _NOT_HANDED_ON}
        subscriber: Any = super().subscriber(queues, **keywords)  # type: ignore[arg-type]
        assert isinstance(subscriber, OutboxSubscriber)
        return subscriber

    def publisher(  # type: ignore[override]
        self,
        queue: str,
        *,
        headers: dict[str, str] | None = None,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> OutboxPublisher:
        """A publisher of one queue."""
        return self.broker.publisher(
            queue,
            headers=headers,
            title=title,
            description=description,
            schema=schema,
            include_in_schema=include_in_schema,
        )
