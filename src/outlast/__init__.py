"""outlast: a transactional outbox and dead-letter queue.

The public names, resolved on first use: importing the package loads no driver and no framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.faststream.broker import OutboxBroker
    from outlast.faststream.message import OutboxMessage
    from outlast.faststream.publisher import OutboxPublisher
    from outlast.faststream.response import OutboxResponse
    from outlast.faststream.router import OutboxRouter
    from outlast.metrics import MetricsRecorder
    from outlast.model.errors import LeaseLimitExceeded
    from outlast.policy.retry import (
        ConstantRetry,
        ExponentialRetry,
        LinearRetry,
        NoRetry,
        RetryStrategyProto,
    )
    from outlast.publish.plan import TimerConflict
    from outlast.tables import (
        make_dlq_table,
        make_operations_tables,
        make_outbox_table,
        outbox_autovacuum_ddl,
    )
    from outlast.testing import TestOutboxBroker

_HOMES = {
    "ConstantRetry": "outlast.policy.retry",
    "ExponentialRetry": "outlast.policy.retry",
    "LeaseLimitExceeded": "outlast.model.errors",
    "LinearRetry": "outlast.policy.retry",
    "MetricsRecorder": "outlast.metrics",
    "NoRetry": "outlast.policy.retry",
    "OutboxBroker": "outlast.faststream.broker",
    "OutboxMessage": "outlast.faststream.message",
    "OutboxPublisher": "outlast.faststream.publisher",
    "OutboxResponse": "outlast.faststream.response",
    "OutboxRouter": "outlast.faststream.router",
    "RetryStrategyProto": "outlast.policy.retry",
    "TestOutboxBroker": "outlast.testing",
    "TimerConflict": "outlast.publish.plan",
    "make_dlq_table": "outlast.tables",
    "make_operations_tables": "outlast.tables",
    "make_outbox_table": "outlast.tables",
    "outbox_autovacuum_ddl": "outlast.tables",
}

__all__ = [
    "ConstantRetry",
    "ExponentialRetry",
    "LeaseLimitExceeded",
    "LinearRetry",
    "MetricsRecorder",
    "NoRetry",
    "OutboxBroker",
    "OutboxMessage",
    "OutboxPublisher",
    "OutboxResponse",
    "OutboxRouter",
    "RetryStrategyProto",
    "TestOutboxBroker",
    "TimerConflict",
    "make_dlq_table",
    "make_operations_tables",
    "make_outbox_table",
    "outbox_autovacuum_ddl",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
