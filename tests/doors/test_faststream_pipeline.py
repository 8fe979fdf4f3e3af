"""Our way through FastStream's pipeline against its own: the same steps in the same order.

Every combination of two misbehaving middlewares, handlers and policies runs through both; what was
called, with what in scope, what was raised and what was decided must be equal.
"""

import asyncio
from datetime import UTC, datetime
from itertools import product
from uuid import uuid4

import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SkipMessage
from faststream.response import Response
from sqlalchemy import MetaData

from outlast import NoRetry, OutboxBroker, make_outbox_table
from outlast.faststream.message import OutboxInnerMessage
from outlast.faststream.upstream import SubscriberUsecase
from outlast.policy.retry import ConstantRetry

MODES = [
    "plain",
    "enter raises",
    "before raises",
    "after raises",
    "swallows",
    "exit raises",
    "exit swallows",
    "enter cancelled",
]
HANDLERS = {
    "returns": None,
    "raises": ValueError("handler"),
    "acks": AckMessage(),
    "nacks": NackMessage(),
    "rejects": RejectMessage(),
    "skips": SkipMessage(),
    "cancelled": asyncio.CancelledError("handler"),
    "exits": SystemExit(2),
}
POLICIES = [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL]


class Trace:
    def __init__(self):
        self.steps = []

    def middleware(self, name, mode):
        trace = self

        class Middleware(BaseMiddleware):
            async def __aenter__(self):
                trace.steps.append((name, "enter", trace.seen(self.context)))
                if mode == "enter raises":
                    raise KeyError(name)
                if mode == "enter cancelled":
                    raise asyncio.CancelledError(name)
                return await super().__aenter__()

            async def __aexit__(self, kind=None, value=None, tb=None):
                trace.steps.append((name, "exit", repr(value), trace.seen(self.context)))
                if mode == "exit raises":
                    raise LookupError(name)
                if mode == "exit swallows":
                    return True
                return await super().__aexit__(kind, value, tb)

            async def consume_scope(self, call_next, msg):
                trace.steps.append((name, "before", trace.seen(self.context)))
                if mode == "before raises":
                    raise KeyError(name)
                try:
                    result = await call_next(msg)
                except Exception as error:
                    trace.steps.append((name, "heard", repr(error)))
                    if mode == "swallows":
                        return None
                    raise
                if mode == "after raises":
                    raise OSError(name)
                return result

        return Middleware

    @staticmethod
    def seen(context):
        message = context.get("message")
        return (
            context.get("handler_") is not None,
            None if message is None else message.message_id,
            context.get("log_context"),
            context.get("broker") is not None,
        )


def _row():
    now = datetime.now(UTC)
    return OutboxInnerMessage(
        id=7,
        queue="q",
        payload=b'{"n": 1}',
        headers={"content-type": "application/json"},
        attempts_count=0,
        deliveries_count=1,
        created_at=now,
        next_attempt_at=now,
        first_attempt_at=None,
        last_attempt_at=None,
        acquired_at=now,
        acquired_token=uuid4(),
        retry_strategy=ConstantRetry(delay_seconds=1),
    )


def _subscriber(trace, first, second, handler, policy):
    broker = OutboxBroker(
        outbox_table=make_outbox_table(MetaData()),
        middlewares=[trace.middleware("outer", first), trace.middleware("inner", second)],
        logger=None,
    )

    @broker.subscriber("q", ack_policy=policy, retry_strategy=NoRetry(), max_fetch_interval=1.0)
    async def handle(body: dict) -> Response:
        trace.steps.append(("handler", body))
        if HANDLERS[handler] is not None:
            raise HANDLERS[handler]
        return Response("done", correlation_id="c")

    (subscriber,) = broker.subscribers
    broker._setup_logger()
    subscriber._build_fastdepends_model()
    subscriber.running = True
    return subscriber


async def _outcome(way, *arguments):
    trace, row = Trace(), _row()
    subscriber = _subscriber(trace, *arguments)
    try:
        response = await way(subscriber, row)
        end = ("response", response.body, response.correlation_id)
    except BaseException as error:
        # what was being handled when it was raised is only shown in tracebacks
        end = ("raised", repr(error), repr(error.__cause__))
    left = subscriber.outer_config.context
    return trace.steps, end, row.verdict, repr(row.last_exception), Trace.seen(left)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("policy", POLICIES)
def test_both_ways_do_the_same(policy):
    """One policy, 8 x 8 middlewares, 8 handlers."""

    async def main():
        for first, second, handler in product(MODES, MODES, HANDLERS):
            arguments = (first, second, handler, policy)
            theirs = await _outcome(SubscriberUsecase.process_message, *arguments)
            ours = await _outcome(
                type(_subscriber(Trace(), *arguments)).process_message, *arguments
            )
            assert ours == theirs, arguments

    asyncio.run(main())
