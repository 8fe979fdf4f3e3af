"""One handler of a subscriber: what its result may be, and what its exception was.

Runs inside FastStream's pipeline, after the handler and before any publisher.
"""

from collections.abc import Iterable
from copy import copy
from typing import Any

from faststream.message import StreamMessage
from faststream.response import Response, ensure_response

from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.response import ForeignPublisherConflict, OutboxResponse
from outlast.faststream.upstream import CallsCollection, HandlerItem
from outlast.model import headers as envelope

_ENVELOPE = (envelope.CONTENT_TYPE, envelope.CORRELATION_ID)


class OutboxHandler(HandlerItem[OutboxInnerMessage]):
    """FastStream's handler item, watched."""

    __slots__ = ("propagate",)

    def __init__(self, item: HandlerItem[OutboxInnerMessage], *, propagate: bool) -> None:
        super().__init__(
            handler=item.handler,
            filter=item.filter,
            item_parser=item.item_parser,
            item_decoder=item.item_decoder,
            dependencies=item.dependencies,
        )
        self.propagate = propagate

    async def call(
        self, /, message: StreamMessage[OutboxInnerMessage], _extra_middlewares: Iterable[Any]
    ) -> Any:
        """Run the handler; note its exception, for FastStream swallows some."""
        try:
            result = await super().call(message, _extra_middlewares)
        except (Exception, SystemExit) as exception:
            row = message.raw_message
            if isinstance(row, OutboxInnerMessage):
                row.last_exception = exception
                row.handler_verdict = row.verdict
            raise
        if isinstance(result, OutboxResponse):
            row = message.raw_message
            if isinstance(row, OutboxInnerMessage):
                row.replies = True
            if self.handler._publishers:  # noqa: SLF001 - the one list of its publishers
                raise ForeignPublisherConflict(
                    f"{self.name} returned an OutboxResponse and is decorated with another "
                    "broker's publisher: nothing was published; a handler may do one or the other",
                )
            if self.propagate:
                return _with_headers(result, message, without=_ENVELOPE)
        elif self.propagate and self.handler._publishers:  # noqa: SLF001
            return _with_headers(ensure_response(result), message)
        return result


def _with_headers(
    response: Response, message: StreamMessage[Any], *, without: tuple[str, ...] = ()
) -> Response:
    """The response with the message's headers, unless it has its own."""
    if response.headers:
        return response
    # the handler may return one and the same response for every message
    response = copy(response)
    response.headers = {k: v for k, v in message.headers.items() if k not in without}
    return response


class OutboxCalls(CallsCollection[OutboxInnerMessage]):
    """The handlers of one subscriber."""

    def __init__(self, *, propagate: bool) -> None:
        super().__init__()
        self.propagate = propagate

    def add_call(self, call: HandlerItem[OutboxInnerMessage]) -> None:
        """Add a handler."""
        super().add_call(OutboxHandler(call, propagate=self.propagate))
