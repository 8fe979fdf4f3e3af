"""The routes on dead letters: Protean's, and the verbs of the desk."""

import asyncio
import json

import httpx
import pytest
from sqlalchemy import select

from tests.doors.rest import done, problem, run_api

PROTEAN = {
    "dlq_id",
    "original_id",
    "stream",
    "consumer_group",
    "failure_reason",
    "failed_at",
    "retry_count",
    "dlq_stream",
}


async def rows(world):
    async with world.engine.connect() as connection:
        return (await connection.execute(select(world.outbox))).all()


async def checksum(world):
    """Everything in every table, to see that nothing was written."""
    found = []
    async with world.engine.connect() as connection:
        for table in world.tables.values():
            order = list(table.primary_key.columns)
            found.append((await connection.execute(select(table).order_by(*order))).all())
    return repr(found)


def test_the_list_has_proteans_shape(database):
    """S2-38: its keys, `total_count`, 25 a page, newest failure first; ours besides."""

    async def body(api, caller):
        for number in range(30):
            await api.world.plant(queue="orders", original_id=number, subscriber="ship")
        page = done(await caller.get("/api/dlq"))
        assert len(page["entries"]) == 25
        assert page["total_count"] == page["total"] == 30
        assert page["items"] == page["entries"]
        assert set(page["entries"][0]) >= PROTEAN
        assert page["entries"][0]["dlq_stream"] == "orders:dlq"
        assert page["entries"][0]["stream"] == "orders"
        assert page["entries"][0]["consumer_group"] == "ship"
        ids = [letter["dlq_id"] for letter in page["entries"]]
        rest = done(await caller.get("/api/dlq", params={"offset": 25}))
        assert [letter["dlq_id"] for letter in rest["entries"]] == [5, 4, 3, 2, 1]
        assert ids == list(range(30, 5, -1))
        behind = done(await caller.get("/api/dlq", params={"cursor": page["cursor"]}))
        assert behind["entries"] == rest["entries"]
        assert done(await caller.get("/api/dlq", params={"limit": 200}))["more"] is False

    run_api(database, body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": 201},
        {"limit": "many"},
        {"offset": -1},
        {"offset": 10_001},
        {"cursor": "rubbish"},
        {"cursor": "x", "after": "y"},
        {"no_such": "parameter"},
        {"q": "qeue:orders"},
        {"since": "yesterday-ish"},
        {"state": "opne"},
        {"q": "a" * 60_000},
        {"queue": [f"q{i}" for i in range(200)]},
    ],
)
def test_a_parameter_that_says_nothing_is_refused(sqlite, wrong):
    async def body(api, caller):
        answer = await caller.get("/api/dlq", params=wrong)
        assert answer.status_code in {414, 422}
        problem(answer, answer.status_code)

    run_api(sqlite, body)


def test_an_error_in_a_filter_shows_its_place(sqlite):
    async def body(api, caller):
        answer = await caller.get("/api/dlq", params={"q": "queue:orders eror:boom"})
        told = problem(answer, 422)
        assert told["position"] == 13
        assert told["nearest"] == "error:"
        assert told["pointer"].splitlines()[1].index("^") == 13

    run_api(sqlite, body)


def test_the_filters_of_seed_three(database):
    """S3-17 S3-18 S3-19 S3-20: by message, subscriber, error text and time, the end exclusive."""

    async def body(api, caller):
        world = api.world
        one = await world.plant(
            message_id="m-1", subscriber="ship", error_message="Connection REFUSED by 100%_peer"
        )
        two = await world.plant(message_id="m-2", subscriber="bill", error_message="timed out")

        async def ids(**params):
            page = done(await caller.get("/api/dlq", params=params))
            return [letter["dlq_id"] for letter in page["entries"]]

        assert await ids(q="message:m-1") == [one]
        assert await ids(subscriber="bill") == [two]
        assert await ids(q='error:"connection refused"') == [one]
        assert await ids(q='error:"100%_p"') == [one]
        assert await ids(q='error:"100__p"') == []
        assert await ids(q="subscriber:ship subscriber:bill") == [two, one]
        listed = done(await caller.get("/api/dlq"))["entries"]
        at = next(x["failed_at"] for x in listed if x["dlq_id"] == two)
        assert two in await ids(since=at)
        assert two not in await ids(until=at)

    run_api(database, body)


def test_a_time_without_a_zone_is_utc_and_echoed(sqlite):
    """S3-20: what was understood is told."""

    async def body(api, caller):
        page = done(await caller.get("/api/dlq", params={"since": "2026-11-01T10:00:00"}))
        assert "2026-11-01T10:00:00Z" in page["filter"]

    run_api(sqlite, body)


def test_one_letter_in_proteans_shape_and_in_ours(database):
    """S3-16 S4-85 S4-86 S4-87 S4-89 S4-90 S4-91 S4-92 S4-93 S4-94 S4-95 S4-96 S4-97 S4-98 S4-99:
    what a letter tells.
    """

    async def body(api, caller):
        world = api.world
        at = await world.now()
        letter = await world.plant(
            queue="orders",
            original_id=4711,
            payload=b'{"price": 1.10, "half": "\\ud800"}',
            headers={"correlation_id": "c-1", "content-type": "application/json"},
            message_id="m-9",
            stack_trace='File "app.py", line 7, in ship',
            failure_category="VALIDATION",
            attempts_count=3,
            consumer_instance="host-1",
            consumer_version="1.4.0",
            first_failure_at=at,
            last_failure_at=at,
        )
        answer = await caller.get(f"/api/dlq/{letter}")
        shown = done(answer)
        assert set(shown) >= PROTEAN
        assert shown["payload"] == {"price": 1.1, "half": "\ud800"}
        assert '"price": 1.10' in answer.text  # as it was written
        assert shown["body"]["digest"].startswith("sha256:")
        expected = {
            "message_id": "m-9",
            "queue": "orders",
            "original_id": 4711,
            "failure_category": "VALIDATION",
            "retry_count": 3,
            "consumer_instance": "host-1",
            "consumer_version": "1.4.0",
            "stack_trace": 'File "app.py", line 7, in ship',
        }
        assert {name: shown[name] for name in expected} == expected
        assert shown["failure"].startswith("retry_terminal")
        assert shown["headers"] == {"correlation_id": "c-1", "content-type": "application/json"}
        for name in ("created_at", "first_failure_at", "last_failure_at"):
            assert shown[name].endswith("Z")
        whole = done(await caller.get(f"/api/dlq/id/{letter}"))
        assert whole["payload"]["value"] == shown["payload"]
        same = await caller.get(f"/api/dlq/id/{letter}/inspect")
        assert done(same) == whole
        assert same.headers["etag"] == answer.headers["etag"]

    run_api(database, body)


@pytest.mark.parametrize("dlq_id", ["999", "0", "-1", "abc", "9" * 40, "٣", "1%2F2", "%00", "1e3"])
def test_an_id_of_no_letter_is_not_found(sqlite, dlq_id):
    """S2-62: also a malformed one."""

    async def body(api, caller):
        for method, path in (
            ("GET", f"/api/dlq/{dlq_id}"),
            ("GET", f"/api/dlq/id/{dlq_id}"),
            ("GET", f"/api/dlq/id/{dlq_id}/history"),
            ("POST", f"/api/dlq/{dlq_id}/replay"),
            ("POST", f"/api/dlq/id/{dlq_id}/purge"),
            ("POST", f"/api/dlq/id/{dlq_id}/restore"),
            ("GET", f"/api/outbox/{dlq_id}"),
            ("POST", f"/api/outbox/id/{dlq_id}/cancel"),
            ("POST", f"/api/outbox/id/{dlq_id}/run-now"),
            ("GET", f"/dlt-messages/{dlq_id}"),
        ):
            told = problem(await caller.request(method, path), 404)
            assert "not found" in told["error"] or "no route" in told["error"]

    run_api(sqlite, body)


def test_fixed_words_win_over_ids(sqlite):
    async def body(api, caller):
        assert "causes" in done(await caller.get("/api/dlq/stats"))
        for path in ("/api/dlq/replay-all", "/api/dlq/purge", "/api/outbox/cancel"):
            answer = await caller.get(path)
            problem(answer, 405)
            assert answer.headers["allow"] == "POST"
        answer = await caller.patch("/api/dlq")
        problem(answer, 405)
        assert answer.headers["allow"] == "GET, HEAD, DELETE"

    run_api(sqlite, body)


def test_a_replay_of_one_letter(database):
    """S2-38 S3-23: Protean's answer; a second time it is refused as being on its way."""

    async def body(api, caller):
        letter = await api.world.plant(queue="payments", message_id="m-1")
        answer = done(await caller.post(f"/api/dlq/{letter}/replay"))
        assert answer | {"status": "ok", "replayed": True, "target_stream": "payments"} == answer
        (row,) = await rows(api.world)
        assert row.id == answer["row_id"]
        again = problem(await caller.post(f"/api/dlq/id/{letter}/replay"), 409)
        assert "replay" in again["error"]
        told = await api.world.told(letter)
        assert [entry.actor for entry in told] == ["all"]

    run_api(database, body)


def test_a_gate_is_409_and_names_itself(database):
    async def body(api, caller):
        letter = await api.world.plant(replay_count=3, failure_category="EXTERNAL")
        told = problem(await caller.post(f"/api/dlq/{letter}/replay"), 409)
        assert told["gate"] == "replay_limit"
        assert told["remedy"]
        forced = {"force": True, "reason": "the peer is well again"}
        assert done(await caller.post(f"/api/dlq/{letter}/replay", json=forced))["replayed"]

    run_api(database, body)


def test_a_dry_run_writes_nothing(database):
    """U-07: tables are as before, byte by byte, also with a key that would be remembered."""

    async def body(api, caller):
        caller.headers["Idempotency-Key"] = "k"
        letter = await api.world.plant()
        before = await checksum(api.world)
        one = done(await caller.post(f"/api/dlq/{letter}/replay", json={"dry_run": True}))
        assert one["replayed"] is False
        many = {"dry_run": True, "all": True}
        assert done(await caller.post("/api/dlq/replay-all", json=many))["replayed"] == 1
        assert done(await caller.delete("/api/dlq", params={"all": 1, "dry_run": 1}))["purged"] == 1
        purge = {"dry_run": True, "ids": [letter]}
        assert done(await caller.post("/api/dlq/purge", json=purge))["purged"] == 1
        assert done(await caller.post(f"/api/dlq/id/{letter}/purge", json={"dry_run": True}))
        assert await checksum(api.world) == before

    run_api(database, body)


def test_looking_writes_nothing(database):
    """A GET leaves every table as it was, also one about a secret."""

    async def body(api, caller):
        world = api.world
        letter = await world.plant(headers={"authorization": "Bearer s3cr3t-s3cr3t"})
        lost = await world.plant(state="replaying", replayed_as=99)
        before = await checksum(world)
        paths = {route.path for route in api.app.routes if "GET" in (route.methods or ())}
        assert len(paths) > 15
        for path in sorted(paths):
            for known in (letter, lost):
                answer = await caller.get(path.format(dlq_id=known, row_id=99))
                assert answer.status_code in {200, 404, 405}, (path, answer.text)
                assert "s3cr3t-s3cr3t" not in answer.text, path
        assert await checksum(world) == before

    run_api(database, body)


def test_a_replay_of_all_that_a_filter_takes(database):
    """S3-24 S3-48: the same filters; one line of the history tells who, which, how many, why."""

    async def body(api, caller):
        world = api.world
        for queue in ("orders", "orders", "mail"):
            await world.plant(queue=queue, failure_category="EXTERNAL")
        await world.plant(queue="orders", failure_category="POISON")
        answer = done(
            await caller.post(
                "/api/dlq/replay-all",
                params={"subscription": "orders"},
                json={"reason": "the carrier is back"},
            )
        )
        assert answer["replayed"] == 2
        assert answer["target_stream"] == "orders"
        assert answer["left_out"][0]["kind"] == "POISON"
        assert answer["filter"] == "queue:orders"
        whole = [entry for entry in await world.told() if entry.dlq_id is None]
        assert [(e.actor, e.kind, e.reason) for e in whole] == [
            ("all", "replayed", "the carrier is back")
        ]
        assert whole[0].detail["filter"] == "queue:orders"
        assert whole[0].detail["replayed"] == 2
        problem(await caller.post("/api/dlq/replay-all"), 422)
        problem(await caller.delete("/api/dlq"), 422)
        everything = done(await caller.post("/api/dlq/replay-all", json={"all": True}))
        assert everything["replayed"] == 1

    run_api(database, body)


def test_a_large_run_goes_on_with_its_cursor(database):
    """What came back meanwhile is not taken again; each letter is taken once."""

    async def body(api, caller):
        world = api.world
        await world.plant_many(25)
        first = done(await caller.post("/api/dlq/replay-all", json={"all": True}))
        assert (first["replayed"], first["more"]) == (10, True)
        # one of them fails again at once
        back = first["results"][0]["dlq_id"]
        await world.change(back, state="open", replayed_as=None, state_changed_at=await world.now())
        second = done(await caller.post("/api/dlq/replay-all", json={"cursor": first["cursor"]}))
        third = done(await caller.post("/api/dlq/replay-all", json={"cursor": second["cursor"]}))
        assert (second["replayed"], third["replayed"]) == (10, 5)
        assert "more" not in third
        taken = [r["dlq_id"] for part in (first, second, third) for r in part["results"]]
        assert sorted(taken) == list(range(1, 26))
        foreign = {"cursor": first["cursor"]}
        problem(await caller.post("/api/dlq/replay-all?queue=mail", json=foreign), 422)

    run_api(database, body, options={"bulk_max": 10})


def test_two_bulk_replays_at_once_send_each_letter_once(postgres):
    """F-G05: whoever comes second finds nothing twice."""

    async def body(api, caller):
        await api.world.plant_many(500)
        ways = [caller.post("/api/dlq/replay-all", json={"all": True}) for _ in range(3)]
        answers = [done(answer) for answer in await asyncio.gather(*ways)]
        assert sum(answer["replayed"] for answer in answers) == 500
        assert len(await rows(api.world)) == 500

    run_api(postgres, body)


def test_purge_by_filter_in_proteans_shape(database):
    """S2-38: DELETE, and what was purged can be restored."""

    async def body(api, caller):
        for queue in ("payments", "payments", "mail"):
            await api.world.plant(queue=queue)
        given = {"subscription": "payments", "reason": "test data"}
        answer = done(await caller.delete("/api/dlq", params=given))
        assert (answer["status"], answer["purged"]) == ("ok", 2)
        assert done(await caller.get("/api/dlq"))["total"] == 1
        one = done(await caller.post("/api/dlq/id/1/restore", json={"reason": "not test data"}))
        assert one["restored"] is True
        many = done(await caller.post("/api/dlq/restore", json={"ids": [1, 2]}))
        assert (many["restored"], many["failed"]) == (1, 1)
        assert done(await caller.get("/api/dlq"))["total"] == 3
        problem(await caller.post("/api/dlq/id/1/restore"), 409)

    run_api(database, body)


def test_purge_by_ids(database):
    async def body(api, caller):
        letters = [await api.world.plant() for _ in range(3)]
        hard = done(await caller.post(f"/api/dlq/id/{letters[0]}/purge", json={"hard": True}))
        assert hard["purged"] is True
        assert await api.world.one(letters[0]) is None
        many = done(await caller.post("/api/dlq/purge", json={"ids": [*letters, 999]}))
        assert (many["purged"], many["failed"]) == (2, 2)

    run_api(database, body)


def test_marks_and_history(database):
    async def body(api, caller):
        letter = await api.world.plant(state="escalated", replay_count=3)
        said = {"open": True, "owner": "team-a", "note": "looked at", "reason": "fixed in 1.4"}
        assert done(await caller.post(f"/api/dlq/id/{letter}/mark", json=said))["marked"] is True
        shown = done(await caller.get(f"/api/dlq/{letter}"))
        assert (shown["state"], shown["owner"]) == ("open", "team-a")
        history = done(await caller.get(f"/api/dlq/id/{letter}/history"))
        assert {entry["kind"] for entry in history["items"]} == {"reopened", "assigned", "noted"}
        many = {"ids": [letter, 99], "review": True}
        assert done(await caller.post("/api/dlq/mark", json=many))["marked"] == 1
        problem(await caller.post(f"/api/dlq/id/{letter}/mark", json={}), 422)
        problem(await caller.post(f"/api/dlq/id/{letter}/mark", json={"onwer": "x"}), 422)

    run_api(database, body)


def test_a_reveal_is_a_post_with_its_scope_and_is_recorded(database):
    """U-16: `inspect` sees the mask; `reveal` is asked for by POST and leaves a line."""

    async def body(api, caller):
        world = api.world
        letter = await world.plant(payload=b'{"password": "hunter2", "n": 1}')
        assert "hunter2" not in (await caller.get(f"/api/dlq/{letter}")).text
        problem(await caller.get(f"/api/dlq/{letter}", params={"reveal": "true"}), 422)
        problem(await caller.get(f"/api/dlq/id/{letter}/inspect?reveal=true"), 422)
        wanted = {"reveal": True, "reason": "a customer asks"}
        path = f"/api/dlq/id/{letter}/inspect"
        async with api.as_("inspect") as inspector:
            told = problem(await inspector.post(path, json=wanted), 403)
            assert told["scope"] == "reveal"
            assert done(await inspector.post(path, json={}))["masked"] is True
        assert not await world.told(letter)
        shown = done(await caller.post(path, json=wanted))
        assert shown["payload"]["value"]["password"] == "hunter2"
        (entry,) = await world.told(letter)
        assert (entry.kind, entry.actor, entry.reason) == ("revealed", "all", "a customer asks")

    run_api(database, body)


def test_groups_and_stats_say_the_same(database):
    async def body(api, caller):
        for number in range(5):
            await api.world.plant(fingerprint=f"v1:{number % 2}", queue="orders")
        groups = done(await caller.get("/api/dlq/groups"))
        assert [group["count"] for group in groups["items"]] == [3, 2]
        assert done(await caller.get("/api/dlq/groups", params={"limit": 1}))["more"] is True
        stats = done(await caller.get("/api/dlq/stats", params={"queue": "orders"}))
        assert stats["depth"] == 5
        assert [cause["count"] for cause in stats["causes"]] == [3, 2]
        whole = done(await caller.get("/api/dlq/inspect", params={"limit": 2}))
        assert [letter["payload"]["value"] for letter in whole["items"]] == [{"n": 1}] * 2
        assert whole["total"] == 5

    run_api(database, body)


def test_an_edit_keeps_the_original_and_wants_the_letter_that_was_seen(database):
    """F-K14: 412 for a letter that changed since its ETag was read."""

    async def body(api, caller):
        letter = await api.world.plant(payload=b'{"price": "free"}')
        path = f"/api/dlq/id/{letter}/edit"
        seen = (await caller.get(f"/api/dlq/{letter}")).headers["etag"]
        change = {"patch": [{"op": "replace", "path": "/price", "value": 0}], "reason": "typo"}
        before = await checksum(api.world)
        dry = done(await caller.post(path, json=change | {"dry_run": True}))
        assert dry["diff"]
        assert await checksum(api.world) == before
        edited = await caller.post(path, json=change, headers={"If-Match": seen})
        assert done(edited)["revision"] == 1
        assert edited.headers["etag"] != seen
        problem(await caller.post(path, json=change, headers={"If-Match": seen}), 412)
        problem(await caller.post(path, json=change, headers={"If-Match": "no quotes"}), 422)
        problem(await caller.post("/api/dlq/id/999/edit", json=change), 404)
        assert (await api.world.one(letter))["payload"] == b'{"price": "free"}'
        done(await caller.post(f"/api/dlq/{letter}/replay"))
        (row,) = await rows(api.world)
        assert json.loads(row.payload) == {"price": 0}

    run_api(database, body)


def test_a_patch_keeps_its_numbers(sqlite):
    """`1.10` and what no float holds arrive as they were written."""

    async def body(api, caller):
        letter = await api.world.plant(payload=b'{"a": 1}')
        exact = b'[{"op": "add", "path": "/b", "value": [1.10, 12345678901234567890.123, 1e400]}]'
        given = b'{"dry_run": false, "change": {"patch": ' + exact + b"}}"
        headers = {"Content-Type": "application/json"}
        path = f"/api/dlq/{letter}/replay"
        assert done(await caller.post(path, content=given, headers=headers))["replayed"]
        (row,) = await rows(api.world)
        assert b"1.10,12345678901234567890.123,1e400" in row.payload

    run_api(sqlite, body)


def test_a_replay_with_a_change_needs_edit_too(database):
    """U-16: the scope `replay` alone sends what is there."""

    async def body(api, caller):
        letter = await api.world.plant(payload=b"{}")
        wanted = {"change": {"payload_text": '{"isbn": "x"}'}}
        async with api.as_("replay") as replayer:
            told = problem(await replayer.post(f"/api/dlq/{letter}/replay", json=wanted), 403)
            assert told["scope"] == "edit"
        assert done(await caller.post(f"/api/dlq/{letter}/replay", json=wanted))["replayed"]
        (row,) = await rows(api.world)
        assert row.payload == b'{"isbn": "x"}'

    run_api(database, body)


def test_a_transform_is_run_only_if_the_settings_name_it(sqlite):
    """A caller cannot name code of the server."""

    async def body(api, caller):
        letter = await api.world.plant(payload=b'{"n": 1}')
        path = f"/api/dlq/id/{letter}/edit"
        for name in ("os:getcwd", "builtins:eval", "tests.doors.rest:problem", "x" * 500):
            told = problem(await caller.post(path, json={"transform": name}), 422)
            assert "transforms" in told["remedy"]
        allowed = {"transform": "tests.doors.test_api_dlq:doubled"}
        assert done(await caller.post(path, json=allowed | {"not_idempotent": True}))["revision"]

    run_api(sqlite, body, options={"transforms": ("tests.doors.test_api_dlq:doubled",)})


def doubled(body):
    return body | {"n": body["n"] * 2}


def test_export_streams_and_import_takes_it_back(database):
    async def body(api, caller):
        world = api.world
        for number in range(3):
            await world.plant(original_id=number, payload=b'{"password": "hunter2"}')
        before = await checksum(world)
        masked = await caller.get("/api/dlq/export", params={"as": "jsonl"})
        assert len(masked.text.splitlines()) == 3
        assert "hunter2" not in masked.text
        assert json.loads((await caller.get("/api/dlq/export")).text)
        assert (await caller.get("/api/dlq/export?as=csv")).headers["content-type"] == (
            "text/csv; charset=utf-8"
        )
        assert await checksum(world) == before
        problem(await caller.get("/api/dlq/export?as=xml"), 422)
        problem(await caller.get("/api/dlq/export?reveal=true"), 422)
        async with api.as_("inspect") as inspector:
            problem(await inspector.post("/api/dlq/export", json={"reveal": True}), 403)
        shown = await caller.post("/api/dlq/export", json={"reveal": True, "as": "jsonl"})
        assert "hunter2" in shown.text
        refused = done(await caller.post("/api/dlq/import", content=masked.content))
        assert (refused["imported"], refused["failed"]) == (0, 3)
        purge = {"all": True, "hard": True}
        done(await caller.delete("/api/dlq", params=purge))
        dry = await caller.post("/api/dlq/import?dry_run=1", content=shown.content)
        assert done(dry)["imported"] == 3
        assert done(await caller.get("/api/dlq"))["total"] == 0
        again = done(await caller.post("/api/dlq/import", content=shown.content))
        assert again["imported"] == 3
        assert {x["payload"] for x in await world.letters()} == {b'{"password": "hunter2"}'}
        problem(await caller.post("/api/dlq/import", content=b"\xff\xfe"), 422)

    run_api(database, body)


def test_an_export_that_breaks_off_is_no_whole_answer(sqlite):
    """The connection ends in the middle: nobody takes half of the letters for all."""

    async def body(api, caller):
        from outlast.model.errors import Disconnected

        async def parts():
            yield "[\n{}"
            raise Disconnected("gone")

        api.world.desk.export = lambda *_given, **_more: parts()
        transport = httpx.ASGITransport(app=api.app)
        headers = {"Authorization": f"Bearer {api.made['all'].secret}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8787", headers=headers
        ) as strict:
            with pytest.raises(Exception) as broken:
                await strict.get("/api/dlq/export")
            assert type(broken.value).__name__ == "_Broken"

        async def nothing():
            raise Disconnected("gone")
            yield ""

        api.world.desk.export = lambda *_given, **_more: nothing()
        problem(await caller.get("/api/dlq/export"), 503)

    run_api(sqlite, body)


def test_a_replay_may_wait_for_its_outcome(database):
    async def body(api, caller):
        letter = await api.world.plant()
        answer = done(await caller.post(f"/api/dlq/{letter}/replay", json={"wait": 0.05}))
        assert answer["replayed"] is True
        assert answer["waited"] == "waiting"
        assert answer["unserved"] == ["q"]
        other = await api.world.plant()
        async with api.as_("replay") as replayer:
            problem(await replayer.post(f"/api/dlq/{other}/replay", json={"wait": 1}), 403)
        assert (await api.world.one(other))["state"] == "open"

    run_api(database, body)


def test_an_unknown_subscription_is_404(database):
    """S2-61: it names those that are known."""

    async def body(api, caller):
        await api.world.plant(queue="orders")
        for method, path, how in (
            ("GET", "/api/dlq", {}),
            ("POST", "/api/dlq/replay-all", {}),
            ("DELETE", "/api/dlq", {}),
        ):
            told = problem(await caller.request(method, f"{path}?subscription=ordres", **how), 404)
            assert told["error"] == "No subscription for 'ordres'"
            assert told["known"] == ["orders"]
        assert done(await caller.get("/api/dlq?queue=ordres"))["total"] == 0

    run_api(database, body)
