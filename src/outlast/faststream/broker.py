"""`OutboxBroker`: a FastStream broker whose queues are rows of the application's own database.

Publishing joins the caller's transaction; consuming runs an engine beside the pool. The broker
never disposes the application's engine, and never commits for it.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from faststream.exceptions import IncorrectState
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec
from sqlalchemy import Table

from outlast.engine.options import EngineOptions
from outlast.faststream.broker_log import make_outbox_logger_state, package_logger
from outlast.faststream.config import LastExceptionRenderer, OutboxBrokerConfig
from outlast.faststream.consuming import Consuming, this_instance
from outlast.faststream.foreign import warn_about_stopped_brokers
from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.producer import OutboxProducer
from outlast.faststream.registration import warn_about_competitors
from outlast.faststream.registrator import OutboxRegistrator
from outlast.faststream.response import OutboxPublishCommand, correlation_of
from outlast.faststream.sql_client import OutboxClient
from outlast.faststream.start_checks import (
    consumers,
    warn_about_neighbours,
    warn_about_small_pool,
)
from outlast.faststream.upstream import EMPTY, BrokerUsecase, ContextRepo, FastDependsConfig
from outlast.model.events import Emit
from outlast.observe.logs import LogRecorder
from outlast.observe.recorder import guarded
from outlast.ports.store import Store
from outlast.publish.arguments import SessionOrConnection, TimerConflict, check_arguments

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outlast.faststream.client import AbstractOutboxClient
    from outlast.faststream.fake_client import FakeOutboxClient


class _BatchCommand(OutboxPublishCommand):
    called = "broker.publish_batch"


class OutboxBroker(
    OutboxRegistrator,
    BrokerUsecase[OutboxInnerMessage, Any, OutboxBrokerConfig],
):
    """Publishes into an outbox table, and consumes it."""

    fake_client: "FakeOutboxClient"
    """There while a test broker is active."""

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
        dependencies: "Sequence[Dependant]" = (),
        middlewares: Sequence[Any] = (),
        graceful_timeout: float | None = 15.0,
        routers: Sequence[Any] = (),
        metrics_recorder: Emit | None = None,
        last_exception_renderer: LastExceptionRenderer | None = None,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        description: str | None = None,
        tags: Iterable[Any] = (),
    ) -> None:
        log_state = make_outbox_logger_state(logger=logger, log_level=log_level)
        package_log = logger if isinstance(logger, logging.Logger) else package_logger
        emit = guarded(metrics_recorder, package_log)
        producer = OutboxProducer()
        client = OutboxClient(engine, outbox_table, dlq_table=dlq_table, notify=notify)
        config = OutboxBrokerConfig(
            outbox_table=outbox_table,
            dlq_table=dlq_table,
            engine=engine,
            writer=client.writer,
            client=None if engine is None else client,
            consuming=Consuming(
                self._open_store,
                options=EngineOptions(
                    consumer_instance=consumer_instance or this_instance(),
                    consumer_version=consumer_version,
                ),
                emit=None if metrics_recorder is None else emit,
                log=guarded(LogRecorder(package_log), package_log),
                logger=package_log,
                graceful_timeout=graceful_timeout,
            ),
            emit=emit,
            last_exception_renderer=last_exception_renderer,
            producer=producer,
            broker_middlewares=tuple(middlewares),
            broker_parser=parser,
            broker_decoder=decoder,
            logger=log_state,
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types, serializer=serializer, context=ContextRepo()
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            extra_context={"broker": self},
        )
        producer.attach(config)
        super().__init__(
            config=config,
            specification=_specification(engine, outbox_table, description, tags),
            routers=routers,
        )
        self._under_test = False

    @property
    def _config(self) -> OutboxBrokerConfig:
        return self.config.broker_config

    def _open_store(self) -> Store:
        # drivers are imported by the store that needs them
        from outlast.stores.connect import store_for  # noqa: PLC0415

        config = self._config
        assert config.engine is not None, "connect() has checked"
        return store_for(config.engine, config.outbox_table, config.dlq_table)

    # -- life

    async def __aenter__(self) -> Self:
        """Start, not only connect. A test broker starts it when its time has come."""
        await (self.connect() if self._under_test else self.start())
        return self

    async def _connect(self) -> Any:
        engine = self._config.engine
        if engine is None:
            raise IncorrectState(
                "Engine not available: OutboxBroker was made without one, so it can publish but "
                "not consume; pass an AsyncEngine as its first argument",
            )
        return engine

    async def start(self) -> None:
        """Connect, and begin to consume."""
        if self.running:
            return
        await self.connect()
        consuming = self._config.consuming
        consuming.prepare()
        try:
            await super().start()
            await consuming.begin()
        except BaseException:
            await self.stop()
            raise
        self._warn_at_start()

    def _warn_at_start(self) -> None:
        subscribers = consumers(self.subscribers)
        if self._config.engine is not None:
            workers = sum(s.options.max_workers for s in subscribers)
            warn_about_small_pool(self._config.engine, workers)
            warn_about_neighbours(self)
        warn_about_stopped_brokers(subscribers)
        warn_about_competitors(
            [q for s in group for q in s.queues] for group in self._subscribers_by_registrator()
        )

    def _subscribers_by_registrator(self) -> Iterable[list[Any]]:
        yield list(self._subscribers)
        for router in self.routers:
            for subscriber in router.subscribers:
                yield [subscriber]

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,  # noqa: ARG002
        exc_val: BaseException | None = None,  # noqa: ARG002
        exc_tb: TracebackType | None = None,  # noqa: ARG002
    ) -> None:
        """Drain every subscriber at once, give back the rest. Never raises."""
        self.running = False
        subscribers = self.subscribers
        answers = await asyncio.gather(*(s.stop() for s in subscribers), return_exceptions=True)
        for subscriber, answer in zip(subscribers, answers, strict=True):
            if isinstance(answer, BaseException):
                package_logger.error("%r did not stop cleanly", subscriber, exc_info=answer)
        try:
            await self._config.consuming.end()
        except Exception:  # noqa: BLE001 - a stop never raises
            package_logger.exception("the engine of %r did not stop cleanly", self)
        self._connection = None

    # -- publishing

    async def publish(  # type: ignore[override]
        self,
        body: Any,
        *,
        queue: str,
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
        """One message on the session's transaction; its row id, or None when its timer is taken."""
        cmd = OutboxPublishCommand(
            body,
            queue=queue,
            session=session,
            headers=headers,
            correlation_id=correlation_id,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
            message_id=message_id,
            event_type=event_type,
            session_optional=self._config.session_optional,
        )
        cmd.correlation_id = correlation_of(headers, correlation_id)
        row_id: int | None = await self._basic_publish(cmd, producer=self._config.producer)
        return row_id

    async def publish_batch(
        self,
        *bodies: Any,
        queue: str,
        session: SessionOrConnection | None = None,
        headers: dict[str, str] | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        event_type: str | None = None,
    ) -> None:
        """Many messages on the session's transaction, in order."""
        if not bodies:
            check_arguments(
                _BatchCommand.called,
                queue=queue,
                session=session,
                activate_in=activate_in,
                activate_at=activate_at,
                session_optional=self._config.session_optional,
            )
            return
        cmd = _BatchCommand(
            *bodies,
            queue=queue,
            session=session,
            headers=headers,
            activate_in=activate_in,
            activate_at=activate_at,
            event_type=event_type,
            session_optional=self._config.session_optional,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish_batch(cmd, producer=self._config.producer)

    async def request(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("the outbox has no request-reply: nobody waits for an answer")

    # -- looking

    async def cancel_timer(
        self, *, queue: str, timer_id: str, session: SessionOrConnection
    ) -> bool:
        """Whether this call deleted the live, unleased timer; durable when the caller commits."""
        return await self._config.writer.cancel_timer(session, queue=queue, timer_id=timer_id)

    async def fetch_unprocessed(
        self, *, session: SessionOrConnection, queue: str | None = None, limit: int = 1000
    ) -> list[OutboxInnerMessage]:
        """Rows that are not settled, by id: pending, leased and future ones, without a lease."""
        rows = await self._config.writer.fetch_unprocessed(session, queue=queue, limit=limit)
        return [OutboxInnerMessage(**row) for row in rows]

    async def validate_schema(self, *, check_autovacuum: bool = False) -> None:
        """Compare the live tables with this release; `SchemaError` lists what differs."""
        await self._connect()
        await self.client.validate_schema(check_autovacuum=check_autovacuum)

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether the database answers and every loop of every subscriber lives."""
        client = self._config.client
        if client is None or not self._config.consuming.is_healthy:
            return False
        try:
            async with asyncio.timeout(timeout):
                return await client.ping()
        except TimeoutError:
            return False

    @property
    def client(self) -> "AbstractOutboxClient":
        """The statements of this outbox, one by one."""
        client = self._config.client
        if client is None:
            raise RuntimeError("the broker is not connected: it was made without an engine")
        return client


def _specification(
    engine: "AsyncEngine | None",
    outbox_table: Table,
    description: str | None,
    tags: Iterable[Any],
) -> BrokerSpec:
    if engine is None:
        protocol, url = "postgresql", f"postgresql://outbox/{outbox_table.name}"
    else:
        protocol = engine.dialect.name
        url = engine.url.render_as_string(hide_password=True)
    return BrokerSpec(
        url=[url],
        protocol=protocol,
        protocol_version=None,
        description=description,
        tags=tuple(tags),
        security=None,
    )
