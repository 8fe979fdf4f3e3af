"""What a publish refuses, and what it makes of headers and bodies; without a database."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from unittest import mock

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from outlast.policy.header_values import HEADERS_BYTES_MAX
from outlast.publish import plan as plan_module
from outlast.publish.arguments import (
    check_arguments,
    check_limit,
    check_one_body,
    check_timer,
)
from outlast.publish.envelope import envelope
from outlast.publish.plan import BODY_BYTES_MAX, Plan, Row, batch_rows, naming_place

SESSION = mock.create_autospec(AsyncSession, instance=True)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def check(**changes):
    check_arguments("OutboxPublishCommand", **{"queue": "q", "session": SESSION} | changes)


def test_good_arguments_pass():
    for good in (
        {},
        {"session": mock.create_autospec(AsyncConnection, instance=True)},
        {"queue": "ü" * 255, "timer_id": "t" * 255, "timer_conflict": "extend"},
        {"activate_in": timedelta(seconds=-1)},
        {"activate_at": AT.astimezone(timezone(timedelta(hours=5)))},
        {"session": None, "session_optional": True},
    ):
        check(**good)


# each case spoils everything that is checked later, so it also proves the order
LADDER = [
    (
        {"activate_in": timedelta(1), "activate_at": AT},
        ValueError,
        "OutboxPublishCommand accepts at most one of activate_in / activate_at",
    ),
    (
        {"activate_in": None, "activate_at": datetime(2026, 1, 1)},
        ValueError,
        "OutboxPublishCommand requires activate_at to be timezone-aware",
    ),
    ({"activate_at": None, "session": object()}, TypeError, "AsyncSession"),
    ({"session": SESSION, "queue": 7}, TypeError, "queue must be a str"),
    ({"queue": ""}, ValueError, "non-empty"),
    ({"queue": "q" * 256}, ValueError, "queue .*255"),
    ({"queue": "q", "timer_id": "t" * 256}, ValueError, "timer_id .*255"),
    ({"timer_id": None, "timer_conflict": "replace"}, ValueError, "timer_conflict must be one of"),
    ({"timer_conflict": "extend"}, ValueError, "needs a timer_id"),
]


def test_refusals_in_their_order():
    state = {
        "activate_in": timedelta(1),
        "activate_at": datetime(2026, 1, 1),
        "session": object(),
        "queue": 7,
        "timer_id": "t" * 256,
        "timer_conflict": "replace",
    }
    for change, error, text in LADDER:
        state |= change
        with pytest.raises(error, match=text):
            check(**state)


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        ({"activate_in": 5}, TypeError, "activate_in to be a timedelta, got 5"),
        ({"activate_in": timedelta.max}, ValueError, "activate_in must be within 36525 days"),
        ({"activate_at": "2026-01-01"}, TypeError, "activate_at to be a datetime"),
        ({"activate_at": AT.date()}, TypeError, "activate_at to be a datetime"),
        ({"activate_at": datetime.max.replace(tzinfo=UTC)}, ValueError, "years 2 to 9998"),
        (
            {"activate_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=3)))},
            ValueError,
            "years 2 to 9998",
        ),
        ({"queue": "a\x00b"}, ValueError, "queue must not contain a NUL"),
        ({"queue": "a\ud800"}, ValueError, "queue must not contain a lone surrogate"),
        ({"timer_id": 5}, TypeError, "timer_id must be a str"),
        ({"timer_id": "\x00"}, ValueError, "timer_id must not contain a NUL"),
        ({"timer_conflict": None}, ValueError, "timer_conflict must be one of"),
        ({"session": None}, TypeError, "AsyncSession"),
        ({"session": Session()}, TypeError, "AsyncSession"),
        ({"session": "x", "session_optional": True}, TypeError, "AsyncSession"),
    ],
)
def test_other_refusals(bad, error, text):
    """F-A11: naive and impossible times are refused."""
    with pytest.raises(error, match=text):
        check(**bad)


def test_small_checks():
    with pytest.raises(ValueError, match="limit must be >= 1, got 0"):
        check_limit(0)
    with pytest.raises(TypeError, match="limit must be an int"):
        check_limit(True)
    with pytest.raises(TypeError, match="timer_id"):
        check_timer("q", None)
    check_one_body(1, timer_id="t", correlation_id="c")
    check_one_body(2, timer_id=None, correlation_id=None)
    with pytest.raises(ValueError, match=r"correlation_id .*batch of 2"):
        check_one_body(2, timer_id=None, correlation_id="c")


def wrap(headers=None, **kw):
    kw = {"content_type": None, "correlation_id": None, "new_correlation_id": lambda: "new"} | kw
    return envelope(headers, **kw)


def test_envelope():
    assert wrap() == {"correlation_id": "new"}
    assert wrap({"a": 1}, content_type="text/plain", correlation_id="c") == {
        "a": 1,
        "content-type": "text/plain",
        "correlation_id": "c",
    }
    assert wrap({"correlation_id": "h"})["correlation_id"] == "h"
    assert wrap({"correlation_id": "h"}, correlation_id="h")["correlation_id"] == "h"
    assert wrap({"content-type": "image/png"})["content-type"] == "image/png"
    marked = wrap(message_id="m", event_type="e")
    assert marked["outlast-message-id"] == "m"
    assert marked["outlast-event-type"] == "e"


def test_envelope_does_not_change_the_callers_dict():
    given = {"a": [1]}
    wrapped = wrap(given)
    wrapped["a"].append(2)
    assert given == {"a": [1]}


NAN = float("nan")


@pytest.mark.parametrize(
    ("headers", "kw", "error", "text"),
    [
        ({"content-type": "a/b"}, {"content_type": "text/plain"}, ValueError, "content-type"),
        ({"correlation_id": "a"}, {"correlation_id": "b"}, ValueError, "correlation_id"),
        (None, {"correlation_id": 5}, TypeError, "correlation_id must be a str"),
        (None, {"correlation_id": "a\x00"}, ValueError, "correlation_id contains a NUL"),
        ({"outlast-x": 1}, {}, ValueError, "'outlast-x' is reserved"),
        ({"Outlast-Replay": 1}, {}, ValueError, "'Outlast-Replay' is reserved"),
        ({5: 1}, {}, TypeError, "header names must be str, got 5"),
        ([("a", 1)], {}, TypeError, "headers must be a mapping"),
        ({"a\x00": 1}, {}, ValueError, "NUL"),
        ({"a\udfff": 1}, {}, ValueError, "lone surrogate"),
        ({"a": "x\x00"}, {}, ValueError, "'a' contains a NUL"),
        ({"a": ["\ud800"]}, {}, ValueError, "'a' contains the lone surrogate"),
        ({"a": {"\x00": 1}}, {}, ValueError, "'a', key .* contains a NUL"),
        ({"a": NAN}, {}, ValueError, "'a' is nan"),
        ({"a": [{"b": float("inf")}]}, {}, ValueError, "'a' is inf"),
        ({"a": b"x"}, {}, TypeError, "'a' has a value of type bytes"),
        ({"a": AT}, {}, TypeError, "'a' has a value of type datetime"),
        ({"a": Decimal(1)}, {}, TypeError, "'a' has a value of type Decimal"),
        ({"a": {1: 2}}, {}, TypeError, "'a' has the key 1"),
        ({"a": (1,)}, {}, TypeError, "'a' has a value of type tuple"),
        ({"a": 10**5000}, {}, ValueError, "'a' is an int of too many digits"),
        ({"a": "x" * HEADERS_BYTES_MAX}, {}, ValueError, "largest is 'a'"),
        (None, {"message_id": ""}, ValueError, "message_id must be non-empty"),
        (None, {"message_id": "m" * 256}, ValueError, "message_id .*255"),
        (None, {"event_type": 5}, TypeError, "event_type must be a str"),
        (None, {"event_type": "\ud800"}, ValueError, "event_type contains the lone surrogate"),
    ],
)
def test_envelope_refuses(headers, kw, error, text):
    """F-F04, F-F06: kept as it is, or refused naming the key."""
    with pytest.raises(error, match=text):
        wrap(headers, **kw)


def test_nesting_ends_somewhere():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="'a' is nested deeper than 64"):
        wrap({"a": deep})


def test_what_passes_comes_back_from_json():
    """F-F06"""
    given = {
        "s": "ü🎈",
        "i": 2**70,
        "f": 1.5,
        "t": True,
        "n": None,
        "l": [1, [None]],
        "d": {"": {}},
    }
    wrapped = wrap(given)
    back = json.loads(json.dumps(wrapped))
    assert back == wrapped == given | {"correlation_id": "new"}
    assert {k: type(v) for k, v in back.items()} == {k: type(v) for k, v in wrapped.items()}


def test_bodies():
    """F-F03, F-F05"""
    is_json = {"content-type": "application/json"}
    Row(b"", None)
    Row(b'"NaN and Infinity in a text"', is_json)
    Row(b"[NaN]", {"content-type": "text/plain"})
    Row(b"{NaN", is_json)
    for body, name in ((b"[NaN]", "NaN"), (b'{"a":-Infinity}', "-Infinity")):
        with pytest.raises(ValueError, match=f"contains {name}, which is not JSON"):
            Row(body, is_json)
    with pytest.raises(TypeError, match="must be bytes, got str"):
        Row("x", None)


def test_body_limit(monkeypatch):
    """F-F05: the limit is 64 MiB, counted in bytes."""
    assert BODY_BYTES_MAX == 64 * 1024 * 1024
    monkeypatch.setattr(plan_module, "BODY_BYTES_MAX", 10)
    Row(b"x" * 10, None)
    with pytest.raises(ValueError, match="has 11 bytes and may have 10"):
        Row(b"x" * 11, None)


def test_a_plan_is_frozen():
    plan = Plan(queue="q", rows=batch_rows([(b"ab", None), (b"c", None)]))
    assert plan.size_bytes == 3
    with pytest.raises(AttributeError):
        plan.queue = "other"


def test_a_batch_names_the_message():
    """F-A07: the error names the index."""

    def bodies():
        for n in range(5000):
            yield b"x", wrap({"n": n if n != 2500 else NAN})

    with pytest.raises(ValueError, match=r"message 2500 of the batch .*'n' is nan"):
        batch_rows(bodies())
    with pytest.raises(TypeError, match=r"message 1 of the batch .*must be bytes"):
        batch_rows([(b"", None), (None, None)])
    assert batch_rows(iter([])) == ()
    with pytest.raises(ValueError, match="message 3"), naming_place(3):
        raise json.JSONDecodeError("x", "y", 0)
