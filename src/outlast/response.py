"""Answering a message with another one."""

from outlast.faststream.response import OutboxPublishCommand, OutboxResponse

__all__ = ["OutboxPublishCommand", "OutboxResponse"]
