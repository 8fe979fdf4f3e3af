"""The API in this process, over a real database: callers with tokens, and a world to plant in."""

import contextlib

import httpx

from outlast.api import ApiOptions, make_app
from outlast.ops.tokens import TokenBook, new_token
from tests.contract.desks import run_desk

HOST = "127.0.0.1:8787"
ALL = ("inspect", "reveal", "replay", "edit", "discard", "admin")

OPTIONS = {"health_seconds": 0.0}


class Api:
    """`as_(*scopes)` is a caller with a token of these scopes, `nobody` one without a token."""

    def __init__(self, world, **options):
        self.world = world
        self.made = {}
        names = [("all", ALL), *((scope, (scope,)) for scope in ALL)]
        for name, scopes in names:
            self.made[name] = new_token(name, scopes)
        self.book = TokenBook.parse([token.line for token in self.made.values()])
        self.options = ApiOptions(**OPTIONS | options)
        self.app = make_app(world.desk, self.book, options=self.options)

    def client(self, app=None, token=None, base="", **headers):
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        transport = httpx.ASGITransport(app or self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(
            transport=transport, base_url=f"http://{HOST}{base}", headers=headers
        )

    @contextlib.asynccontextmanager
    async def as_(self, name="all", **given):
        async with self.client(token=self.made[name].secret, **given) as caller:
            yield caller

    @property
    def nobody(self):
        return self.client()


def run_api(database, body, *, beside=True, options=None, **desk):
    """`body(api, caller)`: the caller may do everything."""

    async def with_api(world):
        api = Api(world, **(options or {}))
        async with api.as_("all") as caller:
            await body(api, caller)

    run_desk(database, with_api, beside=beside, **desk)


def problem(answer, status):
    """The document of a refusal, which has its one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["error"]
    assert "Traceback" not in answer.text
    return document


def done(answer):
    """The document of a success."""
    assert answer.status_code == 200, answer.text
    return answer.json()
