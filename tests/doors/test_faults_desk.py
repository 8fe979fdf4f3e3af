"""Faults and abuse at the doors of the desk: who comes in, what they send, what they are told."""

import asyncio
import contextlib
import csv
import io
import json
import os
import signal
import socket
import zipfile

import httpx
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.api import ApiOptions, make_app
from outlast.api.serving import serve
from outlast.policy.retry import NoRetry
from tests.contract.desks import run_desk
from tests.contract.test_interleavings import engine_over, until
from tests.doors.dlq_command import Command
from tests.doors.rest import Api, done, problem, run_api
from tests.doors.test_api_guard import NEEDS, routes, sent
from tests.doors.test_api_serving import TOKEN, Served

OPEN = {"/health", "/health/live", "/health/ready"}
WRITES = sorted(route for route in NEEDS if route[0] != "GET")
OVERRIDES = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")
FAST = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2, "retry_strategy": NoRetry()}


@pytest.fixture
def command(database, monkeypatch, capsys):
    return Command(database, monkeypatch, capsys)


async def described(api):
    """Every route of the OpenAPI file, which are those of the application."""
    async with api.as_("all") as caller:
        document = done(await caller.get("/openapi.json"))
    found = {(m.upper(), p) for p, item in document["paths"].items() for m in item}
    assert found | {("GET", "/openapi.json")} == routes(api.app)
    return sorted(found | {("GET", "/openapi.json")})


def test_no_route_opens_without_the_right_credentials(sqlite):
    """F-K01: none, empty, wrong, another scheme, another place, 10 MB: on every described route."""

    async def body(api, _):
        letter = await api.world.plant(message_id="m-1")
        secret = api.made["all"].secret
        strangers = [
            {},
            {"Authorization": ""},
            {"Authorization": "Bearer "},
            {"Authorization": f"Bearer {secret[:-1]}"},
            {"Authorization": f"Bearer {secret}x"},
            {"Authorization": f"Basic {secret}"},
            {"Authorization": f"Token {secret}"},
            {"Authorization": secret},
            {"X-Api-Key": secret, "Cookie": f"token={secret}; Authorization=Bearer {secret}"},
            {"Proxy-Authorization": f"Bearer {secret}", "X-Forwarded-User": "all"},
            {"X-Original-URL": "/health/live", "X-Forwarded-For": "127.0.0.1"},
        ]
        async with api.nobody as nobody:
            for method, path in await described(api):
                if path in OPEN:
                    assert (await sent(nobody, method, path)).status_code == 200
                    continue
                for headers in strangers:
                    problem(await sent(nobody, method, path, headers=headers), 401)
                given = {"access_token": secret, "token": secret, "Authorization": secret}
                filled = path.format(dlq_id=letter, row_id=1)
                problem(await nobody.request(method, filled, params=given), 401)
                huge = {"Authorization": "Bearer " + "x" * 10_000_000}
                problem(await sent(nobody, method, path, headers=huge), 431)
        assert (await api.world.one(letter))["state"] == "open"
        assert await api.world.told() == []

    run_api(sqlite, body)


def test_no_header_makes_another_method_of_a_request(sqlite):
    """F-K01: method override, by somebody who may look and by somebody who may purge."""

    async def body(api, _):
        letter = await api.world.plant()
        for name in ("inspect", "discard"):
            async with api.as_(name) as caller:
                for header in OVERRIDES:
                    over = {header: "DELETE"}
                    await caller.get("/api/dlq?all=1", headers=over)
                    await caller.get(f"/api/dlq/{letter}", headers=over)
                    problem(await caller.post("/api/dlq?all=1", headers=over), 405)
                problem(await caller.post("/api/dlq?all=1&_method=DELETE"), 405)
        assert (await api.world.one(letter))["state"] == "open"

    run_api(sqlite, body)


@pytest.fixture
def served(sqlite):
    async def body(world):
        await world.plant(queue="orders")

    run_desk(sqlite, body)
    with Served(sqlite) as server:
        yield server


def test_no_token_stands_in_a_log_and_a_huge_header_ends_nothing(served):
    """F-K01 F-K04: right, wrong and misplaced tokens, and 10 MB of one: the server goes on.

    Not one of them is in what the process has said.
    """
    wrong = "outlast_" + "w" * 43
    address = f"http://127.0.0.1:{served.port}"
    for secret in (TOKEN.secret, wrong):
        headers = {"Authorization": f"Bearer {secret}"}
        httpx.get(f"{address}/api/dlq", headers=headers)
        httpx.get(f"{address}/api/dlq", params={"token": secret, "q": secret}, headers=headers)
        httpx.get(f"{address}/api/dlq/{secret}", headers=headers)
        httpx.post(f"{address}/api/dlq/replay", json={"ids": [secret]}, headers=headers)
        httpx.get(f"{address}/{secret}/api", headers={"Authorization": f"Basic {secret}"})
        httpx.get(f"{address}/api/dlq", headers={"X-Token": secret, "Cookie": secret})
        httpx.get(address.replace("//", f"//{secret}:{secret}@") + "/api/dlq")
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as one:
        one.sendall(b"GET /api/dlq HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ")
        try:
            for _ in range(160):
                one.sendall(TOKEN.secret.encode() * 1200)
            one.shutdown(socket.SHUT_WR)
            said = one.recv(100)
        except OSError:
            said = b""
    assert not said or said.split()[1][:1] == b"4"
    assert httpx.get(f"{address}/health/live").status_code == 200
    assert served.end(signal.SIGTERM) == 0
    told = "".join(served.lines)
    assert "GET /api/dlq 200" in told
    assert "GET /api/dlq/••• 404" in told
    for secret in (TOKEN.secret, wrong):
        assert secret not in told
        assert secret[8:] not in told
    assert TOKEN.line.rpartition(":")[2] not in told


def test_a_reader_changes_nothing_and_each_try_is_told(database, caplog):
    """F-K03: each write route with a token that may look: 403, and a line that names who tried."""

    async def body(api, _):
        caplog.set_level("INFO", "outlast.api")
        letter = await api.world.plant(message_id="m-1", payload=b'{"password": "hunter2"}')
        row = await api.world.add("q")
        before = [await api.world.letters(), await api.world.rows()]
        tried = []
        async with api.as_("inspect") as reader:
            for method, path in WRITES:
                if NEEDS[method, path] == "inspect":
                    continue
                problem(await sent(reader, method, path), 403)
                tried.append(f"{method} {path.format(dlq_id=letter, row_id=row)} 403 ")
            for path in (f"/api/dlq/id/{letter}/inspect", "/api/dlq/export"):
                answer = await reader.post(path, json={"reveal": True})
                assert problem(answer, 403)["scope"] == "reveal"
                tried.append(f"POST {path} 403 ")
                assert "hunter2" not in (await reader.post(path, json={})).text
        lines = [r.getMessage() for r in caplog.records if " 403 " in r.getMessage()]
        assert len(tried) > 15
        assert [line[: len(start)] for line, start in zip(lines, tried, strict=True)] == tried
        assert all(line.endswith(" inspect") for line in lines)
        assert [await api.world.letters(), await api.world.rows()] == before
        assert await api.world.told() == []

    run_api(database, body)


@pytest.mark.parametrize("no_auth", [False, True])
def test_a_form_of_another_site_changes_nothing(sqlite, no_auth):
    """F-K05: what a browser sends for a form of another page, with and without tokens."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    sites = (
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:9999"},
    )

    async def body(api, _):
        await api.world.plant(message_id="m-1")
        await api.world.add("q")
        before = [await api.world.letters(), await api.world.rows()]
        app = make_app(api.world.desk, api.book, options=ApiOptions(no_auth=no_auth))
        token = None if no_auth else api.made["all"].secret
        async with api.client(app, token) as victim:
            for method, path in WRITES:
                for headers in sites:
                    filled = path.format(dlq_id=1, row_id=1)
                    asked = {"content": b"ids=1&all=1", "headers": form | headers}
                    problem(await victim.request(method, filled, **asked), 403)
            # text/plain is the other type that a form can send
            plain = {"Content-Type": "text/plain", "Origin": "http://127.0.0.1:8787"}
            given = {"content": b'{"all": true}', "headers": plain}
            problem(await victim.post("/api/dlq/replay-all", **given), 422)
        assert [await api.world.letters(), await api.world.rows()] == before

    run_api(sqlite, body)


IDENTIFIERS = (
    *('outbox_dlq"; DROP TABLE canary; --', "outbox_dlq'; DROP TABLE canary; --", "a;b", "--", '"'),
    *("x" * 63, "x" * 64, "ü" * 32, "canary) --", "%", "$1", ":x", "pg_catalog.pg_class", "*"),
)
WORDS = (
    *(
        "' OR 1=1 --",
        '" OR 1=1 --',
        "'; DROP TABLE canary; --",
        "%",
        "_",
        "\\",
        "%%",
        "a%' ESCAPE '",
    ),
    *("$$", ":x", "?", "{0}", "0x27", "\u02bc", "/*", "x'--"),
)


def test_no_text_of_anybody_is_a_part_of_a_statement(command):
    """F-K08: names of tables and schemas, filters, zones, wildcards; the canary is as it was."""
    canary = "CREATE TABLE canary (n int)", "INSERT INTO canary VALUES (1)"
    for statement in canary:
        command._do(lambda connection, sql=statement: connection.execute(text(sql)))
    (letter,) = command.plant()
    for name in IDENTIFIERS:
        for option in ("--dlq-table", "--table"):
            verb = ["list"] if option == "--dlq-table" else ["replay", letter]
            ended = command.run("dlq", *verb, f"{option}={name}")
            assert ended.status in {1, 2}, (option, name, ended.out)
            assert "unexpected" not in ended.err, (option, name, ended.err)
        schema = command.run("dlq", "list", f"--dlq-table={name}.t")
        assert schema.status in {1, 2}, (name, schema.out)
    for word in WORDS:
        quoted = word.replace("\\", "\\\\").replace('"', '\\"')
        for name in ("queue", "body.a.b"):
            ended = command.run("dlq", "purge", f'{name}:"{quoted}"', "-y")
            assert (ended.status, ended.out) == (0, "No DLQ messages found.\n"), (name, word)
    for zone in ("+00:00'; DROP TABLE canary; --", "+99:99", "Z' --", " UTC'"):
        refused = command.run("dlq", "purge", f'since:"2026-11-01T10:00:00{zone}"', "-y")
        assert (refused.status, refused.out) == (2, ""), (zone, refused.err)
    assert command.states() == {letter: "open"}
    assert command._do(canary_of) == [1]


async def canary_of(connection):
    return list((await connection.execute(text("SELECT n FROM canary"))).scalars())


@pytest.mark.parametrize(
    ("method", "path", "given"),
    [
        ("GET", "/api/dlq?limit=1000000000", None),
        ("GET", "/api/dlq?limit=-1", None),
        ("GET", "/api/dlq?limit=0", None),
        ("GET", "/api/dlq?offset=1000000000", None),
        ("GET", "/api/dlq?offset=-1", None),
        ("GET", "/api/dlq?limit=" + "9" * 5000, None),
        ("GET", "/dlt-messages?size=1000000000", None),
        ("GET", "/dlt-messages?page=1000000000", None),
        ("GET", "/api/dlq/groups?limit=1000000000", None),
        ("GET", "/api/outbox?limit=1000000000", None),
        ("GET", "/api/dlq?q=" + "error:a " * 200, None),
        ("GET", "/api/dlq?q=error:" + "%25a" * 600, None),
        ("GET", "/api/dlq?q=body." + "a." * 30 + "b:1", None),
        ("POST", "/api/dlq/replay", {"ids": list(range(1, 10_002))}),
        ("POST", "/api/dlq/purge", {"ids": list(range(1, 10_002))}),
        ("POST", "/api/outbox/cancel", {"ids": list(range(1, 10_002))}),
        ("POST", "/replay", {"messageIds": [str(n) for n in range(10_000)]}),
        ("POST", "/api/dlq/replay-all", {"all": True, "rate": 1e9}),
        ("POST", "/api/dlq/1/replay", {"wait": 1e9}),
    ],
)
def test_what_would_cost_too_much_costs_no_statement(sqlite, method, path, given):
    """F-K09: refused before the database hears of it."""

    async def body(api, caller):
        done(await caller.get("/api/dlq"))
        statements = []
        event.listen(
            api.world.engine.sync_engine,
            "before_cursor_execute",
            lambda _c, _cursor, sql, *_: statements.append(sql),
        )
        problem(await caller.request(method, path, json=given), 422)
        assert statements == []

    run_api(sqlite, body)


def test_the_words_of_a_filter_are_no_patterns(sqlite):
    """F-K09: a hundred words that would be slow as patterns: a few statements over each letter."""

    async def body(api, caller):
        await api.world.plant_many(300, error_message="a" * 5000)
        counted = []
        event.listen(
            api.world.engine.sync_engine,
            "before_cursor_execute",
            lambda _c, _cursor, sql, *_: counted.append(sql),
        )
        done(await caller.get("/api/dlq"))
        counted.clear()
        words = " ".join(f'error:"{"(a+)+" * 12}{n}$"' for n in range(100))
        page = done(await caller.get("/api/dlq", params={"q": words}))
        assert page["total"] == 0
        assert len(counted) < 20

    run_api(sqlite, body)


SECRETS = {
    "authorization": "Bearer tok-aaaa1111",
    "password": "pw-bbbb2222",
    "apiToken": "at-cccc3333",
    "card_number": "4111 1111 1111 1111",
    "note": "ghp_dddd4444eeee5555ffff6666",
}
CLEAR = ("tok-aaaa1111", "pw-bbbb2222", "at-cccc3333", "4111 1111", "ghp_dddd4444eeee")


def test_five_secrets_are_seen_nowhere_and_stay_as_they_were(database, monkeypatch, capsys, caplog):
    """F-K11: in body, headers and error: command line, REST, logs, metrics, exports; no bytes
    of the database change.
    """
    payload = json.dumps(SECRETS).encode()
    headers = dict(SECRETS)
    caplog.set_level("DEBUG", "outlast")

    async def fails(delivery):
        raise ValueError(f"cannot take {json.loads(delivery.payload)!r}, {delivery.headers!r}")

    async def body(api, caller):
        world = api.world
        await world.add("q", payload=payload, headers=headers)
        async with engine_over(world.store, ("h", "q", fails, FAST)):

            async def died():
                return await world.letters()

            await until(died)
        (before,) = await world.letters()
        assert all(clear in before["error_message"] for clear in CLEAR)
        shown = {"log": caplog.text}
        gets = [path for method, path in NEEDS if method == "GET"]
        for path in (*gets, "/api/dlq/export?as=csv", "/api/dlq/export?as=pytest"):
            answer = await caller.get(path.format(dlq_id=before["id"], row_id=1))
            assert answer.status_code in {200, 404}, path
            shown[path] = answer.text
        async with api.as_("inspect") as reader:
            asked = {"reveal": True}
            problem(await reader.post(f"/api/dlq/id/{before['id']}/inspect", json=asked), 403)
        for where, said in shown.items():
            for clear in CLEAR:
                assert clear not in said, (where, clear)
        assert "•••" in shown["/api/dlq/{dlq_id}"]
        revealed = await caller.post(f"/api/dlq/id/{before['id']}/inspect", json=asked)
        assert all(clear in revealed.text for clear in CLEAR)
        (after,) = await world.letters()
        assert after == before
        assert bytes(after["payload"]) == payload
        assert after["headers"] == headers

    run_api(database, body)


def test_the_command_line_shows_none_of_five_secrets(command, tmp_path):
    """F-K11: every verb that looks, as text and as a document, and every kind of export."""
    said = f"refused {SECRETS!r}"
    (letter,) = command.plant(
        payload=json.dumps(SECRETS).encode(),
        headers=dict(SECRETS),
        error_message=said,
        stack_trace=f"Traceback\n{said}",
        last_exception=said,
    )
    before = command.rows(command.dlq)
    looks = [["list", "--wide"], ["inspect", letter], ["groups"], ["stats"], ["history", letter]]
    looks += [[*look, "--json"] for look in looks]
    looks += [["export", "--as", kind] for kind in ("json", "jsonl", "csv", "pytest")]
    for look in looks:
        ended = command.run("dlq", *look)
        assert ended.status == 0, ended.err
        for clear in CLEAR:
            assert clear not in ended.out + ended.err, (look, clear)
    assert command.rows(command.dlq) == before
    revealed = command.run("dlq", "inspect", letter, "--reveal").out
    assert all(clear in revealed for clear in CLEAR)


FORMULAS = (
    *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "  @x", "\n+1", "\u00a0-1"),
    *("=cmd|' /C calc'!A0", '";=1;"', "a,=1", "a;=1", 'a"\n=1', "'=1", "\uff1d1", "\x00=1"),
)


def test_no_cell_of_an_export_is_a_formula_or_makes_another(command, tmp_path):
    """F-K12: in every text of a letter, in a file; quotes and delimiters stay in their cell."""
    for formula in FORMULAS:
        stored = formula.replace("\x00", "")
        command.plant(
            queue=stored,
            subscriber=stored,
            error_type=stored,
            error_message=stored,
            owner=stored,
            message_id=stored,
            payload=formula.encode(),
            headers={stored: stored},
        )
    path = tmp_path / "letters.csv"
    assert command.run("dlq", "export", "--as", "csv", "--reveal", "-o", path).status == 0
    written = path.read_text("utf-8")
    for delimiter in (",", ";", "\t"):
        dangerous = [
            cell
            for row in csv.reader(io.StringIO(written, newline=""), delimiter=delimiter)
            for cell in row
            if cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))
        ]
        assert dangerous == [], delimiter
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert len(rows) == 1 + len(FORMULAS)
    assert {len(row) for row in rows} == {len(rows[0])}


def test_a_database_that_is_slow_or_read_only_is_503_and_says_so(postgres, monkeypatch):
    """F-K15: a table that somebody holds, a server that takes no writes: no wait without end."""
    monkeypatch.setattr("outlast.stores.desk.transactions.LOCK_WAIT", "200ms")

    async def body(api, caller):
        world = api.world
        letter = await world.plant()
        done(await caller.get("/api/dlq"))
        async with world.engine.connect() as dba, asyncio.timeout(20):
            await dba.execute(text("lock table outbox_dlq in access exclusive mode"))
            told = problem(await caller.get("/api/dlq"), 503)
            assert "holds a lock" in told["error"]
            told = problem(await caller.post(f"/api/dlq/{letter}/replay"), 503)
            assert "holds a lock" in told["error"]
            assert (await caller.get("/health/live")).status_code == 200
            await dba.rollback()
        given = dict(world.database.connect_args)
        given["server_settings"] |= {"default_transaction_read_only": "on"}
        engine = create_async_engine(world.database.url, connect_args=given)
        app = make_app(world.make_desk(engine), api.book, options=api.options)
        try:
            async with api.client(app, api.made["all"].secret) as one:
                assert done(await one.get("/api/dlq"))["total"] == 1
                for method, path in WRITES:
                    if NEEDS[method, path] == "inspect" or path == "/api/dlq/import":
                        continue
                    told = await sent(one, method, path)
                    assert told.status_code in {404, 503}, (path, told.text)
                    assert "Traceback" not in told.text
                told = problem(await one.post(f"/api/dlq/{letter}/replay"), 503)
                assert "read-only" in told["error"]
        finally:
            await engine.dispose()
        assert (await world.one(letter))["state"] == "open"
        assert (await caller.get("/health")).status_code == 200

    run_api(postgres, body)


PICKLE = b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."
YAML = b"!!python/object/apply:os.system ['touch /tmp/owned']\n- a: &x [1]\n  b: *x\n"


def zipped():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("../../etc/cron.d/x", "owned")
    return made.getvalue()


@pytest.mark.parametrize("content", [PICKLE, YAML, zipped()], ids=["pickle", "yaml", "zip"])
def test_what_is_no_export_is_not_imported(command, tmp_path, content):
    """F-K20: a pickle, YAML, an archive that climbs: a sentence, no letter, no file."""
    path = tmp_path / "in" / "letters.json"
    path.parent.mkdir()
    path.write_bytes(content)
    ended = command.run("dlq", "import", path)
    assert ended.status in {1, 2}
    assert ended.err
    assert "unexpected" not in ended.err
    assert command.rows(command.dlq) == []
    assert [each.name for each in path.parent.iterdir()] == ["letters.json"]


def test_a_line_of_a_gigabyte_is_refused_before_it_is_in_memory(command, tmp_path, monkeypatch):
    """F-K20: a file of holes, one line long: the sentence names the limit; memory stays flat."""
    import resource

    path = tmp_path / "letters.jsonl"
    with path.open("wb") as file:
        file.truncate(2**30)
    monkeypatch.setattr("outlast.cli.carrying.IMPORT_BYTES_MAX", 1024 * 1024)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = command.run("dlq", "import", path)
    assert (ended.status, ended.out) == (2, "")
    assert "1,048,576 bytes" in ended.err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize("content", [PICKLE, YAML, zipped()], ids=["pickle", "yaml", "zip"])
def test_what_is_no_export_is_not_taken_over_http(sqlite, content):
    """F-K20: refused with a sentence, whatever type it says it has."""

    async def body(api, caller):
        for type_ in ("application/json", "application/x-yaml", "application/zip"):
            headers = {"Content-Type": type_}
            answer = await caller.post("/api/dlq/import", content=content, headers=headers)
            assert answer.status_code in {200, 415, 422}, answer.text
            if answer.status_code == 200:
                assert answer.json()["imported"] == 0
                assert answer.json()["failed"] >= 1
        assert await api.world.letters() == []

    run_api(sqlite, body)


@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_document_stays_one_and_has_no_password(postgres, monkeypatch, capsys, way):
    """F-K19: `--json` of each way to fail, without a terminal: one document, no password."""
    command = Command(postgres, monkeypatch, capsys)
    command.plant()
    for address in (
        "postgresql://u:sesame@127.0.0.1:1/x",
        "postgresql://nobody_such:sesame@127.0.0.1:5432/test",
        "postgresql://u:sesame@[/x",
        "postgresql://u:se%zzsame@127.0.0.1:notaport/x",
        "mysql://u:sesame@127.0.0.1/x",
        "nonsense://u:sesame@h/x",
    ):
        given = ["--dsn", address] if way == "option" else []
        if not given:
            monkeypatch.setenv("OUTLAST_DSN", address)
        for verb in (["list"], ["replay", "1"], ["replay-all", "--all", "-y"], ["stats"]):
            ended = command.run("dlq", *verb, "--json", *given)
            assert ended.status == 2, (address, verb)
            assert ended.document["error"], (address, verb)
            assert "same" not in ended.out + ended.err, (address, verb, ended.err)
    for verb in (["list"], ["inspect", "1"], ["replay", "999"], ["replay-all", "--all", "-y"]):
        ended = command.run("dlq", *verb, "--json", "--dsn", command.environment["OUTLAST_DSN"])
        assert isinstance(ended.document, dict), verb


def test_slow_heads_are_given_up_and_everybody_else_is_served(sqlite, monkeypatch):
    """F-K16: twenty clients that drip a head, on new and on used connections; all are cut off."""
    monkeypatch.setattr("outlast.api.slow_heads.HEAD_SECONDS", 0.3)

    async def drips(port, begin):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            if begin:
                writer.write(begin)
                await reader.readuntil(b'{"status":"ok"}')
            while not reader.at_eof():
                writer.write(b"X")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1000), 0.05)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def body(world):
        api = Api(world)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serving = asyncio.create_task(serve(world.desk, api.book, port=port, keep_up=False))
        address = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=address) as caller, asyncio.timeout(30):
            while True:
                with contextlib.suppress(httpx.ConnectError):
                    await caller.get("/health/live")
                    break
                await asyncio.sleep(0.02)
            used = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
            slow = [asyncio.create_task(drips(port, b"")) for _ in range(20)]
            headers = {"Authorization": f"Bearer {api.made['all'].secret}"}
            assert done(await caller.get("/api/dlq", headers=headers))["total"] == 0
            await asyncio.gather(*slow, drips(port, used))
            assert done(await caller.get("/api/dlq", headers=headers))["total"] == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert await serving == 0

    run_desk(sqlite, body)


def test_a_thousand_wrong_tokens_cost_the_database_nothing(sqlite):
    """F-K16: all are refused, those beyond the slots with 429; workers share nothing with them."""

    async def body(api, caller):
        done(await caller.get("/api/dlq"))
        statements = []
        event.listen(
            api.world.engine.sync_engine,
            "before_cursor_execute",
            lambda _c, _cursor, sql, *_: statements.append(sql),
        )
        async with api.client(token="outlast_" + "x" * 43) as stranger:
            for _ in range(10):
                tries = [stranger.get("/api/dlq") for _ in range(100)]
                answers = await asyncio.gather(*tries)
                assert {answer.status_code for answer in answers} <= {401, 429}
        assert statements == []
        assert done(await caller.get("/api/dlq"))["total"] == 0

    run_api(sqlite, body)
