"""What a handler gets, and what may become of it."""

from typing import Literal

from outlast.faststream.message import OutboxInnerMessage, OutboxMessage
from outlast.model.outcome import Ack, Retry, Terminal
from outlast.publish.arguments import TimerConflict

DLQFailureReason = Literal["max_deliveries", "retry_terminal", "rejected", "undecodable"]

__all__ = [
    "Ack",
    "DLQFailureReason",
    "OutboxInnerMessage",
    "OutboxMessage",
    "Retry",
    "Terminal",
    "TimerConflict",
]
