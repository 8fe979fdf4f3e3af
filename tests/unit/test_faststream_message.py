"""The row in a handler's hand: it records what was decided, once, and until it is closed."""

import logging
from datetime import UTC, datetime
from unittest import mock
from uuid import uuid4

import pytest

from outlast import ConstantRetry, NoRetry
from outlast.message import Ack, OutboxInnerMessage, Retry, Terminal

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_row(**options):
    given = {
        "id": 7,
        "queue": "q",
        "payload": b"{}",
        "headers": None,
        "attempts_count": 0,
        "deliveries_count": 1,
        "created_at": NOW,
        "next_attempt_at": NOW,
        "first_attempt_at": None,
        "last_attempt_at": None,
        "acquired_at": NOW,
        "acquired_token": uuid4(),
    }
    return OutboxInnerMessage(**given | options)


def test_nothing_decided():
    row = a_row()
    assert (row.outcome, row.state_set) == (None, False)
    assert (row.terminal_failure_reason, row.pending_delay_seconds) == (None, None)
    assert (row.timer_id, row.retry_strategy, row.last_exception) == (None, None, None)


def test_keywords_only():
    with pytest.raises(TypeError):
        OutboxInnerMessage(1, "q", b"", None)


def test_ack():
    row = a_row()
    row.ack()
    assert row.state_set
    assert row.outcome == Ack()
    assert row.attempts_count == 1
    assert row.first_attempt_at == row.last_attempt_at is not None


def test_nack_asks_the_strategy():
    row = a_row(retry_strategy=ConstantRetry(delay_seconds=5), first_attempt_at=NOW)
    row.nack()
    assert row.outcome == Retry(5)
    assert row.pending_delay_seconds == 5
    assert row.first_attempt_at == NOW
    assert row.last_attempt_at > NOW


@pytest.mark.parametrize("strategy", [None, NoRetry()])
def test_nack_without_another_attempt(strategy):
    row = a_row(retry_strategy=strategy)
    row.nack()
    assert row.outcome == Terminal("retry_terminal")
    assert row.terminal_failure_reason == "retry_terminal"


def test_reject_and_the_first_verdict():
    row = a_row()
    row.reject()
    row.ack()
    row.nack()
    assert row.outcome == Terminal("rejected")
    assert row.attempts_count == 1


@pytest.mark.parametrize("verdict", ["ack", "nack", "reject"])
def test_too_late(verdict):
    row = a_row()
    row.closed = True
    with pytest.raises(RuntimeError, match="came too late"):
        getattr(row, verdict)()
    assert row.outcome is None


def test_allow_delivery():
    log = mock.Mock()
    assert a_row(deliveries_count=9).allow_delivery(max_deliveries=None, logger=log)
    assert a_row(deliveries_count=3).allow_delivery(max_deliveries=3, logger=log)
    log.log.assert_not_called()
    row = a_row(deliveries_count=4)
    assert not row.allow_delivery(max_deliveries=3, logger=log)
    assert row.terminal_failure_reason == "max_deliveries"
    assert log.log.call_args.args[0] == logging.WARNING


def test_assert_state_set():
    log = mock.Mock()
    row = a_row()
    row.assert_state_set(log)
    assert log.log.call_args.args[0] == logging.WARNING
    log.reset_mock()
    row.ack()
    row.assert_state_set(log)
    log.log.assert_not_called()
