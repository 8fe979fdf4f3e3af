"""An action on many letters: a boundary first, then chunk after chunk to the end.

In: a selection's query and what to do with a chunk. Out: results, told as they come. Each chunk is
a transaction of its own; what was counted is what is acted on, whoever else acts meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from outlast.model.errors import RowLocked, RowRefused, StoreFailure, TryLater
from outlast.model.letter_view import LetterView
from outlast.model.query import Query
from outlast.ops import cursors
from outlast.ops.context import At, DeskContext
from outlast.ops.refusals import BadRequest, DeskError
from outlast.policy.filter_text import render
from outlast.stores.desk import reading
from outlast.stores.desk.locking import locked
from outlast.stores.desk.selection import Selection, counted, walk, within

_TRIES = 5
_PAUSE_SECONDS = 0.2

Result = TypeVar("Result")


class Interrupted(DeskError):  # noqa: N818
    """An action on many stopped in the middle. `done` is its result so far."""

    def __init__(self, message: str, done: object) -> None:
        super().__init__(message, "run it again: what is done is not done twice")
        self.done = done


@dataclass(frozen=True, slots=True)
class Batch(Generic[Result]):
    """What one kind of action does. `failed` and `skipped` make the result of a letter; `prepare`
    is what takes time and runs before the transaction.
    """

    select: Callable[[At], Awaitable[Selection]]
    act: Callable[[At, Sequence[LetterView]], Awaitable[list[Result]]]
    failed: Callable[[int, str], Result]
    skipped: Callable[[int, str], Result]
    dry_run: bool = False
    prepare: Callable[[Sequence[int]], Awaitable[None]] | None = None


class Chunk(Generic[Result]):
    """Results, and where the run goes on; None: it is at its end."""

    __slots__ = ("after", "results")

    def __init__(self, results: list[Result], after: int | None) -> None:
        self.results = results
        self.after = after


class Running(DeskContext):
    """How the verbs of the desk go through many letters, or through named ones."""

    async def _begin(self, query: Query, batch: Batch[Result]) -> cursors.Run:
        """The boundary and the count of a new run."""
        async with self._reading() as at:
            boundary = await reading.boundary(*at)
            total = await counted(at.connection, await batch.select(at), boundary)
        return cursors.Run(render(query), boundary, 0, total, 0)

    async def _chunks(
        self, run: cursors.Run, batch: Batch[Result], size: int, most: int | None
    ) -> AsyncIterator[Chunk[Result]]:
        """Chunk after chunk; at most so many letters."""
        after: int | None = run.after
        left = most
        while after is not None and (left is None or left > 0):
            now = size if left is None else min(size, left)
            found, after = await self._next(run, batch, after, now)
            results = await self._on_chunk(run, batch, found) if found else []
            if left is not None:
                left -= len(found)
            yield Chunk(results, after)

    async def _next(
        self, run: cursors.Run, batch: Batch[Result], after: int, most: int
    ) -> tuple[list[int], int | None]:
        async with self._reading() as at:
            chosen = await batch.select(at)
            return await walk(
                at.connection, chosen, run.boundary, after, most, self.options.chunk_bytes
            )

    async def _on_chunk(
        self, run: cursors.Run, batch: Batch[Result], ids: Sequence[int]
    ) -> list[Result]:
        for is_last in (*[False] * (_TRIES - 1), True):
            try:
                return await self._once(run, batch, ids)
            except RowRefused:
                break  # one letter's data: the others must not suffer
            except (TryLater, RowLocked):
                if is_last:
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)
        results: list[Result] = []
        for letter_id in ids:
            try:
                results += await self._once(run, batch, [letter_id])
            except RowRefused as failure:
                results.append(batch.failed(letter_id, str(failure)))
        return results

    async def _once(
        self, run: cursors.Run, batch: Batch[Result], ids: Sequence[int]
    ) -> list[Result]:
        if batch.prepare is not None:
            await batch.prepare(ids)
        if batch.dry_run:
            async with self._reading() as at:
                return await batch.act(at, await reading.letters(*at, ids))
        async with self._writing() as at:
            chosen = await batch.select(at)
            where = within(chosen, run.boundary)
            letters = await locked(*at, ids, where, pass_over=True)
            results = await batch.act(at, letters)
        had = {letter.id for letter in letters}
        taken = "somebody else took it meanwhile"
        return results + [batch.skipped(i, taken) for i in ids if i not in had]

    async def _on_named(
        self, ids: Sequence[int], batch: Batch[Result], not_found: Callable[[int], Result]
    ) -> AsyncIterator[list[Result]]:
        """Each letter in a transaction of its own; a lock is waited for, for a while."""
        for letter_id in ids:
            try:
                yield await self._on_one(letter_id, batch, not_found)
            except RowLocked:
                yield [batch.skipped(letter_id, "somebody else is changing it")]
            except RowRefused as failure:
                yield [batch.failed(letter_id, str(failure))]

    async def _on_one(
        self, letter_id: int, batch: Batch[Result], not_found: Callable[[int], Result]
    ) -> list[Result]:
        if batch.prepare is not None:
            await batch.prepare([letter_id])
        if batch.dry_run:
            async with self._reading() as at:
                found = await reading.letters(*at, [letter_id])
                return await batch.act(at, found) if found else [not_found(letter_id)]
        async with self._writing() as at:
            found = await locked(*at, [letter_id], pass_over=False)
            return await batch.act(at, found) if found else [not_found(letter_id)]


def continued(cursor: str, query: Query | None) -> cursors.Run:
    """The run of a cursor; a filter that says otherwise is refused."""
    run = cursors.run_of(cursor)
    if query is not None and not query.is_empty and render(query) != run.filter:
        raise BadRequest(
            "the cursor belongs to another filter", "pass the cursor without a filter, or neither"
        )
    return run


class Counting(Protocol):
    """What sums up a run."""

    @property
    def handled(self) -> int:
        """Letters that got a result."""


@asynccontextmanager
async def told_if_broken_off(
    tally: Counting, result: Callable[[], object], record: Callable[[], Awaitable[None]]
) -> AsyncIterator[None]:
    """A run that stops in the middle, for whatever reason, still records what it has done."""
    try:
        yield
    except BaseException as end:
        if tally.handled:
            with suppress(StoreFailure):  # each letter has its own line besides
                await record()
        if isinstance(end, StoreFailure):
            raise interrupted(end, result(), tally.handled) from end
        raise


def interrupted(failure: StoreFailure, done: object, count: int) -> Exception:
    """The error of a run that broke off after so many letters; before the first, the failure."""
    if not count:
        return failure
    return Interrupted(f"stopped after {count} letters: {failure}", done)
