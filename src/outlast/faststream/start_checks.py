"""What is worth a WARNING when a broker starts: nothing here ever refuses."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from outlast.engine.options import SubscriptionOptions
from outlast.faststream.broker_log import package_logger

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outlast.faststream.broker import OutboxBroker

_running: "WeakSet[OutboxBroker]" = WeakSet()


def warn_about_small_pool(engine: "AsyncEngine", workers: int) -> None:
    """Consuming takes nothing from the pool, but each handler may want a connection of it."""
    pool: Any = engine.pool
    overflow = getattr(pool, "_max_overflow", None)
    if overflow is None or overflow < 0 or not hasattr(pool, "size"):
        return
    most = pool.size() + overflow
    if 0 < most < workers:
        package_logger.warning(
            "up to %d handlers run at once and the engine's pool has %d connections: handlers "
            "that use it may wait for one another (pool_size=%d, max_overflow=%d)",
            workers,
            most,
            pool.size(),
            overflow,
        )


def warn_about_neighbours(broker: "OutboxBroker") -> None:
    """Another broker of this process on the same table, with other options for the same queue."""
    here = _facts(broker)
    for other in _running:
        if other is broker or not other.running:
            continue
        place, letters, options = _facts(other)
        if place != here[0]:
            continue
        differing = sorted(q for q in options.keys() & here[2].keys() if options[q] != here[2][q])
        if letters != here[1] or differing:
            package_logger.warning(
                "two brokers of this process consume table %s with different options (%s): which "
                "of them a message gets is chance",
                place[1],
                ", ".join(differing) or "dlq_table",
            )
    _running.add(broker)


def _facts(
    broker: "OutboxBroker",
) -> tuple[tuple[str, str], str | None, dict[str, SubscriptionOptions]]:
    config = broker.config.broker_config
    database = "" if config.engine is None else str(config.engine.url)
    letters = None if config.dlq_table is None else config.dlq_table.fullname
    options = {
        queue: replace(subscriber.options, queues=("any",))
        for subscriber in consumers(broker.subscribers)
        for queue in subscriber.queues
    }
    return (database, config.outbox_table.fullname), letters, options


def consumers(subscribers: Iterable[Any]) -> Sequence[Any]:
    """The subscribers that have a handler, in the order of their registration."""
    return sorted((s for s in subscribers if s.calls), key=lambda s: s.number)
