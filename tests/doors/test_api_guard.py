"""Who may come in: tokens and scopes on every route, origins, sizes, repeated requests."""

import asyncio
import json
import re

import httpx
import pytest
from fastapi import FastAPI

from outlast.api import ApiOptions, make_app
from outlast.api.guard import OPEN_ROUTES
from outlast.ops import BadRequest
from tests.doors.rest import ALL, Api, done, problem, run_api

ANY = "any scope"
JSON = {"Content-Type": "application/json"}

# every route, and the scope it needs: a route that is not here fails the test
NEEDS = {
    ("GET", "/api/dlq"): "inspect",
    ("DELETE", "/api/dlq"): "discard",
    ("GET", "/api/dlq/stats"): "inspect",
    ("GET", "/api/dlq/groups"): "inspect",
    ("GET", "/api/dlq/inspect"): "inspect",
    ("GET", "/api/dlq/export"): "inspect",
    ("POST", "/api/dlq/export"): "inspect",
    ("POST", "/api/dlq/import"): "edit",
    ("POST", "/api/dlq/replay"): "replay",
    ("POST", "/api/dlq/replay-all"): "replay",
    ("POST", "/api/dlq/purge"): "discard",
    ("POST", "/api/dlq/restore"): "discard",
    ("POST", "/api/dlq/mark"): "edit",
    ("GET", "/api/dlq/{dlq_id}"): "inspect",
    ("POST", "/api/dlq/{dlq_id}/replay"): "replay",
    ("GET", "/api/dlq/id/{dlq_id}"): "inspect",
    ("GET", "/api/dlq/id/{dlq_id}/inspect"): "inspect",
    ("POST", "/api/dlq/id/{dlq_id}/inspect"): "inspect",
    ("GET", "/api/dlq/id/{dlq_id}/history"): "inspect",
    ("POST", "/api/dlq/id/{dlq_id}/replay"): "replay",
    ("POST", "/api/dlq/id/{dlq_id}/purge"): "discard",
    ("POST", "/api/dlq/id/{dlq_id}/restore"): "discard",
    ("POST", "/api/dlq/id/{dlq_id}/mark"): "edit",
    ("POST", "/api/dlq/id/{dlq_id}/edit"): "edit",
    ("GET", "/dlt-messages"): "inspect",
    ("GET", "/dlt-messages/{dlq_id}"): "inspect",
    ("POST", "/replay"): "replay",
    ("GET", "/api/outbox"): "inspect",
    ("GET", "/api/outbox/{row_id}"): "inspect",
    ("GET", "/api/outbox/id/{row_id}"): "inspect",
    ("GET", "/api/outbox/id/{row_id}/inspect"): "inspect",
    ("POST", "/api/outbox/cancel"): "replay",
    ("POST", "/api/outbox/run-now"): "replay",
    ("POST", "/api/outbox/id/{row_id}/cancel"): "replay",
    ("POST", "/api/outbox/id/{row_id}/run-now"): "replay",
    ("GET", "/api/subscriptions"): "inspect",
    ("GET", "/api/workers"): "inspect",
    ("GET", "/metrics"): "inspect",
    ("GET", "/openapi.json"): ANY,
    ("GET", "/health"): None,
    ("GET", "/health/live"): None,
    ("GET", "/health/ready"): None,
}

# what a request must say so that it is understood
BODIES = {
    "/api/dlq/replay": {"ids": [1]},
    "/api/dlq/purge": {"ids": [1]},
    "/api/dlq/restore": {"ids": [1]},
    "/api/dlq/mark": {"ids": [1], "note": "seen"},
    "/api/dlq/id/{dlq_id}/mark": {"note": "seen"},
    "/api/dlq/id/{dlq_id}/inspect": {},
    "/api/dlq/id/{dlq_id}/edit": {"payload_text": "{}"},
    "/api/dlq/export": {},
    "/api/dlq/import": [],
    "/api/dlq/replay-all": {"all": True},
    "/replay": {"messageId": "m-1"},
    "/api/outbox/cancel": {"ids": [1]},
    "/api/outbox/run-now": {"ids": [1]},
}


def routes(app):
    return {(m, r.path) for r in app.routes for m in r.methods if m != "HEAD"}


def sent(caller, method, path, **more):
    given = {}
    if method == "POST":
        given["json"] = BODIES.get(path, {})
        if path not in BODIES:
            del given["json"]
    if method == "DELETE":
        given["params"] = {"all": "1"}
    return caller.request(method, path.format(dlq_id=1, row_id=1), **given, **more)


def test_every_route_asks_for_its_scope(sqlite):
    """U-16 F-K01: each route, for nobody, for a stranger's token, and with each scope alone."""

    async def body(api, caller):
        assert routes(api.app) == set(NEEDS)
        await api.world.plant(message_id="m-1")
        strangers = [None, "outlast_" + "x" * 43, "", "Bearer"]
        for (method, path), scope in sorted(NEEDS.items()):
            for token in strangers:
                async with api.client(token=token) as stranger:
                    answer = await sent(stranger, method, path)
                if scope is None and (token is None or path != "/health"):
                    assert answer.status_code == 200, (path, answer.text)
                else:
                    problem(answer, 401)
                    assert answer.headers["www-authenticate"].startswith("Bearer")
            for name in ALL:
                async with api.as_(name) as one:
                    answer = await sent(one, method, path)
                if scope in {None, ANY, name}:
                    assert answer.status_code in {200, 404, 409, 422}, (path, name, answer.text)
                    assert answer.status_code != 422 or path == "/api/dlq/import", answer.text
                else:
                    assert problem(answer, 403)["scope"] == scope, (path, name)

    run_api(sqlite, body)


def test_what_is_refused_is_refused_before_it_is_read(sqlite):
    """Without the scope it makes no difference what the body says."""

    async def body(api, caller):
        async with api.as_("inspect") as inspector:
            rubbish = {"ids": "rubbish"}
            problem(await inspector.post("/api/dlq/purge", json=rubbish), 403)
        async with api.nobody as nobody:
            problem(await nobody.post("/api/dlq/purge", content=b"{" * 100), 401)
            problem(await nobody.get("/no/such/route"), 401)
            problem(await nobody.request("PUT", "/api/dlq"), 401)

    run_api(sqlite, body)


def test_nothing_of_a_body_is_read_for_nobody(sqlite):
    async def body(api, caller):
        read = []

        async def endless():
            for _ in range(1000):
                read.append(1)
                yield b" " * 65_536

        async with api.nobody as nobody:
            problem(await nobody.post("/api/dlq/import", content=endless()), 401)
        assert len(read) <= 1

    run_api(sqlite, body)


def test_aliases_of_scopes(sqlite):
    """U-16: Keymate's names of scopes open Keymate's routes."""

    async def body(api, caller):
        from outlast.ops.tokens import TokenBook, new_token

        tokens = [new_token("r", ["dlts:read"]), new_token("w", ["dlts:update"])]
        app = make_app(api.world.desk, TokenBook.parse([token.line for token in tokens]))
        await api.world.plant(message_id="m")
        async with api.client(app, token=tokens[0].secret) as reader:
            assert done(await reader.get("/dlt-messages"))["total"] == 1
            problem(await reader.post("/replay", json={"messageId": "m"}), 403)
        async with api.client(app, token=tokens[1].secret) as writer:
            problem(await writer.get("/dlt-messages"), 403)
            assert done(await writer.post("/replay", json={"messageId": "m"}))["replayed"] == 1

    run_api(sqlite, body)


NO_TOKENS = [
    "Basic dXNlcjpwYXNz",
    "Bearer",
    "Bearer ",
    "bearer  x",
    "Bearer " + "ä".encode().decode("latin-1"),
    "Bearer " + "x" * 5000,
    "x" * 100,
]


def test_a_header_that_is_no_token(sqlite):
    """F-K01: other schemes, empty, too long."""

    async def body(api, caller):
        secret = api.made["all"].secret
        wrong = (*NO_TOKENS, f"Bearer\t{secret}", f"Bearer {secret}x", f"Token {secret}", secret)
        async with api.nobody as nobody:
            for value in wrong:
                headers = {"Authorization": value.encode("latin-1")}
                problem(await nobody.get("/api/dlq", headers=headers), 401)
            for value in (f"bEaReR   {secret} ", f"Bearer {secret}"):
                done(await nobody.get("/api/dlq", headers={"Authorization": value}))
            problem(await nobody.get("/api/dlq", params={"access_token": secret}), 401)

    run_api(sqlite, body)


def test_two_tokens_are_none(sqlite):
    async def body(api, caller):
        secret = api.made["all"].secret
        async with api.nobody as nobody:
            twice = [("Authorization", f"Bearer {secret}"), ("Authorization", "Bearer other")]
            problem(await nobody.get("/api/dlq", headers=twice), 401)

    run_api(sqlite, body)


SITES = [
    ({}, True),
    ({"Sec-Fetch-Site": "none"}, True),
    ({"Sec-Fetch-Site": "same-origin"}, True),
    ({"Sec-Fetch-Site": "same-site"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Origin": "http://127.0.0.1:8787"}, True),
    ({"Origin": "https://admin.example", "Sec-Fetch-Site": "cross-site"}, True),
    ({"Origin": "https://evil.example"}, False),
    ({"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"}, False),
    ({"Origin": "http://127.0.0.1:9999"}, False),
    ({"Origin": "null"}, False),
    ({"Origin": ""}, False),
]


def test_a_write_from_another_site_is_refused(sqlite):
    """F-K05: as Protean had it, a page of anybody purged a queue by the operator's browser."""

    async def body(api, caller):
        for headers, allowed in SITES:
            letter = await api.world.plant()
            for method, path in (
                ("DELETE", "/api/dlq?all=1"),
                ("POST", f"/api/dlq/{letter}/replay"),
                ("POST", "/replay"),
            ):
                answer = await caller.request(method, path, headers=headers)
                assert (answer.status_code != 403) is allowed, (headers, answer.text)
            assert ((await api.world.one(letter))["state"] == "discarded") is allowed, headers
            assert done(await caller.get("/api/dlq", headers=headers))

    run_api(sqlite, body, options={"origins": ("https://admin.example",)})


def test_only_named_origins_may_read_from_a_browser(sqlite):
    async def body(api, caller):
        asked = {"Access-Control-Request-Method": "POST"}
        good = await caller.options("/api/dlq", headers=asked | {"Origin": "https://a.example"})
        assert good.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-credentials" not in good.headers
        evil = await caller.options("/api/dlq", headers=asked | {"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in evil.headers

    run_api(sqlite, body, options={"origins": ("https://a.example",)})


@pytest.mark.parametrize("origin", ["*", "a.example", "https://", "https://a/b", "https://*.a", ""])
def test_an_origin_that_is_none_is_refused_at_start(origin):
    with pytest.raises(BadRequest):
        ApiOptions(origins=(origin,))


def test_without_tokens_the_host_must_be_loopback(sqlite):
    """A name that was bound to 127.0.0.1 by its owner is an origin of its own."""

    async def body(api, caller):
        await api.world.plant()
        app = make_app(api.world.desk, options=ApiOptions(no_auth=True, health_seconds=0))
        async with api.client(app) as nobody:
            for host in ("127.0.0.1:8787", "localhost:8787", "[::1]:8787", "localhost"):
                assert done(await nobody.get("/api/dlq", headers={"Host": host}))["total"] == 1
            for host in (
                "evil.example",
                "evil.example:8787",
                "127.0.0.1.evil.example",
                "",
                "[::1].x",
                "[",
                "::1:x",
            ):
                problem(await nobody.get("/api/dlq", headers={"Host": host}), 403)
            assert done(await nobody.post("/api/dlq/1/replay"))["replayed"]
        assert {entry.actor for entry in await api.world.told()} == {"anonymous@loopback"}

    run_api(sqlite, body)


def test_a_hostile_host_header(sqlite):
    async def body(api, caller):
        for host in ("[", "a b", "\x1b", "x" * 1000, "[::1", "@:0", "a:b:c"):
            for path in ("/api/dlq", "/nothing", "/health/live", "/openapi.json"):
                answer = await caller.get(path, headers={"Host": host})
                assert answer.status_code in {200, 404}, (host, answer.text)

    run_api(sqlite, body)


def test_no_tokens_open_nothing(sqlite):
    """F-K01: without a single token only health answers."""

    async def body(api, caller):
        app = make_app(api.world.desk)
        async with api.client(app) as nobody:
            for method, path in sorted(NEEDS):
                if path not in OPEN_ROUTES:
                    problem(await sent(nobody, method, path), 401)

    run_api(sqlite, body)


def test_a_body_has_a_size(sqlite):
    """413 by what is said, and by what comes, without reading on."""

    async def body(api, caller):
        read = []

        async def endless():
            for _ in range(1000):
                read.append(1)
                yield b" " * 1000

        problem(await caller.post("/api/dlq/import", content=b"x" * 5001), 413)
        problem(await caller.post("/api/dlq/import", content=endless()), 413)
        assert len(read) <= 10
        said = {"Content-Length": "9" * 30}
        problem(await caller.post("/api/dlq/import", content=b"", headers=said), 413)

    run_api(sqlite, body, options={"body_bytes_max": 5000})


def test_a_body_that_does_not_arrive_is_given_up(sqlite):
    async def body(api, caller):
        never = asyncio.Event()

        async def slow():
            yield b"{"
            await never.wait()

        problem(await caller.post("/api/dlq/purge", content=slow()), 408)

    run_api(sqlite, body, options={"body_seconds": 0.01})


def test_whoever_takes_nothing_of_an_answer_loses_its_slot(sqlite, caplog):
    """The answer is given up, the slot is free, and the log tells why."""

    async def body(api, caller):
        await api.world.plant()
        letters = api.world.desk.export

        async def endless(*given, **more):
            async for part in letters(*given, **more):
                while True:
                    yield part

        api.world.desk.export = endless
        scope = httpx_scope("GET", "/api/dlq/export", api.made["all"].secret)
        taken = []

        async def receive():
            if not taken:
                taken.append("body")
                return {"type": "http.request", "body": b"", "more_body": False}
            await asyncio.Event().wait()

        async def send(message):
            taken.append(message["type"])
            await (asyncio.Event().wait() if len(taken) == stop_at else asyncio.sleep(0))

        for stop_at in (2, 3, 20):
            taken.clear()
            await is_broken_off(api.app, scope, receive, send)
            assert len(taken) == stop_at
            assert api.app.state.heavy == 0
        stop_at = 0
        taken.clear()
        api.options.__dict__["stream_seconds"] = 0.1
        await is_broken_off(api.app, scope, receive, send)
        assert api.app.state.heavy == 0
        assert caplog.text.count("was not taken in time") == 4
        assert done(await caller.get("/api/dlq/stats"))

    run_api(sqlite, body, options={"send_seconds": 0.02, "heavy_max": 1})


async def is_broken_off(app, *given):
    with pytest.raises(Exception, match=r"^$") as broken:
        async with asyncio.timeout(20):
            await app(*given)
    assert type(broken.value).__name__ == "_Broken"


def httpx_scope(method, path, secret):
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {secret}".encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8787),
    }


def test_a_parameter_is_given_once(sqlite):
    """Of two `since` one would be left out, and a purge would take more than it says."""

    async def body(api, caller):
        await api.world.plant(queue="orders")
        for query in ("since=2h&since=3d", "q=queue:a&q=queue:orders", "q=&q=x", "all=0&all=1"):
            refused = problem(await caller.delete(f"/api/dlq?{query}"), 422)
            assert "twice" in refused["error"]
        assert (await api.world.one(1))["state"] == "open"
        both = done(await caller.get("/api/dlq?queue=orders&queue=mail&state=open&state=escalated"))
        assert both["total"] == 1
        keys = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        problem(await caller.post("/api/dlq/1/replay", headers=keys), 422)

    run_api(sqlite, body)


def test_head_is_get_without_the_body(sqlite):
    async def body(api, caller):
        letter = await api.world.plant()
        for path in (f"/api/dlq/{letter}", "/api/dlq", "/api/dlq/export", "/health/live"):
            whole, head = await caller.get(path), await caller.head(path)
            assert (head.status_code, head.content) == (200, b"")
            assert set(head.headers) == set(whole.headers)
        for path, status in (("/api/dlq/999", 404), ("/nothing", 404), ("/api/dlq/purge", 405)):
            answer = await caller.head(path)
            assert (answer.status_code, answer.content) == (status, b"")
        async with api.nobody as nobody:
            assert (await nobody.head("/api/dlq")).status_code == 401

    run_api(sqlite, body)


def test_a_refused_body_is_told_what_to_do(sqlite):
    async def body(api, caller):
        for content, headers, said in (
            (b'{"ids": [1]}', {"Content-Type": "text/plain"}, "Content-Type: application/json"),
            (b"ids=1", {}, "Content-Type: application/json"),
            (b'{"ids" [1]}', JSON, "no JSON from character 7 on"),
            (b'{"ids": [1], "idz": 2}', JSON, "idz: nothing here has this name"),
            (b"[" * 100_000, JSON, "nested too deep"),
        ):
            answer = await caller.post("/api/dlq/purge", content=content, headers=headers)
            assert said in problem(answer, answer.status_code)["error"]

    run_api(sqlite, body)


def test_headers_and_urls_have_sizes(sqlite):
    async def body(api, caller):
        problem(await caller.get("/api/dlq", headers={"X-Big": "x" * 40_000}), 431)
        many = [(f"X-{number}", "1") for number in range(200)]
        problem(await caller.get("/api/dlq", headers=many), 431)
        problem(await caller.get("/api/dlq?q=" + "a" * 60_000), 414)

    run_api(sqlite, body)


SAY_NOTHING = [
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"[" * 100_000, "application/json"),
    (b"null", "application/json"),
    (b"[]", "application/json"),
    (b'{"ids": [1], "ids_": 2}', "application/json"),
    (b'{"ids": []}', "application/json"),
    (b'{"ids": [0]}', "application/json"),
    (b'{"ids": [9223372036854775808]}', "application/json"),
    (b'{"ids": ["1; DROP TABLE"]}', "application/json"),
    (b'{"ids": [1], "reason": "\\u0000"}', "application/json"),
    (b'{"ids": [1], "reason": "\\ud800"}', "application/json"),
    (b'{"ids": [' + b"1" * 10_000 + b"]}", "application/json"),
    (b'{"ids": [NaN]}', "application/json"),
    (b"\xff\xfe", "application/json"),
    (b'{"ids": [1]}', "text/plain"),
    (b"ids=1", "application/x-www-form-urlencoded"),
    (json.dumps({"ids": list(range(1, 20_000))}).encode(), "application/json"),
]


def test_a_body_that_says_nothing_is_refused(sqlite):
    async def body(api, caller):
        await api.world.plant()
        for content, type_ in SAY_NOTHING:
            headers = {"Content-Type": type_}
            answer = await caller.post("/api/dlq/purge", content=content, headers=headers)
            assert answer.status_code in {400, 422}, (content[:100], answer.text)
            problem(answer, answer.status_code)
        assert (await api.world.one(1))["state"] == "open"

    run_api(sqlite, body)


HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "'; DROP TABLE outbox_dlq; --",
    "%' OR 1=1 --",
    "%_%",
    "\x00",
    "\r\nSet-Cookie: a=b",
    "=cmd|' /C calc'!A0",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "\u202eevil\u2066",
    "{}[]()*+?\\",
    "9" * 5000,
    '"' * 300,
    "😀" * 500,
    "${jndi:ldap://x}",
]


def test_hostile_text_in_every_parameter(database):
    """No 5xx, no header of its own, no control character in the answer, no harm."""

    async def body(api, caller):
        await api.world.plant(queue="orders")
        for text in HOSTILE:
            await say(caller, text)
        assert done(await caller.get("/api/dlq"))["total"] == 1

    run_api(database, body)


async def say(caller, text):
    """Everywhere."""
    names = ("q", "subscription", "queue", "subscriber", "category", "state", "since", "until")
    more = ("cursor", "after", "limit", "offset")
    dlt = ("messageId", "subscriberId", "errorMessage", "startDate", "endDate", "status")
    asked = [("/api/dlq", {name: text}) for name in (*names, *more)]
    asked += [("/api/dlq", {"q": f'{w}:"{text}"'}) for w in ("error", "message", "body.a")]
    asked += [("/api/dlq/stats", {name: text}) for name in names]
    asked += [("/api/outbox", {name: text}) for name in (*names, "after", "limit")]
    asked += [("/dlt-messages", {name: text}) for name in dlt]
    asked += [("/api/dlq/export", {"q": f'error:"{text}"', "as": "csv"})]
    for path, params in asked:
        check(await caller.get(path, params=params))
    for path in ("/api/dlq/{}", "/api/dlq/id/{}/history", "/dlt-messages/{}", "/{}"):
        check(await caller.get(path.format(httpx.QueryParams({"x": text}))))
    bodies = [
        ("/api/dlq/replay-all", {"to": text, "all": True, "dry_run": True}),
        ("/api/dlq/replay-all", {"cursor": text}),
        ("/api/dlq/1/replay", {"reason": text, "dry_run": True}),
        ("/api/dlq/id/1/mark", {"owner": text, "triage": text, "note": text}),
        ("/api/dlq/id/1/edit", {"set_headers": {text: text}}),
        ("/api/dlq/id/1/edit", {"payload_base64": text}),
        ("/api/dlq/id/1/edit", {"patch": [{"op": "add", "path": text, "value": text}]}),
        ("/replay", {"messageId": text, "subscriberId": text}),
        ("/replay", {"cursor": text}),
        (f"/api/dlq/purge?{'x'}=1", {"ids": [1]}),
        ("/api/dlq/mark", {text: text}),
    ]
    for path, given in bodies:
        check(await caller.post(path, content=json.dumps(given), headers=JSON))
    key = {"Idempotency-Key": text.encode("utf-8", "replace").replace(b"\x00", b"0")[:200]}
    if "\n" not in text:
        check(await caller.post("/api/dlq/1/replay", json={"dry_run": True}, headers=key))


def check(answer):
    assert answer.status_code < 500, answer.text
    assert "set-cookie" not in answer.headers
    if answer.headers["content-type"].endswith("json"):
        answer.json()
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", answer.text)
    if answer.status_code >= 400:
        problem(answer, answer.status_code)


def test_a_repeated_request_gets_its_first_answer(database):
    """F-G05: once for each key, actor and body; another body with it is refused."""

    async def body(api, caller):
        letter = await api.world.plant()
        key = {"Idempotency-Key": "k-1"}
        first = done(await caller.post(f"/api/dlq/{letter}/replay", headers=key))
        again = done(await caller.post(f"/api/dlq/{letter}/replay", headers=key))
        assert again == first
        other = {"reason": "another"}
        problem(await caller.post(f"/api/dlq/{letter}/replay", headers=key, json=other), 422)
        problem(await caller.post(f"/api/dlq/id/{letter}/replay", headers=key), 422)
        problem(await caller.post(f"/api/dlq/{letter}/replay"), 409)
        async with api.as_("replay") as somebody_else:
            problem(await somebody_else.post(f"/api/dlq/{letter}/replay", headers=key), 409)
        problem(await caller.post("/api/dlq/1/replay", headers={"Idempotency-Key": ""}), 422)
        long = {"Idempotency-Key": "x" * 256}
        problem(await caller.post("/api/dlq/1/replay", headers=long), 422)

    run_api(database, body)


@pytest.mark.parametrize(
    ("method", "path", "given"),
    [
        ("POST", "/api/dlq/replay-all", {"all": True}),
        ("POST", "/api/dlq/replay", {"ids": [1, 2]}),
        ("DELETE", "/api/dlq?all=1", None),
        ("POST", "/api/dlq/purge", {"ids": [1, 2]}),
        ("POST", "/api/dlq/mark", {"ids": [1], "note": "n", "owner": "o"}),
        ("POST", "/api/dlq/id/1/edit", {"payload_text": "{}"}),
        ("POST", "/replay", {"messageIds": ["m"]}),
        ("POST", "/api/outbox/cancel", {"ids": [1]}),
        ("POST", "/api/outbox/id/1/cancel", {}),
        ("POST", "/api/outbox/run-now", {"ids": [1]}),
        ("POST", "/api/dlq/import", [{}]),
    ],
)
def test_every_action_can_be_repeated(database, method, path, given):
    """One act in the history, whatever was asked for twice."""

    async def body(api, caller):
        for _ in range(2):
            await api.world.plant(message_id="m")
        await api.world.add("q")
        key = {"Idempotency-Key": "again"}
        first = done(await caller.request(method, path, json=given, headers=key))
        told = len(await api.world.told())
        again = done(await caller.request(method, path, json=given, headers=key))
        if "diff" in first:
            # the history outlives the letter: what was in it is told once
            first["diff"] = []
        assert again == first
        assert len(await api.world.told()) == told

    run_api(database, body)


def test_the_same_request_while_it_is_answered(database):
    """409 for the second of two at once; what failed may be asked again with its key."""

    async def body(api, caller):
        letter = await api.world.plant()
        entered, go_on = asyncio.Event(), asyncio.Event()
        replay = api.world.desk.replay

        async def slowly(*given):
            entered.set()
            await go_on.wait()
            return await replay(*given)

        api.world.desk.replay = slowly
        key = {"Idempotency-Key": "k"}
        path = f"/api/dlq/{letter}/replay"
        first = asyncio.create_task(caller.post(path, headers=key))
        await entered.wait()
        problem(await caller.post(path, headers=key), 409)
        go_on.set()
        done(await first)
        problem(await caller.post("/api/dlq/999/replay", headers={"Idempotency-Key": "n"}), 404)
        problem(await caller.post("/api/dlq/999/replay", headers={"Idempotency-Key": "n"}), 404)

    run_api(database, body)


def test_too_much_at_once_is_429(sqlite):
    """A slot for each, of all requests and of those on many letters; freed when answered."""

    async def body(api, caller):
        entered, go_on = asyncio.Event(), asyncio.Event()
        stats = api.world.desk.stats

        async def slowly(*given):
            entered.set()
            await go_on.wait()
            return await stats(*given)

        api.world.desk.stats = slowly
        first = asyncio.create_task(caller.get("/api/dlq/stats"))
        await entered.wait()
        answer = await caller.get("/metrics")
        problem(answer, 429)
        assert answer.headers["retry-after"] == "1"
        assert done(await caller.get("/api/dlq"))
        go_on.set()
        done(await first)
        assert (await caller.get("/metrics")).status_code == 200

    run_api(sqlite, body, options={"heavy_max": 1})


def test_requests_have_a_bound(sqlite):
    async def body(api, caller):
        entered, go_on = asyncio.Event(), asyncio.Event()
        listing = api.world.desk.list

        async def slowly(*given, **more):
            entered.set()
            await go_on.wait()
            return await listing(*given, **more)

        api.world.desk.list = slowly
        first = asyncio.create_task(caller.get("/api/dlq"))
        await entered.wait()
        problem(await caller.get("/api/workers"), 429)
        assert done(await caller.get("/health/live")) == {"status": "ok"}
        go_on.set()
        done(await first)
        done(await caller.get("/api/workers"))

    run_api(sqlite, body, options={"requests_max": 1})


def test_it_mounts_under_a_prefix(database):
    """Routes, closed doors and the description work below a path of another application."""

    async def body(api, caller):
        outer = FastAPI()
        outer.mount("/outlast", api.app)
        await api.world.plant(queue="orders")
        async with api.client(outer, base="/outlast") as nobody:
            assert done(await nobody.get("/health/live")) == {"status": "ok"}
            assert done(await nobody.get("/health")) == {"status": "ok"}
            problem(await nobody.get("/api/dlq"), 401)
        async with api.client(outer, token=api.made["all"].secret, base="/outlast") as one:
            assert done(await one.get("/api/dlq"))["total"] == 1
            assert done(await one.post("/api/dlq/1/replay"))["replayed"]
            assert "depth" in done(await one.get("/api/dlq/stats"))
            problem(await one.get("/api/dlq/purge"), 405)
            problem(await one.get("/nothing"), 404)
            described = done(await one.get("/openapi.json"))
            assert "/api/dlq/{dlq_id}" in described["paths"]
            assert described["servers"] == [{"url": "/outlast"}]

    run_api(database, body)


def test_the_description_is_behind_the_door_and_tells_all(sqlite):
    async def body(api, caller):
        described = done(await caller.get("/openapi.json"))
        known = {(m.upper(), p) for p, item in described["paths"].items() for m in item}
        assert known == set(NEEDS) - {("GET", "/openapi.json")}
        for path, item in described["paths"].items():
            for method, operation in item.items():
                needs = NEEDS[method.upper(), path]
                assert bool(operation.get("security")) is (needs is not None), path
                assert operation["summary"]
                assert operation["description"]
                if needs is not None:
                    assert operation["security"] == [{"token": [needs]}]
                assert path in OPEN_ROUTES or "401" in operation["responses"]
        ids = [one["operationId"] for item in described["paths"].values() for one in item.values()]
        assert len(set(ids)) == len(ids)
        assert {"get_dlq", "post_dlq_replay_all", "post_dlq_id_edit"} <= set(ids)
        for path in ("/docs", "/redoc"):
            problem(await caller.get(path), 404)

    run_api(sqlite, body)


def test_no_answer_tells_what_we_run_on_or_stays_in_a_cache(sqlite):
    async def body(api, caller):
        for path in ("/api/dlq", "/health/live", "/nothing"):
            answer = await caller.get(path)
            assert "server" not in answer.headers
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"

    run_api(sqlite, body)


def test_what_nobody_expected_is_500_without_a_word_about_it(sqlite, caplog):
    async def body(api, caller):
        async def broken(*_given, **_more):
            raise RuntimeError("password=hunter2\x1b[2J")

        api.world.desk.list = broken
        answer = await caller.get("/api/dlq?q=queue:secret-name")
        problem(answer, 500)
        assert "hunter2" not in answer.text
        assert "hunter2" not in caplog.text
        assert "RuntimeError" in caplog.text

    run_api(sqlite, body)


def test_the_log_has_one_line_for_each_request_and_no_secret(sqlite, caplog):
    """F-K04 F-K13: no query, no token, no control character."""

    async def body(api, caller):
        caplog.set_level("INFO", "outlast.api")
        await caller.get("/api/dlq?q=error:hunter2")
        await caller.get("/api/dlq/%1b%5b2J%0afake line")
        lines = [record.getMessage() for record in caplog.records if record.name == "outlast.api"]
        assert len(lines) == 2
        assert lines[0].startswith("GET /api/dlq 200 ")
        assert lines[0].endswith(" all")
        assert "hunter2" not in caplog.text
        assert api.made["all"].secret not in caplog.text
        assert all(line.isprintable() for line in lines)

    run_api(sqlite, body)


def test_a_database_that_is_away_is_503(postgres):
    """F-K15: with the next time to ask; nothing of the address is shown."""

    async def body(api, caller):
        from sqlalchemy.ext.asyncio import create_async_engine

        away = create_async_engine("postgresql+asyncpg://u:hunter2@127.0.0.1:1/nowhere")
        lost = Api(api.world, health_seconds=0)
        app = make_app(api.world.make_desk(away), lost.book, options=lost.options)
        async with api.client(app, token=lost.made["all"].secret) as one:
            for method, path in sorted(NEEDS):
                if path in {"/health/live", "/openapi.json"}:
                    assert (await sent(one, method, path)).status_code == 200
                    continue
                answer = await sent(one, method, path)
                assert answer.status_code == 503, (path, answer.text)
                assert answer.headers["retry-after"]
                assert "hunter2" not in answer.text

    run_api(postgres, body)


def test_without_tables_it_is_501(database):
    """S2-60: a place without a dead-letter queue, and a table that lacks what an action needs."""

    async def body(api, caller):
        from outlast.ops import Desk

        app = make_app(Desk(api.world.engine, "outbox", "no_such"), api.book, options=api.options)
        async with api.client(app, token=api.made["all"].secret) as one:
            assert "no_such" in problem(await one.get("/api/dlq"), 501)["error"]
        key = {"Idempotency-Key": "k"}
        letter = await api.world.plant()
        problem(await caller.post(f"/api/dlq/{letter}/replay", headers=key), 501)
        assert done(await caller.post(f"/api/dlq/{letter}/replay"))["replayed"]

    run_api(database, body, beside=False)
