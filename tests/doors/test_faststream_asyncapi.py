"""AsyncAPI: the document of a broker."""

from faststream import FastStream
from faststream.specification import AsyncAPI

from outlast import OutboxBroker
from tests.doors.outbox import broker_on, tables


def document(broker):
    return AsyncAPI(broker, schema_version="3.0.0").to_specification().to_jsonable()


def test_channels():
    """One channel per queue, its key with the handler's name, its address the queue."""
    broker = broker_on(description="ours", tags=[{"name": "t"}])

    @broker.subscriber(["a", "b"], description_="both")
    async def on_order(body: int) -> None: ...

    @broker.subscriber("c", title_="third")
    async def on_c(body: str) -> None: ...

    @broker.subscriber("hidden", include_in_schema=False)
    async def on_hidden(body: str) -> None: ...

    broker.publisher("out", schema=int)
    broker.publisher("titled", title="Titled", description="d")
    made = document(broker)
    addresses = {key: channel["address"] for key, channel in made["channels"].items()}
    assert addresses == {
        "a:OnOrder": "a",
        "b:OnOrder": "b",
        "third": "c",
        "out:Publisher": "out",
        "Titled": "titled",
    }
    assert made["channels"]["a:OnOrder"]["description"] == "both"
    assert len(made["operations"]) == 5


def test_the_server():
    """The engine's URL with its password masked; without an engine, the table's name."""
    (server,) = document(broker_on())["servers"].values()
    assert (server["protocol"], server["host"], server["pathname"]) == (
        "postgresql",
        "outbox",
        "/outbox",
    )


def test_a_password_is_not_shown(postgres):
    engine = postgres.engine()
    engine.sync_engine.url = engine.url.set(password="secret")
    broker = OutboxBroker(engine, **tables(), logger=None)
    (server,) = document(broker)["servers"].values()
    assert "secret" not in str(server)
    assert server["protocol"] == "postgresql"


def test_an_application_documents_it():
    """S1-02: the app collects the broker's channels."""
    broker = broker_on()

    @broker.subscriber("orders")
    async def handle(order_id: int) -> None: ...

    app = FastStream(broker)
    assert "orders:Handle" in app.schema.to_specification().to_jsonable()["channels"]
