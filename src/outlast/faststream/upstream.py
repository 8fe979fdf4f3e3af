"""The one place where private names of FastStream are imported.

What a FastStream release can break is listed here. The names of the two heavy corners, the test
broker (it loads `unittest.mock`) and FastAPI, are resolved when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from faststream._internal._compat import json_loads
from faststream._internal.broker import BrokerRouter, BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import SubscriberRoute
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
    UnderlyingDriverAnnotation,
)
from faststream._internal.constants import EMPTY
from faststream._internal.context import Context as ContextField
from faststream._internal.context import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection, HandlerItem
from faststream._internal.endpoint.subscriber.utils import default_filter
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto

if TYPE_CHECKING:
    from faststream._internal.fastapi.context import Context as FastAPIContext
    from faststream._internal.fastapi.context import ContextRepo as FastAPIContextRepo
    from faststream._internal.fastapi.context import Logger as FastAPILogger
    from faststream._internal.fastapi.router import StreamRouter
    from faststream._internal.testing.broker import TestBroker

_LATE = {
    "FastAPIContext": ("faststream._internal.fastapi.context", "Context"),
    "FastAPIContextRepo": ("faststream._internal.fastapi.context", "ContextRepo"),
    "FastAPILogger": ("faststream._internal.fastapi.context", "Logger"),
    "StreamRouter": ("faststream._internal.fastapi.router", "StreamRouter"),
    "TestBroker": ("faststream._internal.testing.broker", "TestBroker"),
}

__all__ = [
    "EMPTY",
    "BrokerConfig",
    "BrokerRouter",
    "BrokerUsecase",
    "CallsCollection",
    "ContextField",
    "ContextRepo",
    "DefaultCodec",
    "DefaultLoggerStorage",
    "FastAPIContext",
    "FastAPIContextRepo",
    "FastAPILogger",
    "FastDependsConfig",
    "HandlerItem",
    "ParserComposition",
    "ProducerProto",
    "PublisherSpecification",
    "PublisherSpecificationConfig",
    "PublisherUsecase",
    "PublisherUsecaseConfig",
    "Registrator",
    "StreamRouter",
    "SubscriberRoute",
    "SubscriberSpecification",
    "SubscriberSpecificationConfig",
    "SubscriberUsecase",
    "SubscriberUsecaseConfig",
    "TestBroker",
    "UnderlyingDriverAnnotation",
    "default_filter",
    "get_broker_logger",
    "json_loads",
    "make_logger_state",
]


def __getattr__(name: str) -> Any:
    late = _LATE.get(name)
    if late is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = late
    return getattr(import_module(module), attribute)
