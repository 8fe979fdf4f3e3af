"""Shortcuts for handler parameters. FastAPI has its own, in `outlast.fastapi`."""

from outlast.faststream.annotations import (
    ContextRepo,
    Logger,
    NoCast,
    OutboxBroker,
    OutboxClient,
    OutboxMessage,
    OutboxProducer,
)

__all__ = [
    "ContextRepo",
    "Logger",
    "NoCast",
    "OutboxBroker",
    "OutboxClient",
    "OutboxMessage",
    "OutboxProducer",
]
