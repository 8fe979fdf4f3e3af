"""From a row to a message, and from its bytes to a body.

A body that cannot be read now cannot be read later: such an exception is noted on the row, so that
it becomes a dead letter at once. Of a custom parser or decoder only a `ValueError` says that much.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from faststream.message import StreamMessage, decode_message

from outlast.faststream.message import OutboxInnerMessage, OutboxMessage
from outlast.faststream.upstream import json_loads
from outlast.model import headers as envelope
from outlast.publish.plan import JSON_TYPE

Parse = Callable[[OutboxInnerMessage], Awaitable[Any]]
Decode = Callable[[StreamMessage[Any]], Awaitable[Any]]


async def parse_row(row: OutboxInnerMessage) -> OutboxMessage:
    """FastStream's default parser for our rows; whatever it raises, the row is not readable."""
    try:
        return _message(row)
    except Exception as error:
        row.undecodable = error
        raise


def _message(row: OutboxInnerMessage) -> OutboxMessage:
    raw = row.headers
    if not raw:
        return OutboxMessage(
            row, row.payload, reply_to=row.queue, correlation_id=str(row.id), message_id=str(row.id)
        )
    message = OutboxMessage(
        row,
        row.payload,
        headers=envelope.visible(raw),
        reply_to=row.queue,
        content_type=raw.get(envelope.CONTENT_TYPE),
        correlation_id=raw.get(envelope.CORRELATION_ID) or str(row.id),
        message_id=envelope.message_id(raw, row.id),
    )
    message.event_type = raw.get(envelope.EVENT_TYPE)
    return message


async def decode_body(message: StreamMessage[Any]) -> Any:
    """FastStream's default decoder; whatever it raises, the body is not readable."""
    try:
        if message.content_type == JSON_TYPE:
            # what FastStream's decoder comes to, without its questions
            return json_loads(message.body)
        return decode_message(message)
    except Exception as error:
        _note(message, error)
        raise


def guarded_parser(parse: Parse) -> Parse:
    """A custom parser, watched."""

    async def watched(row: OutboxInnerMessage) -> Any:
        try:
            message = await parse(row)
        except ValueError as error:
            row.undecodable = error
            raise
        if not isinstance(message, OutboxMessage) and isinstance(message, StreamMessage):
            row.foreign = message
        return message

    return watched


def guarded_decoder(decode: Decode) -> Decode:
    """A custom decoder, watched."""

    async def watched(message: StreamMessage[Any]) -> Any:
        try:
            return await decode(message)
        except ValueError as error:
            _note(message, error)
            raise

    return watched


def _note(message: StreamMessage[Any], error: BaseException) -> None:
    row = message.raw_message
    if isinstance(row, OutboxInnerMessage):
        row.undecodable = error
