"""Keymate's routes, and the scenario of the third seed on a real broker."""

import pytest
from sqlalchemy import MetaData, select

from outlast import NoRetry, OutboxBroker, make_dlq_table, make_operations_tables, make_outbox_table
from outlast.ops import Desk
from tests.doors.outbox import Heard, publish
from tests.doors.rest import Api, done, problem, run_api

KEYMATE = {
    *("id", "messageId", "eventType", "subscriberId", "endpoint", "payload", "errorCode"),
    *("errorMessage", "errorCause", "status", "createdAt", "processedAt", "firstFailedAt"),
    *("lastFailedAt", "attempts"),
}


class Peer:
    """The service behind the subscriber: away, then back."""

    def __init__(self):
        self.is_away = True
        self.got = []

    def take(self, message):
        if self.is_away:
            raise ConnectionError("Connection refused")
        self.got.append(message)


class World:
    """What `Api` needs of a world, around a broker."""

    def __init__(self, engine, tables):
        self.engine = engine
        self.tables = tables
        self.desk = Desk(engine, tables["outbox_table"], tables["dlq_table"])


async def with_broker(engine, body):
    metadata = MetaData()
    tables = {
        "outbox_table": make_outbox_table(metadata),
        "dlq_table": make_dlq_table(metadata),
    }
    make_operations_tables(metadata)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    heard, peer = Heard(), Peer()
    broker = OutboxBroker(engine, **tables, metrics_recorder=heard, logger=None)

    @broker.subscriber("analytics-service", retry_strategy=NoRetry(), min_fetch_interval=0.05)
    async def analytics(body: dict) -> None:
        peer.take(body)

    api = Api(World(engine, tables))
    async with broker, api.as_("all") as caller:
        await broker.start()
        await body(broker, heard, peer, caller, api)


def test_the_scenario_of_the_seed(database):
    """S3-33, S3-34, S3-35, S3-36, S3-25, U-03: the service is down, the event is found by its
    subscriber with "Connection refused", replayed by its message id, delivered, gone, PROCESSED.
    """

    async def scenario(engine):
        async def body(broker, heard, peer, caller, api):
            order = {"order": 42, "total": 9.99}
            await publish(engine, broker, order, queue="analytics-service", event_type="order.paid")
            await heard.until(lambda: heard.of("dlq_written"))
            page = done(await caller.get("/dlt-messages?subscriberId=analytics-service"))
            (event,) = page["items"]
            assert set(event) >= KEYMATE
            assert "Connection refused" in event["errorMessage"]
            assert (event["status"], event["eventType"]) == ("FAILED", "order.paid")
            assert event["payload"] == order
            assert event["processedAt"]
            assert event["attempts"] == 1

            peer.is_away = False
            asked = {"messageId": event["messageId"]}
            answer = done(await caller.post("/replay", json=asked))
            assert (answer["requested"], answer["replayed"]) == (1, 1)
            await heard.until(lambda: heard.of("acked"))
            assert peer.got == [order]
            assert done(await caller.get("/api/dlq"))["total"] == 0
            assert done(await caller.get("/dlt-messages"))["total"] == 0
            after = done(await caller.get(f"/dlt-messages/{event['id']}"))
            assert after["status"] == "PROCESSED"
            assert after["messageId"] == event["messageId"]
            assert after["processedAt"] > event["processedAt"]
            assert [act["kind"] for act in after["history"]] == ["replayed", "resolved"]
            (processed,) = done(await caller.get("/dlt-messages?status=PROCESSED"))["items"]
            assert processed["id"] == event["id"]
            async with engine.connect() as connection:
                left = (await connection.execute(select(api.world.tables["outbox_table"]))).all()
            assert left == []

        await with_broker(engine, body)

    database.run(scenario)


def test_a_replay_that_fails_again_is_back(database):
    """S3-26: the same entry is open again, one replay more, its error the newest."""

    async def scenario(engine):
        async def body(broker, heard, peer, caller, api):
            await publish(engine, broker, {"n": 1}, queue="analytics-service")
            await heard.until(lambda: heard.of("dlq_written"))
            (before,) = done(await caller.get("/api/dlq"))["entries"]
            asked = {"wait": 20}
            answer = done(await caller.post(f"/api/dlq/{before['dlq_id']}/replay", json=asked))
            assert answer["waited"] == "failed_again"
            (after,) = done(await caller.get("/api/dlq"))["entries"]
            assert after["dlq_id"] == before["dlq_id"]
            assert (before["replay_count"], after["replay_count"]) == (0, 1)
            assert after["state"] == "open"
            assert after["failed_at"] > before["failed_at"]
            assert after["first_failure_at"] == before["first_failure_at"]
            assert after["message_id"] == before["message_id"]

        await with_broker(engine, body)

    database.run(scenario)


def test_a_count_that_stops_says_so(sqlite, monkeypatch):
    """More are there than are counted: `total_is` tells, as in every other list."""

    async def body(api, caller):
        for number in range(4):
            await api.world.plant(message_id=f"m-{number}")
        page = done(await caller.get("/dlt-messages"))
        assert (page["total"], page["total_is"]) == (4, "exact")
        monkeypatch.setattr("outlast.stores.desk.reading.TOTAL_MAX", 3)
        page = done(await caller.get("/dlt-messages"))
        assert (page["total"], page["total_is"]) == (3, "at least")
        assert done(await caller.get("/dlt-messages?status=NEW"))["total_is"] == "exact"

    run_api(sqlite, body)


def test_what_is_wrong_is_told_in_keymates_words(sqlite):
    """No word and no place of a filter that nobody wrote."""

    async def body(api, caller):
        for name, value in (
            ("startDate", "yesterday"),
            ("endDate", "2026-13-01"),
            ("messageId", "\0"),
        ):
            told = problem(await caller.get("/dlt-messages", params={name: value}), 422)
            assert told["error"].startswith(f"{name}: ")
            assert "position" not in told
            assert "since" not in told["error"]
            assert "until" not in told["error"]

    run_api(sqlite, body)


def test_the_filters_in_keymates_words(database):
    """S3-17 S3-18 S3-19 S3-20: message, subscriber or queue, text, dates, pages, status."""

    async def body(api, caller):
        world = api.world
        await world.plant(message_id="m-1", subscriber="ship", queue="q1", error_message="REFUSED")
        await world.plant(message_id="m-2", subscriber="bill", queue="ship2")
        await world.plant(message_id="m-3", state="resolved", resolution="delivered")
        await world.plant(message_id="m-4", state="replaying", replayed_as=9)

        async def found(**params):
            page = done(await caller.get("/dlt-messages", params=params))
            assert page["total"] == len(page["items"])
            return [item["messageId"] for item in page["items"]]

        assert await found() == ["m-4", "m-2", "m-1"]
        assert await found(messageId="m-1") == ["m-1"]
        assert await found(messageId="m-3") == []
        assert await found(messageId="m-3", status="ANY") == ["m-3"]
        assert await found(status="PROCESSED") == ["m-3"]
        assert await found(status="NEW") == []
        assert await found(subscriberId="ship") == ["m-1"]
        assert await found(subscriberId="ship2") == ["m-2"]
        assert await found(errorMessage="refused") == ["m-1"]
        assert await found(startDate="2999-01-01") == []
        assert await found(endDate="2999-01-01T00:00:00") == ["m-4", "m-2", "m-1"]
        second = done(await caller.get("/dlt-messages?page=1&size=2"))
        assert ([x["messageId"] for x in second["items"]], second["total"]) == (["m-1"], 3)
        problem(await caller.get("/dlt-messages?status=DONE"), 422)
        problem(await caller.get("/dlt-messages?size=101"), 422)
        problem(await caller.get("/dlt-messages?page=10000&size=100"), 422)
        problem(await caller.get("/dlt-messages?subscriber=ship"), 422)

    run_api(database, body)


def test_replay_by_message_ids_and_by_criteria(database):
    """S3-23 S3-24: each message and letter has its result."""

    async def body(api, caller):
        world = api.world
        for number in range(4):
            await world.plant(message_id=f"m-{number}", subscriber="ship", queue="q")
        await world.plant(message_id="m-0", subscriber="bill", queue="q")
        await world.plant(message_id="m-9", state="resolved", resolution="delivered")
        asked = {"messageIds": ["m-0", "m-1", "m-9", "none"], "subscriberId": "ship"}
        answer = done(await caller.post("/replay", json=asked))
        assert {(r["messageId"], r["outcome"]) for r in answer["results"]} == {
            ("m-0", "replayed"),
            ("m-1", "replayed"),
            ("m-9", "not_found"),
            ("none", "not_found"),
        }
        counts = {name: answer[name] for name in ("requested", "replayed", "failed", "skipped")}
        assert counts == {"requested": 4, "replayed": 2, "failed": 2, "skipped": 0}
        every = done(await caller.post("/replay", json={"messageId": "m-0"}))
        assert every["replayed"] == 1
        told = problem(await caller.post("/replay", json={"messageId": "none"}), 404)
        assert "none" in told["error"]
        over = done(await caller.post("/replay", json={"messageId": "m-9"}))
        assert (over["failed"], over["results"][0]["outcome"]) == (1, "refused")
        await world.plant(message_id="m-8", state="needs_review")
        kept = done(await caller.post("/replay", json={"messageId": "m-8"}))
        assert (kept["replayed"], kept["failed"]) == (0, 1)
        assert "needs_review" in kept["results"][0]["error"]
        criteria = {"criteria": {"subscriberId": "ship"}, "reason": "well again"}
        rest = done(await caller.post("/replay", json=criteria))
        assert {r["messageId"] for r in rest["results"]} == {"m-2", "m-3"}
        assert len(await world.rows()) == 5

    run_api(database, body)


def test_every_letter_of_a_message_is_replayed(sqlite):
    """One message, two subscribers: both letters, unless one is named."""

    async def body(api, caller):
        for subscriber in ("ship", "bill"):
            await api.world.plant(message_id="m", subscriber=subscriber)
        answer = done(await caller.post("/replay", json={"messageId": "m"}))
        assert (answer["requested"], answer["replayed"]) == (2, 2)

    run_api(sqlite, body)


def test_criteria_go_on_with_a_cursor(sqlite):
    async def body(api, caller):
        await api.world.plant_many(15)
        first = done(await caller.post("/replay", json={"all": True}))
        assert (first["replayed"], first["more"]) == (10, True)
        rest = done(await caller.post("/replay", json={"cursor": first["cursor"]}))
        assert (rest["replayed"], rest.get("more")) == (5, None)

    run_api(sqlite, body, options={"bulk_max": 10})


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"messageId": "m", "messageIds": ["n"]},
        {"messageId": "m", "criteria": {}},
        {"criteria": {}},
        {"criteria": {"status": "PROCESSED"}},
        {"criteria": {"state": "open"}},
        {"messageIds": []},
        {"messageIds": [f"m-{n}" for n in range(101)]},
        {"messageId": ""},
        {"messageId": 17},
        {"messageId": "m", "all": True},
        {"cursor": "x"},
    ],
)
def test_a_replay_that_says_nothing_is_refused(sqlite, asked):
    async def body(api, caller):
        await api.world.plant(message_id="m")
        problem(await caller.post("/replay", json=asked), 422)
        assert await api.world.rows() == []

    run_api(sqlite, body)
