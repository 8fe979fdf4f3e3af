"""The configuration of a broker."""

from outlast.faststream.config import LastExceptionRenderer, OutboxBrokerConfig

__all__ = ["LastExceptionRenderer", "OutboxBrokerConfig"]
