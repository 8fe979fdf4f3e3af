"""Requests that nobody thought of, made from the API's own description, over a real socket."""

import asyncio
import contextlib
import os
import threading

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, settings
from schemathesis.checks import (
    ignored_auth,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import content_type_conformance
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.api import make_app
from outlast.api.app import document_of
from outlast.api.serving import config_of
from outlast.ops import Desk
from tests.conftest import Database
from tests.doors.rest import Api, run_api

EXAMPLES = int(os.environ.get("EXAMPLES", "5"))
"""For each route. `make proof` asks for more, and for every boundary of every parameter, too."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    ignored_auth,
]

SLOW = {HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large}

schemathesis.serializer.alias("application/x-ndjson", "text/plain")

described = make_app(Desk(create_async_engine("sqlite+aiosqlite:///nowhere.db")))
schema = schemathesis.openapi.from_dict(document_of(described))
schema.config.phases.coverage.enabled = "EXAMPLES" in os.environ


class Listening(uvicorn.Server):
    """Tells when it listens; leaves signals alone."""

    def __init__(self, config):
        super().__init__(config)
        self.is_up = threading.Event()

    @contextlib.contextmanager
    def capture_signals(self):
        yield

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self.is_up.set()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real one, over a database with letters in every state. Its address and a token."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('api') / 'letters.db'}")
    found, up = {}, threading.Event()

    async def body(api, caller):
        for number in range(40):
            state = ("open", "needs_review", "escalated", "resolved", "discarded")[number % 5]
            await api.world.plant(state=state, message_id=f"m-{number}", subscriber="ship")
            await api.world.add("orders")
        config = config_of(api.app)
        config.port = 0
        found["server"] = listening = Listening(config)
        found["token"] = api.made["all"].secret
        serving = asyncio.create_task(listening.serve())
        await asyncio.to_thread(listening.is_up.wait)
        found["port"] = listening.servers[0].sockets[0].getsockname()[1]
        up.set()
        await serving

    thread = threading.Thread(target=run_api, args=(database, body), daemon=True)
    thread.start()
    assert up.wait(30)
    yield f"http://127.0.0.1:{found['port']}", found["token"]
    found["server"].should_exit = True
    thread.join(30)


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=SLOW)
def test_no_request_breaks_it(case, server):
    """Every status is a described one, every document has its described shape; no 5xx."""
    address, token = server
    headers = {"Authorization": f"Bearer {token}"}
    answer = case.call(base_url=address, headers=headers)
    case.validate_response(answer, checks=CHECKS, headers=headers)


def test_the_checks_can_see(sqlite):
    """An answer of another shape than the described one is found."""

    async def body(api, caller):
        operation = schema["/api/dlq/stats"]["GET"]
        good = await caller.get("/api/dlq/stats")
        operation.Case().validate_response(good, checks=[response_schema_conformance])
        async with Api(api.world).as_("all") as other:
            wrong = await other.get("/api/workers")
        with pytest.raises(FailureGroup):
            operation.Case().validate_response(wrong, checks=[response_schema_conformance])

    run_api(sqlite, body)
