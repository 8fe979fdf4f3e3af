"""Routers to include into an `OutboxBroker`."""

from outlast.faststream.router import OutboxRoute, OutboxRouter

__all__ = ["OutboxRoute", "OutboxRouter"]
