"""One outbox table, statement by statement, for tests and tools."""

from outlast.faststream.client import AbstractOutboxClient
from outlast.faststream.sql_client import OutboxClient

__all__ = ["AbstractOutboxClient", "OutboxClient"]
