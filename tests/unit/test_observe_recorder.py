"""Recorders that misbehave change nothing; joined ones are called in order."""

import asyncio
import logging

import pytest

from outlast.observe.recorder import guarded, joined, silent


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), Unprintable(), asyncio.CancelledError()], ids=type
)
def test_what_a_recorder_raises_is_swallowed_and_told_at_debug(caplog, error):
    def recorder(name, tags):
        raise error

    logger = logging.getLogger("test_observe.guarded")
    with caplog.at_level(logging.DEBUG, logger.name):
        guarded(recorder, logger)("acked", {"queue": "orders"})
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "metrics recorder raised" in record.getMessage()
    assert record.event == "acked"
    assert record.exc_info[1] is error


def test_a_logger_that_raises_is_swallowed_too():
    class Broken:
        def log(self, level, msg, /, *, exc_info=None, extra=None):
            raise RuntimeError("not set")

    def recorder(name, tags):
        raise ValueError(name)

    guarded(recorder, Broken())("acked", {})


def test_a_recorder_may_stop_the_process():
    def recorder(name, tags):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(recorder)("acked", {})


def test_a_recorder_hears_the_event_as_it_was_told():
    heard = []
    tags = {"queue": "orders", "count": 3}
    guarded(lambda *event: heard.append(event))("fetched", tags)
    assert heard == [("fetched", tags)]


def test_no_recorder_is_the_silent_one():
    assert guarded(None) is silent
    assert joined() is silent
    assert joined(silent, silent) is silent


def test_joined_recorders_are_called_in_order_and_one_alone_is_not_wrapped():
    heard = []

    def first(name, tags):
        heard.append(("first", name))

    def second(name, tags):
        heard.append(("second", name))

    assert joined(silent, first) is first
    joined(first, second)("acked", {})
    assert heard == [("first", "acked"), ("second", "acked")]


def test_a_guarded_recorder_that_raises_does_not_hide_the_next():
    heard = []

    def broken(name, tags):
        raise RuntimeError

    joined(guarded(broken), lambda name, _: heard.append(name))("acked", {})
    assert heard == ["acked"]
