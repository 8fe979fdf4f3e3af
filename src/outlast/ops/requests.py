"""A request that is repeated gets its first answer, for a day; only a diff is not told twice.

In: an actor with a request id, the digest of what was asked, and what to run. Out: the document.
For doors whose callers repeat themselves when an answer got lost.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from outlast.model.errors import RowRefused
from outlast.ops.actor import Actor
from outlast.ops.context import DeskContext
from outlast.ops.refusals import DeskError, NotRecorded
from outlast.stores.desk import requests

KEPT_SECONDS = 86_400.0
UNDER_WAY_SECONDS = 900.0
"""After this a request without an answer counts as one whose process died."""


ANSWER_CHARS_MAX = 4 * 1024 * 1024
"""Of a kept answer; of a longer one the results by letter are left out."""


class RequestDiffers(DeskError):  # noqa: N818
    """The id was used for something else."""


class RequestUnderWay(DeskError):  # noqa: N818
    """The same request is being answered."""


def digest_of(asked: Any) -> str:
    """What makes two requests the same."""
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_diffs(answer: Any) -> Any:
    # the history outlives the letter, and a diff shows what was in it
    if isinstance(answer, Mapping):
        return {k: [] if k == "diff" else _without_diffs(value) for k, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [_without_diffs(item) for item in answer]
    return answer


def _bounded(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    results = answer.get("results")
    if not results or len(json.dumps(answer, default=str)) <= ANSWER_CHARS_MAX:
        return answer
    return {**answer, "results": [], "results_left_out": len(results)}


class Requests(DeskContext):
    """Once for each request id."""

    async def once(
        self,
        actor: Actor,
        kind: str,
        asked: Any,
        run: Callable[[], Awaitable[Mapping[str, Any]]],
    ) -> Mapping[str, Any]:
        """Run it, or answer as the first time. `kind` is a word of the history."""
        request_id = actor.request_id
        if request_id is None:
            return await run()
        digest = digest_of(asked)
        first = await self._first_answer(actor.name, request_id, kind, digest)
        if first is not None:
            return first
        try:
            answer = await run()
        except BaseException:
            await self._write(requests.forget, actor.name, request_id)
            raise
        kept = _bounded(_without_diffs(answer))
        await self._write(requests.finish, actor.name, request_id, digest, kept)
        return answer

    async def _first_answer(
        self, actor: str, request_id: str, kind: str, digest: str
    ) -> Mapping[str, Any] | None:
        async with self._reading() as at:
            has_history = at.tables.history is not None
        if not has_history:
            raise NotRecorded(
                "there is no history table: a repeated request cannot be told from a new one",
                f"leave the idempotency key out, or make the table: {self.print_command}",
            )
        try:
            first: Mapping[str, Any] | None = await self._write(
                self._claim, actor, request_id, kind, digest
            )
        except RowRefused:
            raise _under_way(request_id) from None
        return first

    async def _claim(
        self, connection: Any, history: Any, actor: str, request_id: str, kind: str, digest: str
    ) -> Mapping[str, Any] | None:
        kept = KEPT_SECONDS
        known = await requests.find(connection, history, actor, request_id, kept)
        if known is not None and not known.is_stale:
            if known.digest != digest:
                raise RequestDiffers(
                    f"the request id {request_id!r} was used for another request",
                    "use a new one for each request",
                )
            if known.answer is not None:
                answer: Mapping[str, Any] = known.answer
                return answer
            waiting = await requests.find(connection, history, actor, request_id, UNDER_WAY_SECONDS)
            if waiting is not None and not waiting.is_stale:
                raise _under_way(request_id)
        if known is not None:
            await requests.forget(connection, history, actor, request_id)
        await requests.begin(connection, history, actor, request_id, kind, digest)
        return None

    async def _write(self, act: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        async with self._writing() as at:
            return await act(at.connection, at.tables.history, *given)


def _under_way(request_id: str) -> RequestUnderWay:
    return RequestUnderWay(f"the request {request_id!r} is being answered", "ask again later")
