"""Events as log lines: level, extra keys, escaping, and a bound on storms."""

import logging

import pytest

from outlast.model import events
from outlast.observe.logs import LINES_MAX, WINDOW_SECONDS, LogRecorder, escaped

ROW = {"queue": "orders", "subscriber": "handle", "deliveries_count": 2}


class Log:
    def __init__(self):
        self.lines = []

    def log(self, level, msg, /, *, exc_info=None, extra=None):
        self.lines.append((level, msg, extra))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_lost_lease_is_a_warning_with_its_facts_as_extra(caplog):
    logger = logging.getLogger("test_observe.lease_lost")
    tags = {**ROW, "phase": "terminal", "row_id": 7}
    with caplog.at_level(logging.DEBUG, logger.name):
        LogRecorder(logger)(events.LEASE_LOST, tags)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "lease lost" in record.getMessage()
    facts = (record.event, record.phase, record.row_id, record.queue, record.deliveries_count)
    assert facts == ("lease_lost", "terminal", 7, "orders", 2)


@pytest.mark.parametrize(
    ("event", "level", "tags"),
    [
        (events.DLQ_WRITE_FAILED, logging.DEBUG, {**ROW, "failure_reason": "rejected"}),
        (events.SETTLE_UNKNOWN, logging.WARNING, {**ROW, "phase": "retry"}),
        (events.UNSETTLED, logging.WARNING, ROW),
        (events.DISPATCH_ABANDONED, logging.WARNING, {**ROW, "duration_seconds": 1.0}),
        (events.DRAIN_TIMEOUT, logging.DEBUG, {**ROW, "drain_timeout_seconds": 15.0}),
        (events.NACKED_TERMINAL, logging.INFO, {**ROW, "reason": "retry_terminal"}),
        (events.NACKED_TERMINAL, logging.WARNING, {**ROW, "reason": "max_deliveries"}),
        (events.RELEASED, logging.DEBUG, ROW),
    ],
)
def test_level_of_each_logged_event(event, level, tags):
    log = Log()
    LogRecorder(log)(event, tags)
    ((written, text, extra),) = log.lines
    assert written == level
    assert extra == {"event": event, **tags}
    assert all(f"{key}={value}" in text for key, value in tags.items())


@pytest.mark.parametrize(
    "event",
    [
        events.FETCHED,
        events.DISPATCHED,
        events.ACKED,
        events.NACKED_RETRIED,
        events.DLQ_WRITTEN,
        events.PUBLISHED,
    ],
)
def test_the_common_events_are_not_logged(event):
    log = Log()
    LogRecorder(log)(event, ROW)
    assert log.lines == []


def test_every_word_of_the_vocabulary_is_accepted():
    log = Log()
    recorder = LogRecorder(log)
    for event in events.VOCABULARY.values():
        recorder(event.name, dict.fromkeys((*event.tags, *event.sometimes), "x"))
    assert len(log.lines) == 8


@pytest.mark.parametrize("hostile", ["a\nb", "a\r\x1b[31mb", "a\x00b", "a\u2028b", "a\u202eb"])
def test_control_characters_of_a_queue_name_stay_on_one_line(hostile):
    """F-K13: the log of a worker."""
    log = Log()
    LogRecorder(log)(events.UNSETTLED, {**ROW, "queue": hostile})
    ((_, text, extra),) = log.lines
    assert text.isprintable()
    assert extra["queue"].isprintable()
    assert "\\" in extra["queue"]


def test_escaping_leaves_ordinary_text_alone():
    assert escaped("größe 東京 ok") == "größe 東京 ok"
    assert escaped("a\nb\ud800") == "a\\nb\\ud800"


def test_a_storm_is_cut_and_counted():
    log, clock = Log(), Clock()
    recorder = LogRecorder(log, clock=clock)
    for _ in range(1000):
        recorder(events.LEASE_LOST, ROW)
    assert len(log.lines) == LINES_MAX
    recorder(events.LEASE_LOST, {**ROW, "queue": "quiet"})
    assert len(log.lines) == LINES_MAX + 1
    clock.now += WINDOW_SECONDS
    recorder(events.LEASE_LOST, ROW)
    level, text, extra = log.lines[LINES_MAX + 1]
    assert level == logging.WARNING
    assert f"{1000 - LINES_MAX} more lease_lost" in text
    assert extra == {"event": "lease_lost", "queue": "orders", "omitted": 1000 - LINES_MAX}
    assert len(log.lines) == LINES_MAX + 3


def test_a_storm_over_many_queues_keeps_its_memory_bounded():
    log = Log()
    recorder = LogRecorder(log, clock=Clock())
    for number in range(5000):
        recorder(events.UNSETTLED, {**ROW, "queue": f"queue-{number}"})
    assert len(log.lines) == 1000 + LINES_MAX
