"""The FastAPI router: the broker in an application's lifespan, FastAPI's own dependencies."""

import asyncio
import inspect
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from outlast import NoRetry
from outlast import OutboxBroker as Broker
from outlast.fastapi import OutboxBroker, OutboxClient, OutboxMessage, OutboxProducer, OutboxRouter
from outlast.router import OutboxRoute
from outlast.testing import TestOutboxBroker
from tests.doors.outbox import Heard, config, create, tables


class Order(BaseModel):
    order_id: int


def test_an_application(database):
    """S1-07: HTTP publishes on its session; a subscriber mixes shortcuts and Depends."""
    engine = database.engine()
    heard = Heard()
    router = OutboxRouter(engine, **tables(), logger=None, metrics_recorder=heard)
    sessions, got = [], []

    async def session():
        async with AsyncSession(engine) as opened, opened.begin():
            sessions.append(opened)
            yield opened

    Session = Annotated[AsyncSession, Depends(session)]

    @router.post("/orders")
    async def order(body: Order, session: Session) -> dict:
        return {"id": await router.broker.publish(body, queue="orders", session=session)}

    @router.subscriber("orders", retry_strategy=NoRetry())
    async def handle(
        body: Order,
        msg: OutboxMessage,
        broker: OutboxBroker,
        producer: OutboxProducer,
        session: Session,
    ) -> None:
        got.append((body, msg.raw_message.queue, broker is router.broker, session))

    @asynccontextmanager
    async def prepared(app):
        await create(engine, router.broker)
        yield
        await engine.dispose()

    app = FastAPI(lifespan=prepared)
    app.include_router(router)

    with TestClient(app) as client:
        for number in (1, 2):
            answer = client.post("/orders", json={"order_id": number})
            assert answer.json() == {"id": number}
        client.portal.call(heard.closed, 2)
        assert router.broker.running
    assert not router.broker.running
    assert [(b.order_id, queue, same) for b, queue, same, _ in got] == [
        (1, "orders", True),
        (2, "orders", True),
    ]
    assert len({id(s) for *_, s in got}) == 2
    assert heard.names().count("acked") == 2


def test_the_shortcuts_under_a_test_broker():
    """S1-07: all four."""
    router = OutboxRouter(**tables(), logger=None)
    app = FastAPI()
    got = []

    @router.subscriber("q", retry_strategy=NoRetry())
    async def handle(
        body: int,
        msg: OutboxMessage,
        broker: OutboxBroker,
        producer: OutboxProducer,
        client: OutboxClient,
    ) -> None:
        got.append((body, broker, producer, client))

    app.include_router(router)

    async def main():
        async with TestOutboxBroker(router.broker) as broker, app.router.lifespan_context(app):
            await broker.publish(5, queue="q")
            assert broker.fake_client.dlq_rows == []
            assert got == [(5, broker, broker._producer, broker.fake_client)]

    asyncio.run(main())


def test_every_keyword_is_forwarded():
    """The router takes what the broker takes, and hands it on."""
    renderer = repr
    router = OutboxRouter(
        **tables(),
        logger=None,
        consumer_version="1.2",
        consumer_instance="here",
        notify=False,
        graceful_timeout=3,
        last_exception_renderer=renderer,
    )
    made = config(router.broker)
    assert made.dlq_table is not None
    assert made.last_exception_renderer is renderer
    assert made.graceful_timeout == 3
    options = made.consuming._options
    assert (options.consumer_version, options.consumer_instance) == ("1.2", "here")

    ours = set(inspect.signature(OutboxRouter.__init__).parameters)
    theirs = set(inspect.signature(Broker.__init__).parameters)
    assert theirs - ours == {"apply_types", "routers", "tags"} - ours
    of_broker = set(inspect.signature(Broker.subscriber).parameters) - {"persistent"}
    of_router = set(inspect.signature(OutboxRouter.subscriber).parameters)
    of_route = set(inspect.signature(OutboxRoute.__init__).parameters) - {"call"}
    assert of_broker <= of_router
    assert of_broker == of_route
    subscriber = router.subscriber("q", lease_limit_seconds=77, max_workers=3)
    assert (subscriber.options.lease_limit, subscriber.options.max_workers) == (77, 3)
    assert router.publisher("out", headers={"a": "1"}).headers == {"a": "1"}


def test_the_documentation_page():
    """The AsyncAPI page of the application names the queue."""
    router = OutboxRouter(**tables(), logger=None)

    @router.subscriber("orders")
    async def handle(body: Order) -> None: ...

    app = FastAPI(lifespan=router.lifespan_context)
    app.include_router(router)
    names = router.schema.to_specification().to_jsonable()["channels"]
    assert "orders:Handle" in names
