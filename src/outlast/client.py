"""One outbox table, statement by statement, for tests and tools."""

from outlast.faststream.client import AbstractOutboxClient

__all__ = ["AbstractOutboxClient"]
