"""A subscriber: a delivery comes in, FastStream's whole pipeline runs, an outcome goes out.

The engine claims, leases and settles; nothing here may touch the row. FastStream's verdict is read
from the row after its pipeline ended, never from what its private methods return.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from faststream import AckPolicy
from faststream.exceptions import StopConsume, SubscriberNotFound
from faststream.message import AckStatus, StreamMessage
from faststream.response import Response

from outlast.faststream.message import OutboxInnerMessage, Verdict, inner_message
from outlast.faststream.named_message import inject_named_message
from outlast.faststream.parser import decode_body, guarded_decoder, guarded_parser, parse_row
from outlast.faststream.pipeline import process
from outlast.faststream.response import ResponsePublisher
from outlast.faststream.threads import HandlerThread, here, is_plain, watched
from outlast.faststream.upstream import SubscriberUsecase
from outlast.model.delivery import Attempt, Delivery
from outlast.model.outcome import ACK, RELEASE, UNSETTLED, Outcome
from outlast.policy.verdict import Verdicts

if TYPE_CHECKING:
    from outlast.faststream.config import OutboxBrokerConfig, OutboxSubscriberConfig
    from outlast.faststream.consuming import Consuming
    from outlast.faststream.handler import OutboxCalls

_PEEK_INSTEAD = (
    "is not supported: it would take a lease and count a delivery. "
    "broker.fetch_unprocessed(session=..., queue=...) reads the outbox without touching it"
)

_FOREIGN_VERDICTS: dict[AckStatus, Verdict] = {
    AckStatus.ACKED: "ack",
    AckStatus.NACKED: "nack",
    AckStatus.REJECTED: "reject",
}


_numbers = count()


class OutboxSubscriber(SubscriberUsecase[OutboxInnerMessage]):
    """One or more queues of the outbox, and the handlers that serve them."""

    _outer_config: "OutboxBrokerConfig"

    def __init__(
        self,
        config: "OutboxSubscriberConfig",
        specification: Any,
        calls: "OutboxCalls",
    ) -> None:
        config.parser, config.decoder = parse_row, decode_body
        super().__init__(config, specification, calls)
        self.registration = config.registration
        self.options = config.registration.options
        self.subscription: Any = None
        self.number = next(_numbers)
        """The order of registration; FastStream keeps subscribers in a set."""
        self.verdicts = Verdicts(self.options.retry_strategy)
        self._attempt: Callable[[Delivery], Attempt] | None = None
        self._keeps_letters = False
        self._reply: tuple[ResponsePublisher, ...] = (ResponsePublisher(self._outer_config),)
        self._call_decorators = (self._with_thread, self._with_named_message)
        self._has_threads = False

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues it serves."""
        return tuple(self.options.queues)

    @property
    def consuming(self) -> "Consuming":
        """What drives it."""
        return self._outer_config.consuming

    def _with_named_message(self, call: Callable[..., Any]) -> Callable[..., Any]:
        # FastAPI has its own ways to inject; elsewhere `msg` may well be a field of the body
        if (
            self.ack_policy is AckPolicy.MANUAL
            and self._outer_config.fd_config.get_dependent is None
        ):
            return inject_named_message(call)
        return call

    def _with_thread(self, call: Callable[..., Any]) -> Callable[..., Any]:
        if not is_plain(call):
            return call
        self._has_threads = True
        return watched(call)

    def _get_parser_and_decoder(
        self, item_parser: Any = None, item_decoder: Any = None
    ) -> tuple[Any, Any]:
        parser, decoder = super()._get_parser_and_decoder(item_parser, item_decoder)
        return (
            parser if parser is self._parser else guarded_parser(parser),
            decoder if decoder is self._decoder else guarded_decoder(decoder),
        )

    # -- life

    async def start(self) -> None:
        """Begin to consume, at once if the broker already does."""
        await super().start()
        # the engine knows what is in hand; FastStream's own count would be a second one
        self.lock = nullcontext()
        await self.consuming.add(self)
        self._post_start()

    def bind(self, attempt: Callable[[Delivery], Attempt], *, keeps_letters: bool) -> None:
        """Called by what drives this subscriber, before the first delivery."""
        self.verdicts = Verdicts(
            self.options.retry_strategy,
            self.specification.call_name,
            self._outer_config.last_exception_renderer,
        )
        self._attempt = attempt
        self._keeps_letters = keeps_letters

    async def stop(self) -> None:
        """Stop to claim, finish what is in hand, give back the rest."""
        self.running = False
        await self.consuming.remove(self)

    # -- one delivery

    @property
    def outer_config(self) -> "OutboxBrokerConfig":
        """What it shares with its broker."""
        return self._outer_config

    @property
    def default_parser(self) -> Any:
        """The parser of a row that no handler has parsed."""
        return self._parser

    def reply_publishers(self, message: StreamMessage[OutboxInnerMessage]) -> Iterable[Any]:
        """What publishes a handler's `OutboxResponse`."""
        if not message.reply_to or self._no_reply:
            return ()
        return self._make_response_publisher(message)

    async def process_message(self, msg: OutboxInnerMessage) -> Response:
        """FastStream's whole pipeline for one row."""
        return await process(self, msg)

    async def deliver(self, delivery: Delivery) -> Outcome:
        """Run the handler and say what becomes of the row. Cancellation passes through."""
        row = inner_message(delivery, self.options.retry_strategy)
        failure: BaseException | None = None
        try:
            await (self._in_thread(row) if self._has_threads else self.process_message(row))
        except (Exception, SystemExit) as exception:  # noqa: BLE001 - it becomes the outcome
            failure = exception
        finally:
            row.closed = True
        if failure is None and row.verdict == "ack":
            return ACK
        outcome = self._judge(row, delivery, failure)
        row.settled_as(outcome)
        return outcome

    async def _in_thread(self, row: OutboxInnerMessage) -> None:
        thread = HandlerThread()
        token = here.set(thread)
        try:
            await self.process_message(row)
        except asyncio.CancelledError:
            await thread.end()
            raise
        finally:
            here.reset(token)

    def _judge(
        self, row: OutboxInnerMessage, delivery: Delivery, failure: BaseException | None
    ) -> Outcome:
        if isinstance(failure, (StopConsume, SystemExit)):
            return self._judge_exit(row, delivery, failure)
        exception = failure or row.last_exception
        if failure is not None and failure is row.undecodable and self._keeps_letters:
            return self.verdicts.undecodable(failure)
        verdict = row.verdict
        if row.foreign is not None and verdict is None and row.foreign.committed is not None:
            verdict = _FOREIGN_VERDICTS[row.foreign.committed]
        if isinstance(failure, SubscriberNotFound) and verdict == "ack":
            # no filter matched: nobody has seen it, so no policy may end it as delivered
            verdict = None
        if verdict is None and exception is None and self.ack_policy is AckPolicy.MANUAL:
            return UNSETTLED
        return self._outcome_of(verdict, delivery, exception)

    def _judge_exit(
        self, row: OutboxInnerMessage, delivery: Delivery, failure: BaseException
    ) -> Outcome:
        self.consuming.request_stop(self)
        if isinstance(failure, SystemExit):
            # a FastAPI router is the "app" of its broker and has no exit
            exit_app = getattr(self._outer_config.context.get("app"), "exit", None)
            if exit_app is not None:
                exit_app()
        elif row.handler_verdict is None:
            return RELEASE
        # what FastStream's acknowledgement says of an exit is not the handler's verdict
        return self._outcome_of(row.handler_verdict, delivery, failure)

    def _outcome_of(
        self, verdict: Verdict | None, delivery: Delivery, exception: BaseException | None
    ) -> Outcome:
        if verdict == "ack":
            return ACK
        if verdict == "reject":
            return self.verdicts.rejected(exception)
        assert self._attempt is not None, "bound before the first delivery"
        return self.verdicts.failed(self._attempt(delivery), exception)

    # -- FastStream's questions

    def _make_response_publisher(
        self,
        message: StreamMessage[OutboxInnerMessage],
    ) -> Iterable[Any]:
        row = message.raw_message
        if isinstance(row, OutboxInnerMessage) and not row.replies:
            # it would ignore a command that costs a twentieth of a message to make
            return ()
        return self._reply

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """The columns of a log line."""
        if message is None:
            # the widest name decides the width of the column
            return {"queue": max(self.queues, key=len), "message_id": ""}
        row = message.raw_message
        queue = row.queue if isinstance(row, OutboxInnerMessage) else self.queues[0]
        return {"queue": queue, "message_id": message.message_id}

    async def get_one(self, *, timeout: float = 5) -> NoReturn:
        """Not supported."""
        raise NotImplementedError(f"get_one() {_PEEK_INSTEAD}")

    def __aiter__(self) -> AsyncIterator[Any]:
        """Not supported."""
        raise NotImplementedError(f"async for over a subscriber {_PEEK_INSTEAD}")
