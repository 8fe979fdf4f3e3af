"""The routes on live rows, workers and subscriptions, on health, and on metrics."""

import re

from sqlalchemy import insert

from tests.doors.rest import done, problem, run_api


def test_live_rows_are_seen_and_taken_back(database):
    """A row in a worker's hands is 409; looking changes nothing."""

    async def body(api, caller):
        world = api.world
        first = await world.add("orders", payload=b'{"token": "abc", "n": 1}')
        second = await world.add("orders", due_in=3600)
        await world.add("mail")
        page = done(await caller.get("/api/outbox", params={"queue": "orders", "limit": 1}))
        assert [row["id"] for row in page["items"]] == [first]
        rest = done(await caller.get("/api/outbox", params={"q": "queue:orders", "after": first}))
        assert [row["id"] for row in rest["items"]] == [second]
        shown = done(await caller.get(f"/api/outbox/{first}"))
        assert shown["payload"]["value"]["n"] == 1
        assert shown["payload"]["value"]["token"] != "abc"
        assert done(await caller.get(f"/api/outbox/id/{first}/inspect")) == shown

        assert done(await caller.post(f"/api/outbox/id/{second}/run-now"))["outcome"] == "due"
        await world.claim("orders", limit=1)
        held = problem(await caller.post(f"/api/outbox/id/{first}/cancel"), 409)
        assert "hands" in held["error"]
        problem(await caller.post(f"/api/outbox/id/{first}/run-now"), 409)
        gone = {"ids": [second, 999], "reason": "a mistake"}
        answer = done(await caller.post("/api/outbox/cancel", json=gone))
        assert [r["outcome"] for r in answer["results"]] == ["cancelled", "not_found"]
        many = done(await caller.post("/api/outbox/run-now", json={"ids": [first]}))
        assert many["results"] == [{"row_id": first, "outcome": "not_waiting"}]
        assert [row["queue"] for row in await world.rows()] == ["orders", "mail"]

    run_api(database, body)


def test_a_replay_is_taken_back(database):
    """The letter is open again."""

    async def body(api, caller):
        letter = await api.world.plant()
        row = done(await caller.post(f"/api/dlq/{letter}/replay"))["row_id"]
        answer = done(await caller.post(f"/api/outbox/id/{row}/cancel", json={"reason": "wait"}))
        assert (answer["outcome"], answer["dlq_id"]) == ("recalled", letter)
        assert done(await caller.get(f"/api/dlq/{letter}"))["state"] == "open"

    run_api(database, body)


def test_workers_and_subscriptions(database):
    async def body(api, caller):
        world = api.world
        now = await world.now()
        worker = {
            "instance": "host-1",
            "version": "1.4.0",
            "started_at": now,
            "seen_at": now,
            "report": {"queues": ["orders"]},
        }
        async with world.engine.begin() as connection:
            await connection.execute(insert(world.tables["worker"]).values(worker))
        await world.plant(queue="mail")
        seen = done(await caller.get("/api/workers"))
        assert seen["recorded"] is True
        assert [w["queues"] for w in seen["items"]] == [["orders"]]
        text = (await caller.get("/api/subscriptions")).text
        assert '"orders"' in text
        assert '"mail"' in text

    run_api(database, body)


def test_health_tells_drift_and_that_it_is_over(database):
    """S0-43: 503 with the items while a table is wrong, 200 after; items need a token."""

    async def body(api, caller):
        assert done(await caller.get("/health"))["items"] == []
        index = next(i for i in api.world.outbox.indexes if "_lease" in i.name or i.name)
        async with api.world.engine.begin() as connection:
            await connection.run_sync(index.drop)
        answer = await caller.get("/health")
        assert answer.status_code == 503
        assert answer.json()["status"] == "drift"
        assert index.name in " ".join(answer.json()["items"])
        async with api.nobody as nobody:
            told = await nobody.get("/health")
            assert (told.status_code, told.json()) == (503, {"status": "drift"})
            assert done(await nobody.get("/health/ready")) == {"status": "ok"}
            assert done(await nobody.get("/health/live")) == {"status": "ok"}
        async with api.world.engine.begin() as connection:
            await connection.run_sync(index.create)
        assert done(await caller.get("/health"))["status"] == "ok"

    run_api(database, body)


def test_live_never_touches_the_database_and_ready_does(sqlite):
    async def body(api, caller):
        asked = []
        connect = api.world.desk._database.reading

        def counting():
            asked.append(1)
            return connect()

        api.world.desk._database.reading = counting
        async with api.nobody as nobody:
            done(await nobody.get("/health/live"))
            assert not asked
            done(await nobody.get("/health/ready"))
            assert asked

    run_api(sqlite, body)


def test_strangers_cannot_keep_the_database_busy(sqlite):
    """An answer about health is kept for a while."""

    async def body(api, caller):
        asked = []
        ping = api.world.desk.ping

        async def counting():
            asked.append(1)
            await ping()

        api.world.desk.ping = counting
        async with api.nobody as nobody:
            for _ in range(20):
                done(await nobody.get("/health/ready"))
        assert len(asked) == 1

    run_api(sqlite, body, options={"health_seconds": 3600.0})


SAMPLE = re.compile(r'^(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+-]+)$')


def samples(text):
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.match(r"# (HELP|TYPE) \w+ ", line)
            continue
        match = SAMPLE.match(line)
        assert match, line
        found[match[1], match[2]] = float(match[3])
    return found


def test_metrics_have_the_numbers_of_stats(database):
    """One query: depth, categories and causes are equal, the rest is `other`."""

    async def body(api, caller):
        for number in range(30):
            category = "EXTERNAL" if number % 3 else None
            await api.world.plant(
                queue=f"q{number % 2}", failure_category=category, fingerprint=f"v1:{number:02}"
            )
        await api.world.plant(queue="q0", state="resolved")
        answer = await caller.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = samples(answer.text)
        stats = done(await caller.get("/api/dlq/stats"))
        depth = {name: value for (family, name), value in found.items() if family.endswith("depth")}
        assert depth == {
            f'queue="{q["queue"]}",category="{q["failure_category"] or "not recorded"}"': q["depth"]
            for q in stats["queues"]
        }
        assert sum(depth.values()) == stats["depth"] == 30
        causes = {n: v for (family, n), v in found.items() if family.endswith("causes")}
        assert len(causes) == 21
        assert causes['fingerprint="other"'] == 10
        assert sum(causes.values()) == stats["depth"]
        assert found["outlast_dlq_letters", 'state="resolved"'] == 1
        arrived = [v for (f, n), v in found.items() if f.endswith("arrivals") and '"1h"' in n]
        assert sum(arrived) == sum(q["arrivals_hour"] for q in stats["queues"])

    run_api(database, body)


def test_no_name_breaks_out_of_its_label(sqlite):
    async def body(api, caller):
        for queue in ('a"} 1\nfake_metric{x="', "back\\slash", "line\nfeed", "\x1b[2J", 'q"'):
            await api.world.plant(queue=queue)
        found = samples((await caller.get("/metrics")).text)
        assert {family for family, _ in found} <= {
            "outlast_dlq_depth",
            "outlast_dlq_oldest_age_seconds",
            "outlast_dlq_arrivals",
            "outlast_dlq_causes",
            "outlast_dlq_letters",
        }
        assert sum(v for (f, _), v in found.items() if f == "outlast_dlq_depth") == 5

    run_api(sqlite, body)


def test_metrics_have_a_bound(sqlite):
    """Of very many queues the deepest have series; the others are one."""

    async def body(api, caller):
        from outlast.api.metrics import QUEUES_MAX

        rows = [{"queue": f"q{number}"} for number in range(QUEUES_MAX + 50)]
        at = await api.world.now()
        common = {
            "original_id": 1,
            "payload": b"{}",
            "deliveries_count": 1,
            "failure_reason": "rejected",
            "created_at": at,
        }
        async with api.world.engine.begin() as connection:
            await connection.execute(insert(api.world.dlq), [row | common for row in rows])
        found = samples((await caller.get("/metrics")).text)
        depth = {name: value for (f, name), value in found.items() if f == "outlast_dlq_depth"}
        assert len(depth) == QUEUES_MAX + 1
        assert depth['queue="other",category="other"'] == 50

    run_api(sqlite, body)
