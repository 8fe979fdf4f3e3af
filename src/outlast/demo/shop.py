"""The shop: what an application with an outbox looks like. Public names only; read this file.

An order and its messages are written in one transaction, and some transactions are rolled back.
Handlers do what the messages say: some fail and are retried, some fail for good.
"""

import asyncio
from datetime import timedelta
from typing import Any

from faststream.exceptions import RejectMessage
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outlast import (
    ExponentialRetry,
    MetricsRecorder,
    NoRetry,
    OutboxBroker,
    make_dlq_table,
    make_outbox_table,
)
from outlast.annotations import OutboxMessage
from outlast.demo.record import Record

PAYMENTS, EMAILS, PARCELS, REVIEWS = "payments", "emails", "parcels", "reviews"

WHAT_HAPPENS = {
    PAYMENTS: "the bank times out now and then: tried up to 4 times",
    EMAILS: "NoRetry: a bad address dies at once",
    PARCELS: "a timer: one second after the order",
    REVIEWS: "a timer: a week after the order, so it waits",
}


class Base(DeclarativeBase):
    """The application's tables; the outbox and its dead letters are two more of them."""


class Order(Base):
    """One order, and the messages that were committed with it."""

    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    item: Mapped[str]
    messages: Mapped[str]


outbox = make_outbox_table(Base.metadata, "outbox")
outbox_dlq = make_dlq_table(Base.metadata, "outbox_dlq")


class OutOfStock(Exception):  # noqa: N818 - reads as what happened
    """Found out at the end of an order: everything it wrote is rolled back."""


class BadAddress(ValueError):
    """An address that no second attempt will make better."""


class Shop:
    """The order service and the handlers, on one engine."""

    def __init__(
        self, engine: AsyncEngine, record: Record, metrics_recorder: MetricsRecorder
    ) -> None:
        self.sessions = async_sessionmaker(engine, expire_on_commit=False)
        self.broker = OutboxBroker(
            engine,
            outbox_table=outbox,
            dlq_table=outbox_dlq,
            metrics_recorder=metrics_recorder,
            graceful_timeout=10.0,
            logger=None,  # failures are the point here; the screen shows them
        )
        self.committed = 0
        self.rolled_back: set[str] = set()
        add_handlers(self.broker, record)

    async def place(self, number: int) -> None:
        """One order: its row and its messages are committed together, or not at all."""
        item = ("book", "lamp", "chair")[number % 3]
        queues = [PAYMENTS, EMAILS, PARCELS, *([REVIEWS] if number % 12 == 1 else [])]
        ids = [f"{queue}-{number}" for queue in queues]
        try:
            async with self.sessions.begin() as session:
                session.add(Order(number=number, item=item, messages=" ".join(ids)))
                await session.flush()
                for queue, message_id in zip(queues, ids, strict=True):
                    await self._publish(session, queue, message_id, number, item)
                if number % 8 == 0:
                    raise OutOfStock
        except OutOfStock:
            self.rolled_back.update(ids)
        else:
            self.committed += len(ids)

    async def _publish(
        self, session: AsyncSession, queue: str, message_id: str, number: int, item: str
    ) -> None:
        body: Any = {"number": number, "item": item}
        headers = None
        if queue == PAYMENTS and number % 60 == 13:
            # an old till cuts what it sends
            body, headers = b'{"number": 13, "it', {"content-type": "application/json"}
        delays = {PARCELS: timedelta(seconds=1), REVIEWS: timedelta(days=7)}
        await self.broker.publish(
            body,
            queue=queue,
            session=session,
            headers=headers,
            activate_in=delays.get(queue),
            message_id=message_id,
        )


def add_handlers(broker: OutboxBroker, record: Record) -> None:
    """Handlers as an application writes them; `record` is the world that they change."""
    patient = ExponentialRetry(initial_delay_seconds=0.2, jitter_factor=0.2, max_attempts=4)

    @broker.subscriber(PAYMENTS, max_workers=4, retry_strategy=patient)
    async def charge(order: dict[str, Any], message: OutboxMessage) -> None:
        with record.handling(message.message_id):
            await asyncio.sleep(0.005)
            first_attempt = message.raw_message.attempts_count == 0
            if order["number"] % 45 == 7 or (first_attempt and order["number"] % 5 == 1):
                raise TimeoutError("the bank did not answer")

    @broker.subscriber(EMAILS, max_workers=4, retry_strategy=NoRetry())
    async def confirm(order: dict[str, Any], message: OutboxMessage) -> None:
        with record.handling(message.message_id):
            if order["number"] % 30 == 3:
                raise BadAddress("no such mailbox")

    @broker.subscriber(PARCELS, max_workers=4, retry_strategy=patient)
    async def send(order: dict[str, Any], message: OutboxMessage) -> None:
        with record.handling(message.message_id):
            if order["number"] % 70 == 11:
                raise RejectMessage

    @broker.subscriber(REVIEWS)
    async def ask_for_review(order: dict[str, Any], message: OutboxMessage) -> None:
        with record.handling(message.message_id):
            assert order["number"]
