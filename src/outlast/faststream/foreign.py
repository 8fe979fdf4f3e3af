"""Relays: handlers whose result goes to another broker, and whether that broker is there."""

from collections.abc import Iterable
from typing import Any

from outlast.faststream.broker_log import package_logger


def warn_about_stopped_brokers(subscribers: Iterable[Any]) -> None:
    """One WARNING per foreign broker that is not started yet, with the queues relayed to it."""
    stopped: dict[int, tuple[Any, list[str]]] = {}
    for subscriber in subscribers:
        for broker in _foreign_brokers(subscriber):
            if not _is_started(broker):
                stopped.setdefault(id(broker), (broker, []))[1].extend(subscriber.queues)
    for broker, queues in stopped.values():
        package_logger.warning(
            "%s, to which %s are relayed, has not been started: messages are retried until it is",
            type(broker).__name__,
            ", ".join(repr(queue) for queue in dict.fromkeys(queues)),
        )


def _foreign_brokers(subscriber: Any) -> list[Any]:
    brokers: dict[int, Any] = {}
    for call in subscriber.calls:
        for publisher in call.handler._publishers:  # noqa: SLF001
            config = getattr(publisher, "_outer_config", None)
            broker = getattr(config, "extra_context", {}).get("broker")
            if broker is not None:
                brokers[id(broker)] = broker
    return list(brokers.values())


def _is_started(broker: Any) -> bool:
    # a test broker connects without ever being "running"
    return bool(broker.running) or getattr(broker, "_connection", None) is not None
