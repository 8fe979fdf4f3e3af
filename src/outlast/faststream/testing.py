"""`TestOutboxBroker`: a broker on the memory store, with no database in reach.

By default a publish runs the matching handler before it returns; with `run_loops=True` the real
engine runs on the store. The producer and the middlewares are the real ones in both.
"""

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import Any, cast
from unittest import mock

from sqlalchemy.ext.asyncio import AsyncSession

from outlast.faststream.broker import OutboxBroker
from outlast.faststream.config import OutboxBrokerConfig
from outlast.faststream.fake_client import FakeOutboxClient
from outlast.faststream.inline import Inline
from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.producer import OutboxProducer
from outlast.faststream.publisher import OutboxPublisher
from outlast.faststream.response import OutboxPublishCommand
from outlast.faststream.subscriber import OutboxSubscriber
from outlast.faststream.upstream import TestBroker


def fake_session() -> Any:
    """A session to publish with under a test broker; its transaction is open for ever."""
    session = mock.MagicMock(spec=AsyncSession)
    session.in_transaction.return_value = True
    return session


class TestOutboxBroker(TestBroker[OutboxBroker, Any], broker=OutboxBroker):
    """`async with TestOutboxBroker(broker) as br:`."""

    def __init__(
        self,
        *brokers: OutboxBroker,
        run_loops: bool = False,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)
        self.run_loops = run_loops
        self.fake_client = FakeOutboxClient(
            dlq_enabled=any(_config(b).dlq_table is not None for b in brokers)
        )

    def feed(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: dict[str, Any] | None = None,
        next_attempt_at: datetime | None = None,
        timer_id: str | None = None,
    ) -> int | None:
        """A row as another process would have committed it; no handler runs before this returns."""
        return self.fake_client.feed(
            queue=queue,
            payload=payload,
            headers=headers,
            next_attempt_at=next_attempt_at,
            timer_id=timer_id,
        )

    # -- what FastStream's test broker asks for

    @contextmanager
    def _patch_broker(self, broker: OutboxBroker) -> Generator[None, None, None]:
        config, client, real_stop = _config(broker), self.fake_client, broker.stop
        if self.run_loops:
            consuming: Any = config.consuming.on(lambda: client.store)
        else:
            consuming = config.consuming.inline(partial(Inline, client.store))
        with ExitStack() as stack:
            for name, value in (
                ("writer", client.writer),
                ("client", client),
                ("consuming", consuming),
                ("session_optional", True),
            ):
                stack.enter_context(mock.patch.object(config, name, value))
            stack.enter_context(mock.patch.object(broker, "fake_client", client, create=True))
            stack.enter_context(mock.patch.object(broker, "_under_test", new=True))
            stack.enter_context(super()._patch_broker(broker))
            if self.run_loops:
                start = partial(self._start_loops, broker)
                stack.enter_context(mock.patch.object(broker, "start", start))
                stack.enter_context(mock.patch.object(broker, "stop", real_stop))
            yield

    async def _start_loops(self, broker: OutboxBroker) -> None:
        self._fake_start(broker)
        await OutboxBroker.start(broker)

    def _fake_start(self, broker: OutboxBroker, *args: Any, **kwargs: Any) -> None:
        super()._fake_start(broker, *args, **kwargs)
        consuming: object = _config(broker).consuming
        if isinstance(consuming, Inline):
            for subscriber in broker.subscribers:
                consuming.bind(cast("OutboxSubscriber", subscriber))

    @contextmanager
    def _patch_producer(self, broker: OutboxBroker) -> Generator[None, None, None]:
        producer = _DeliveringProducer(self)
        producer.attach(_config(broker))
        with mock.patch.object(_config(broker), "producer", producer):
            yield

    def create_publisher_fake_subscriber(
        self, broker: OutboxBroker, publisher: OutboxPublisher
    ) -> tuple[OutboxSubscriber, bool]:
        """The subscriber that records what a publisher sent, and whether it is a real one."""
        for subscriber in self.subscribers(publisher.queue):
            return subscriber, True
        double = broker.subscriber(publisher.queue, persistent=False, include_in_schema=False)
        if not self.with_real:
            # it records what is published; the rows are nobody's
            vars(double)["start"] = vars(double)["stop"] = _nothing
        return double, False

    async def _fake_connect(self, broker: OutboxBroker, *args: Any, **kwargs: Any) -> None:
        """There is nothing to connect to."""

    # -- sync mode

    def subscribers(self, queue: str) -> Iterable[OutboxSubscriber]:
        """The subscribers of a queue, in the order of their registration."""
        found = (cast("OutboxSubscriber", s) for b in self.brokers for s in b.subscribers)
        return sorted((s for s in found if queue in s.queues), key=lambda s: s.number)

    async def deliver(self, row_ids: Iterable[int]) -> None:
        """Run the first matching subscriber for each of these rows; the others stay."""
        for row_id in row_ids:
            row = next((r for r in self.fake_client.rows if r.id == row_id), None)
            if row is None or row.acquired_token is not None:
                continue
            serving = list(self.subscribers(row.queue))
            for double in (s for s in serving if s in self._fake_subscribers):
                await double.process_message(_copy(row))
            real = next((s for s in serving if s not in self._fake_subscribers), None)
            if real is not None and real.running and not self.run_loops:
                # of several brokers, the one that has it runs it
                inline = cast("Any", real.consuming)
                await inline.run(real, row)


class _DeliveringProducer(OutboxProducer):
    """The real producer; afterwards handlers run."""

    def __init__(self, harness: TestOutboxBroker) -> None:
        super().__init__()
        self._harness = harness

    async def publish(self, cmd: OutboxPublishCommand) -> int | None:
        row_id = await super().publish(cmd)
        if row_id is not None:
            await self._harness.deliver([row_id])
        return row_id

    async def publish_batch(self, cmd: OutboxPublishCommand) -> None:
        writer = self._harness.fake_client.inserts
        writer.inserted.clear()
        await super().publish_batch(cmd)
        await self._harness.deliver(list(writer.inserted))


def _config(broker: OutboxBroker) -> OutboxBrokerConfig:
    return broker.config.broker_config


def _copy(row: Any) -> OutboxInnerMessage:
    return OutboxInnerMessage(**vars(row))


async def _nothing() -> None:
    """Neither starts nor stops."""
