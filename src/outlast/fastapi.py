"""The outbox in a FastAPI application. The shortcuts are for subscribers, not for HTTP routes."""

from typing import Annotated

try:
    import fastapi  # noqa: F401
except ImportError as error:
    raise ImportError("outlast.fastapi needs FastAPI: pip install 'outlast[fastapi]'") from error

from outlast.faststream.broker import OutboxBroker as _Broker
from outlast.faststream.client import AbstractOutboxClient as _Client
from outlast.faststream.fastapi import OutboxRouter
from outlast.faststream.message import OutboxMessage as _Message
from outlast.faststream.producer import OutboxProducer as _Producer
from outlast.faststream.upstream import FastAPIContext as Context
from outlast.faststream.upstream import FastAPIContextRepo as ContextRepo
from outlast.faststream.upstream import FastAPILogger as Logger

OutboxMessage = Annotated[_Message, Context("message")]
OutboxBroker = Annotated[_Broker, Context("broker")]
OutboxProducer = Annotated[_Producer, Context("broker._producer")]
OutboxClient = Annotated[_Client, Context("broker.config.broker_config.client")]

__all__ = [
    "Context",
    "ContextRepo",
    "Logger",
    "OutboxBroker",
    "OutboxClient",
    "OutboxMessage",
    "OutboxProducer",
    "OutboxRouter",
]
