"""Would a handler take this body? The answer is what FastStream's own pipeline then does."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from fast_depends.library import CustomField
from faststream import BaseMiddleware, Context, Depends, FastStream, Header, Logger
from faststream.middlewares import ExceptionMiddleware
from pydantic import BaseModel, field_validator

from outlast.faststream.body_check import body_test_of, known_of, load_app
from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.router import OutboxRouter
from outlast.model.letter_view import LetterView
from outlast.ops import BadRequest, DeskOptions
from outlast.policy.retry import NoRetry
from outlast.testing import TestOutboxBroker
from tests.doors.outbox import broker_on, tables

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}

ran = []


@pytest.fixture(autouse=True)
def nothing_ran():
    ran.clear()


class Order(BaseModel):
    id: int
    isbn: str

    @field_validator("isbn")
    @classmethod
    def whole(cls, isbn):
        if len(isbn) != 4:
            raise ValueError("not whole")
        return isbn


@dataclass
class Line:
    sku: str
    count: int = 1


def session(isbn: str = "none") -> str:
    ran.append("session")
    return isbn


def checked(id: int) -> int:  # noqa: A002
    ran.append("checked")
    return id


def of_model(body: Order):
    ran.append(body)


async def of_model_async(body: Order, logger: Logger, tenant: str = Header(default="x")):
    ran.append(body)


def of_dataclass(body: Line):
    ran.append(body)


def of_parameters(id: int, isbn: str, note: str | None = None):  # noqa: A002
    ran.append(id)


def of_list(body: list[int]):
    ran.append(body)


def of_positional(first: int, second: str):
    ran.append(first)


def of_bytes(body: bytes):
    ran.append(body)


def of_text(body: str):
    ran.append(body)


def of_number(body: int):
    ran.append(body)


def of_anything(body):
    ran.append(body)


def of_any(body: Any):
    ran.append(body)


def of_dict(body: dict[str, Any]):
    ran.append(body)


def of_nothing():
    ran.append("called")


def of_rest(**fields: Any):
    ran.append(fields)


def of_dependency(body: Order, used: Annotated[str, Depends(lambda: "s")]):
    ran.append(body)


def of_dependencies(
    isbn: str, used: Annotated[str, Depends(session)], number: Annotated[int, Depends(checked)]
):
    ran.append(isbn)


def of_context(body: Order, broker: Any = Context()):
    ran.append(body)


HANDLERS = [value for name, value in list(globals().items()) if name.startswith("of_")]

BODIES = [
    (b'{"id": 1, "isbn": "abcd"}', JSON),
    (b'{"id": "1", "isbn": "abcd", "more": [1]}', JSON),
    (b'{"id": 1, "isbn": null}', JSON),
    (b'{"id": 1, "isbn": "abc"}', JSON),
    (b'{"id": "x", "isbn": "abcd"}', JSON),
    (b'{"id": 1}', JSON),
    (b'{"sku": "a", "count": "2"}', JSON),
    (b'{"sku": "a", "count": "two"}', JSON),
    (b"[1, 2]", JSON),
    (b'[1, "abcd"]', JSON),
    (b'["x"]', JSON),
    (b"[]", JSON),
    (b"7", JSON),
    (b"null", JSON),
    (b'"text"', JSON),
    (b"{", JSON),
    (b"", JSON),
    (b"\xff", JSON),
    (b"plain", TEXT),
    (b"\xff", TEXT),
    (b"\x00\x01\xff", None),
    (b'{"id": 1, "isbn": "abcd"}', None),
    (b"7", {}),
    (b'{"id": 1, "isbn": "abcd"}', {"content-type": "application/json; charset=utf-8"}),
    (b'{"id": 1, "isbn": "abcd"}', {"content-type": 7}),
    (b"[" * 100_000, JSON),
]


def letter(payload=b"{}", headers=None, **values):
    row = {
        "id": 1,
        "original_id": 5,
        "queue": "q",
        "deliveries_count": 1,
        "created_at": NOW,
        "failed_at": NOW,
        "failure_reason": "rejected",
        "payload": payload,
        "headers": headers,
    }
    return LetterView(**row | values)


def asked(broker, body=b"{}", headers=None, queue="q"):
    """The answer; nothing of the application ran for it."""
    before = list(ran)
    answer = body_test_of(broker)(letter(body, headers), queue)
    assert ran == before, "something ran"
    return answer


def serving(handler, **options):
    broker = broker_on()
    broker.subscriber("q", retry_strategy=NoRetry(), **options)(handler)
    return broker


async def really(broker, body, headers):
    """What the pipeline does with it: whether the handler ran."""
    (subscriber,) = broker.subscribers
    async with TestOutboxBroker(broker):
        row = OutboxInnerMessage(
            id=5,
            queue="q",
            payload=body,
            headers=headers,
            attempts_count=0,
            deliveries_count=1,
            created_at=NOW,
            next_attempt_at=NOW,
            first_attempt_at=None,
            last_attempt_at=None,
            acquired_at=None,
            acquired_token=None,
        )
        try:
            await subscriber.process_message(row)
        except Exception:
            return "refused"
        return "accepted"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.__name__)
def test_the_answer_is_what_the_pipeline_does(handler):
    """Models, dataclasses, plain annotations, bytes, texts: each body as FastStream takes it."""
    broker = serving(handler)
    answers = {}
    for number, (body, headers) in enumerate(BODIES):
        answers[number] = asked(broker, body, headers)
    truth = {
        number: asyncio.run(really(broker, body, headers))
        for number, (body, headers) in enumerate(BODIES)
    }
    assert not [
        (BODIES[number][0][:40], BODIES[number][1], answers[number], told)
        for number, told in truth.items()
        if answers[number] != told
    ]
    assert {"accepted", "refused"} == set(answers.values())


def test_a_null_where_a_text_belongs_is_refused():
    """S2-17, S4-109: today's model refuses the body that failed, and takes the mended one."""
    broker = serving(of_model)
    assert asked(broker, b'{"id": 1, "isbn": null}', JSON) == "refused"
    assert asked(broker, b'{"id": 1, "isbn": "abcd"}', JSON) == "accepted"


def test_only_what_the_dependencies_themselves_take_is_asked():
    """A dependency's own parameters are part of the body; its result is not known."""
    broker = serving(of_dependencies)
    assert asked(broker, b'{"isbn": "a", "id": 1}', JSON) == "accepted"
    assert asked(broker, b'{"isbn": "a", "id": "x"}', JSON) == "refused"
    assert asked(broker, b'{"isbn": "a"}', JSON) == "refused"
    broker = serving(of_model, dependencies=[Depends(checked)])
    assert asked(broker, b'{"body": {"id": 1, "isbn": "abcd"}, "id": 1}', JSON) == "accepted"
    assert asked(broker, b'{"body": {"id": 1, "isbn": "abcd"}, "id": "x"}', JSON) == "refused"


class Custom(CustomField):
    def use(self, /, **kwargs):
        ran.append("field")
        kwargs["body"] = {"id": 1, "isbn": "abcd"}
        return kwargs


def with_custom_field(body: Order, other: Any = Custom()):
    ran.append(body)


async def custom_parser(row):
    ran.append("parser")
    raise ValueError


async def custom_decoder(message):
    ran.append("decoder")
    raise ValueError


class Unpacking(BaseMiddleware):
    async def consume_scope(self, call_next, msg):
        ran.append("middleware")
        msg.body = b'{"id": 1, "isbn": "abcd"}'
        return await call_next(msg)


class Counting(BaseMiddleware):
    async def after_processed(self, exc_type=None, exc_val=None, exc_tb=None):
        ran.append("middleware")
        return await super().after_processed(exc_type, exc_val, exc_tb)


def made_by_a_function(msg, *, context):
    return Unpacking(msg, context=context)


def picky(message):
    ran.append("filter")
    return True


class Raising(BaseModel):
    id: int

    @field_validator("id")
    @classmethod
    def looked_up(cls, id):  # noqa: A002
        raise OSError("no such table")


def of_raising(body: Raising):
    ran.append(body)


OF_MODEL = {
    "custom parser": lambda: serving(of_model, parser=custom_parser),
    "custom decoder": lambda: serving(of_model, decoder=custom_decoder),
    "custom field": lambda: serving(with_custom_field),
    "no FastDepends, spread": lambda: with_broker(of_parameters, apply_types=False),
    "no serializer, spread": lambda: with_broker(of_parameters, serializer=None),
    "parser of the broker": lambda: with_broker(of_model, parser=custom_parser),
    "a middleware that unpacks": lambda: with_broker(of_model, middlewares=[Unpacking]),
    "a middleware from a function": lambda: with_broker(of_model, middlewares=[made_by_a_function]),
    "a validator that asks elsewhere": lambda: serving(of_raising),
}


def with_broker(handler, **options):
    broker = broker_on(**options)
    broker.subscriber("q")(handler)
    return broker


@pytest.mark.parametrize("make", OF_MODEL.values(), ids=OF_MODEL)
@pytest.mark.parametrize("body", [b'{"id": 1, "isbn": "abcd"}', b'{"id": "x"}'])
def test_what_depends_on_code_that_must_not_run_is_unknown(make, body):
    if make is OF_MODEL["a validator that asks elsewhere"]:
        body = b'{"id": 1}'
    assert asked(make(), body, JSON) == "unknown"


@pytest.mark.parametrize(
    "options",
    [
        {"apply_types": False},
        {"serializer": None},
        {"middlewares": [Counting]},
        {"middlewares": [ExceptionMiddleware()]},
    ],
    ids=["types", "serializer", "own middleware", "exceptions"],
)
def test_what_changes_no_message_is_no_obstacle(options):
    assert asked(with_broker(of_any, **options), b"{}", JSON) == "accepted"
    assert asked(with_broker(of_any, **options), b"{", JSON) == "refused"


def test_several_handlers_must_agree():
    def build(*steps):
        broker = broker_on()
        subscriber = broker.subscriber("q")
        for handler, options in steps:
            subscriber(handler, **options)
        return broker

    good, odd = b'{"id": 1, "isbn": "abcd"}', b'{"sku": "a"}'
    first_by_filter = build((of_dataclass, {"filter": picky}), (of_model, {}))
    assert asked(first_by_filter, good, JSON) == "unknown"
    assert asked(first_by_filter, b"[1]", JSON) == "refused"
    behind_the_default = build((of_model, {}), (of_dataclass, {}))
    assert asked(behind_the_default, odd, JSON) == "refused"


@pytest.mark.filterwarnings("ignore:Duplicate subscriber")
def test_several_subscribers_of_a_queue_must_agree():
    broker = serving(of_model)
    broker.subscriber("q")(of_dict)
    assert asked(broker, b'{"id": 1, "isbn": "abcd"}', JSON) == "accepted"
    assert asked(broker, b'{"id": 1}', JSON) == "unknown"
    assert asked(broker, b"7", JSON) == "refused"


def test_a_queue_that_nobody_serves_or_a_body_that_is_not_there_is_unknown():
    broker = serving(of_model)
    assert asked(broker, b"{}", JSON, queue="other") == "unknown"
    assert asked(broker, None, JSON) == "unknown"
    assert asked(broker_on(), b"{}", JSON) == "unknown"


def test_an_application_that_cannot_be_built_is_unknown_and_asked_once(monkeypatch):
    broker = serving(of_model)
    (subscriber,) = broker.subscribers
    built = []

    def broken():
        built.append(1)
        raise RuntimeError("no")

    monkeypatch.setattr(subscriber, "_build_fastdepends_model", broken)
    test = body_test_of(broker)
    assert [test(letter(b"{}", JSON), "q") for _ in range(3)] == ["unknown"] * 3
    assert built == [1]


def test_a_broker_that_runs_is_not_rebuilt(sqlite):
    """A server inside the application asks the models that the broker made at its start."""

    async def body(engine):
        broker = broker_on(engine)
        broker.subscriber("q")(of_model)
        async with engine.begin() as connection:
            config = broker.config.broker_config
            await connection.run_sync(config.outbox_table.metadata.create_all)
        async with broker:
            (subscriber,) = broker.subscribers
            (call,) = subscriber.calls
            wrapped = call.handler._wrapped_call
            assert asked(broker, b'{"id": "x"}', JSON) == "refused"
            assert call.handler._wrapped_call is wrapped

    sqlite.run(body)


def test_routers_and_applications_are_asked_through_their_brokers():
    good, bad = b'{"id": 1, "isbn": "abcd"}', b'{"id": 1}'
    router = OutboxRouter()
    router.subscriber("q")(of_model)
    assert asked(router, good, JSON) == "accepted"
    assert asked(router, bad, JSON) == "refused"
    broker = broker_on()
    broker.include_router(router)
    for app in (broker, FastStream(broker)):
        assert asked(app, good, JSON) == "accepted"
        assert asked(app, bad, JSON) == "refused"


def test_a_fastapi_router_is_known_and_its_models_are_not():
    from outlast.fastapi import OutboxRouter as FastAPIRouter

    router = FastAPIRouter(**tables(), logger=None)
    router.subscriber("q")(of_model)
    assert known_of(router).queues == {"q"}
    assert asked(router, b'{"id": 1}', JSON) == "unknown"


def test_what_an_application_knows():
    """Design 3.2: `--app` makes a queue or a subscriber known, by the names that are recorded."""
    broker = broker_on()
    broker.subscriber(["orders", "mail"])(of_model)
    broker.subscriber("late", title_="Late")(of_dict)
    known = known_of(FastStream(broker))
    assert known.queues == {"orders", "mail", "late"}
    assert known.subscribers == {s.specification.call_name for s in broker.subscribers}
    assert len(known.subscribers) == 2
    assert known_of(broker_on()) == (frozenset(), frozenset())


def test_it_fits_the_options_of_a_desk():
    options = DeskOptions(body_test=body_test_of(serving(of_model)))
    assert options.body_test(letter(b'{"id": 1}', JSON), "q") == "refused"


# -- by name

APPLICATION = """
from sqlalchemy import MetaData
from faststream import FastStream
from outlast import OutboxBroker, make_outbox_table

print("noise on stdout")
broker = OutboxBroker(outbox_table=make_outbox_table(MetaData()))
app = FastStream(broker)
empty = FastStream()
number = 7


class Holder:
    inner = broker


@broker.subscriber("orders")
async def handle(id: int) -> None:
    raise SystemError("ran")
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with applications, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "shop_a.py").write_text(APPLICATION)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("shop_"):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["shop_a:broker", "shop_a:app", "shop_a:Holder.inner"])
def test_an_application_is_found_in_the_current_folder(shop, capfd, name):
    found = load_app(name)
    assert known_of(found).queues == {"orders"}
    assert body_test_of(found)(letter(b'{"id": "x"}', JSON), "orders") == "refused"
    told = capfd.readouterr()
    assert told.out == ""
    assert "noise" in told.err


@pytest.mark.parametrize(
    ("name", "said", "remedy"),
    [
        ("shop_a", "shop_a names no application", "module:attribute"),
        ("shop_a:", "shop_a: names no application", "module:attribute"),
        ("shop_a.py:app:x", "shop_a.py:app:x names no application", "module:attribute"),
        ("../shop:app", "../shop:app names no application", "module:attribute"),
        ("a\x1b[2J:b", "a\\x1b[2J:b names no application", "module:attribute"),
        ("shop_z:app", "there is no module shop_z", "from the folder it is in"),
        ("shop_a.py:app", "there is no module shop_a.py", "from the folder it is in"),
        ("shop_a:brocker", "module shop_a has no brocker", "did you mean shop_a:broker?"),
        ("shop_a:zzz", "module shop_a has no zzz", "there is shop_a:broker, shop_a:app"),
        ("shop_a:number", "is a int without an OutboxBroker", "there is shop_a:broker"),
        ("shop_a:empty", "is a FastStream without an OutboxBroker", "there is shop_a:broker"),
        ("json:dumps", "is a function without an OutboxBroker", "name a FastStream application"),
    ],
)
def test_a_name_that_is_wrong_is_a_sentence_with_the_next_step(shop, name, said, remedy):
    with pytest.raises(BadRequest) as refused:
        load_app(name)
    assert said in str(refused.value)
    assert remedy in refused.value.remedy
    assert refused.value.__cause__ is None
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import shop_missing_package", "ModuleNotFoundError: No module named 'shop_missing_pack"),
        ("raise RuntimeError('one\\ntwo\\x1b[2J')", "RuntimeError: one two\\x1b[2J"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise ValueError", "importing shop_b failed: ValueError"),
        ("def", "SyntaxError: invalid syntax"),
        ("raise OSError('cannot reach postgres://ann:hunter2@db/shop')", "postgres://•••@db"),
        ("raise ValueError('x' * 10_000)", "…"),
    ],
)
def test_an_import_that_fails_is_one_line_without_secrets(shop, source, said):
    (shop / "shop_b.py").write_text(source)
    with pytest.raises(BadRequest) as refused:
        load_app("shop_b:app")
    told = str(refused.value)
    assert told.startswith("importing shop_b failed: ")
    assert said in told
    assert "hunter2" not in told
    assert told.isprintable()
    assert len(told) < 400


def test_loading_starts_nothing(shop):
    """In a process of its own: a name in, an answer out, no loop and no connection."""
    program = (
        "import json, sys\n"
        "from outlast.faststream.body_check import known_of, load_app\n"
        "print(json.dumps(sorted(known_of(load_app('shop_a:app')).queues)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == ["orders"]
