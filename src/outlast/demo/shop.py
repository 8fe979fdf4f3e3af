"""The shop: what an application with an outbox looks like. Public names only; read this file.

An order and its messages are written in one transaction, and some transactions are rolled back.
Handlers do what the messages say: in version 1.0 some fail for good, 1.1 is the corrected one.
"""

import asyncio
import errno
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
    make_operations_tables,
    make_outbox_table,
)
from outlast.annotations import OutboxMessage
from outlast.demo.record import Record

PAYMENTS, EMAILS, PARCELS, REVIEWS = "payments", "emails", "parcels", "reviews"

FIRST, FIXED = "1.0", "1.1"
"""The versions of the handlers."""

WHAT_HAPPENS = {
    PAYMENTS: "the bank may be away: up to 4 attempts",
    EMAILS: "a bug, and no second attempt: NoRetry",
    PARCELS: "a timer: one second after the order",
    REVIEWS: "a timer: a week later, so it waits",
}

WHAT_IS_FIXED = {
    PAYMENTS: "the bank can be reached again",
    EMAILS: "an order without an address is no error any more",
    PARCELS: "parcels go to Norway, too",
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
make_operations_tables(Base.metadata)


class OutOfStock(Exception):  # noqa: N818 - reads as what happened
    """Found out at the end of an order: everything it wrote is rolled back."""


def unlucky(number: int, *, one_in: int, first: int) -> bool:
    """Bad luck by the number of the order, so that each run of the demo shows the same."""
    return number % one_in == first


class Shop:
    """The order service and the handlers, on one engine."""

    def __init__(
        self,
        engine: AsyncEngine,
        record: Record,
        metrics_recorder: MetricsRecorder | None = None,
        version: str = FIRST,
    ) -> None:
        self.sessions = async_sessionmaker(engine, expire_on_commit=False)
        self.broker = OutboxBroker(
            engine,
            outbox_table=outbox,
            dlq_table=outbox_dlq,
            consumer_version=version,
            metrics_recorder=metrics_recorder,
            graceful_timeout=10.0,
            logger=None,  # failures are the point here; the screen shows them
        )
        self.committed = 0
        self.rolled_back: set[str] = set()
        add_handlers(self.broker, record, fixed=version == FIXED)

    async def place(self, number: int) -> None:
        """One order: its row and its messages are committed together, or not at all."""
        item = ("book", "lamp", "chair")[number % 3]
        queues = [PAYMENTS, EMAILS, PARCELS, *([REVIEWS] if number % 12 == 1 else [])]
        ids = [f"{queue}-{number}" for queue in queues]
        order = Order(number=number, item=item, messages=" ".join(ids))
        try:
            async with self.sessions.begin() as session:
                await self._write(session, order, queues)
        except OutOfStock:
            self.rolled_back.update(ids)
        else:
            self.committed += len(ids)

    async def _write(self, session: AsyncSession, order: Order, queues: list[str]) -> None:
        session.add(order)
        await session.flush()
        for queue in queues:
            await self._publish(session, queue, order)
        if unlucky(order.number, one_in=8, first=0):
            raise OutOfStock

    async def _publish(self, session: AsyncSession, queue: str, order: Order) -> None:
        body: Any = {"number": order.number, "item": order.item, "country": "PT"}
        if unlucky(order.number, one_in=70, first=11):
            body["country"] = "NO"
        if not unlucky(order.number, one_in=30, first=3):  # those came by telephone
            body["email"] = f"ann{order.number}@example.org"
        headers = None
        if queue == PAYMENTS and unlucky(order.number, one_in=60, first=13):
            # an old till cuts what it sends
            body, headers = b'{"number": 13, "it', {"content-type": "application/json"}
        delays = {PARCELS: timedelta(seconds=1), REVIEWS: timedelta(days=7)}
        await self.broker.publish(
            body,
            queue=queue,
            session=session,
            headers=headers,
            activate_in=delays.get(queue),
            message_id=f"{queue}-{order.number}",
        )


def add_handlers(broker: OutboxBroker, record: Record, *, fixed: bool) -> None:
    """Handlers as an application writes them; `record` is the world that they change."""
    patient = ExponentialRetry(initial_delay_seconds=0.2, jitter_factor=0.2, max_attempts=4)

    @broker.subscriber(PAYMENTS, max_workers=4, retry_strategy=patient)
    async def charge(order: dict[str, Any], message: OutboxMessage) -> None:
        with record.handling(message.message_id):
            await asyncio.sleep(0.005)
            is_first_attempt = message.raw_message.attempts_count == 0
            is_away = unlucky(order["number"], one_in=5 if is_first_attempt else 45, first=2)
            if is_away and not fixed:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    @broker.subscriber(EMAILS, max_workers=4, retry_strategy=NoRetry())
    async def confirm(order: dict[str, Any], message: OutboxMessage) -> None:
        with record.handling(message.message_id):
            address = order.get("email") if fixed else order["email"]
            assert address is None or "@" in address

    @broker.subscriber(PARCELS, max_workers=4, retry_strategy=patient)
    async def send(order: dict[str, Any], message: OutboxMessage) -> None:
        countries = {"PT", "NO"} if fixed else {"PT"}
        with record.handling(message.message_id):
            if order["country"] not in countries:
                raise RejectMessage

    @broker.subscriber(REVIEWS)
    async def ask_for_review(order: dict[str, Any], message: OutboxMessage) -> None:
        with record.handling(message.message_id):
            assert order["number"]
