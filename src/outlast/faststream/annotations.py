"""Shortcuts for handler parameters: FastStream puts the live object in."""

from typing import Annotated

from faststream import Context, ContextRepo, Logger, NoCast

from outlast.faststream.broker import OutboxBroker as _Broker
from outlast.faststream.client import AbstractOutboxClient as _Client
from outlast.faststream.message import OutboxMessage as _Message
from outlast.faststream.producer import OutboxProducer as _Producer

OutboxMessage = Annotated[_Message, Context("message")]
OutboxBroker = Annotated[_Broker, Context("broker")]
OutboxProducer = Annotated[_Producer, Context("broker._producer")]
OutboxClient = Annotated[_Client, Context("broker.config.broker_config.client")]

__all__ = [
    "ContextRepo",
    "Logger",
    "NoCast",
    "OutboxBroker",
    "OutboxClient",
    "OutboxMessage",
    "OutboxProducer",
]
