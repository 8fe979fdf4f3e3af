"""An action on many letters: a boundary first, then chunk after chunk to the end.

In: a selection's query and what to do with a chunk. Out: results, told as they come. Each chunk is
a transaction of its own; what was counted is what is acted on, whoever else acts meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from outlast.model.errors import RowLocked, RowRefused, StoreFailure, TryLater
from outlast.model.letter_view import LetterView
from outlast.model.query import Query
from outlast.ops import cursors
from outlast.ops.context import At, DeskContext
from outlast.ops.refusals import BadRequest, DeskError, not_found
from outlast.policy.filter_text import render
from outlast.stores.desk import reading
from outlast.stores.desk.locking import locked
from outlast.stores.desk.selection import Boundary, Selection, counted, walk, within

TRIES = 5
PAUSE_SECONDS = 0.2

Result = TypeVar("Result")
Done = TypeVar("Done")
Taken_contra = TypeVar("Taken_contra", contravariant=True)


class Interrupted(DeskError):  # noqa: N818
    """An action on many stopped in the middle. `done` is its result so far."""

    def __init__(self, message: str, done: object) -> None:
        super().__init__(message, "run it again: what is done is not done twice")
        self.done = done


@dataclass(frozen=True, slots=True)
class Batch(Generic[Result]):
    """What one kind of action does. `result` makes that of a letter that it did not come to;
    `prepare` is what takes time and runs before the transaction.
    """

    select: Callable[[At], Awaitable[Selection]]
    act: Callable[[At, Sequence[LetterView]], Awaitable[list[Result]]]
    result: Callable[..., Result]
    dry_run: bool = False
    prepare: Callable[[Sequence[int]], Awaitable[None]] | None = None

    def not_found(self, letter_id: int) -> Result:
        """The result of an id that no letter has."""
        refusal = not_found(letter_id)
        return self.result(letter_id, "failed", reason=str(refusal), remedy=refusal.remedy)


class Pace(NamedTuple):
    """How many letters are taken at once, in this call, and in a second."""

    size: int
    most: int | None = None
    rate: float | None = None


class Taking(NamedTuple):
    """What a run takes, made ready once: versions are looked up in the whole table."""

    chosen: Selection
    boundary: Boundary


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

    async def _go(
        self,
        run: cursors.Run,
        batch: Batch[Result],
        pace: Pace,
        tally: "Counting[Result]",
        record: Callable[[bool], Awaitable[None]],
        so_far: Callable[[], object],
        progress: Callable[[Any], None] | None,
    ) -> str | None:
        """To the end of the run, or as far as this call goes: then the cursor that goes on.

        `record` writes one row of history for the call; True: it was broken off.
        """
        clock = asyncio.get_running_loop().time
        after: int | None = run.after
        started = clock()
        async with told_if_broken_off(tally, so_far, partial(record, True)):
            async for chunk in self._chunks(run, batch, pace.size, pace.most):
                tally.add(chunk.results)
                after = chunk.after
                if progress is not None:
                    progress(so_far())
                if pace.rate is not None and after is not None:
                    due = started + tally.handled / pace.rate
                    await asyncio.sleep(max(0.0, due - clock()))
        handled = run.handled + tally.handled
        if after is None:
            # counted, and gone before the run came to them
            tally.counts["skipped"] += max(0, run.counted - handled)
        await record(False)
        return None if after is None else cursors.of_run(run._replace(after=after, handled=handled))

    async def _chunks(
        self, run: cursors.Run, batch: Batch[Result], size: int, most: int | None
    ) -> AsyncIterator[Chunk[Result]]:
        """Chunk after chunk; at most so many letters."""
        async with self._reading() as at:
            taken = Taking(await batch.select(at), run.boundary)
        after: int | None = run.after
        left = most
        while after is not None and (left is None or left > 0):
            now = size if left is None else min(size, left)
            found, after = await self._next(taken, after, now)
            results = await self._on_chunk(taken, batch, found) if found else []
            if left is not None:
                left -= len(found)
            yield Chunk(results, after)

    async def _next(self, taken: Taking, after: int, most: int) -> tuple[list[int], int | None]:
        async with self._reading() as at:
            return await walk(at.connection, *taken, after, most, self.options.chunk_bytes)

    async def _on_chunk(
        self, taken: Taking, batch: Batch[Result], ids: Sequence[int]
    ) -> list[Result]:
        with suppress(RowRefused):  # one letter's data: the others must not suffer
            return await tried(partial(self._once, taken, batch, ids))
        results: list[Result] = []
        for letter_id in ids:
            try:
                results += await tried(partial(self._once, taken, batch, [letter_id]))
            except RowRefused as failure:
                results.append(batch.result(letter_id, "failed", reason=str(failure)))
        return results

    async def _once(self, taken: Taking, batch: Batch[Result], ids: Sequence[int]) -> list[Result]:
        if batch.prepare is not None:
            await batch.prepare(ids)
        if batch.dry_run:
            async with self._reading() as at:
                return await batch.act(at, await reading.letters(*at, ids))
        async with self._writing() as at:
            tables, where = taken.chosen.tables, within(*taken)
            letters = await locked(at.connection, tables, ids, where, pass_over=True)
            results = await batch.act(at, letters)
        had = {letter.id for letter in letters}
        gone = "somebody else took it meanwhile"
        return results + [batch.result(i, "skipped", reason=gone) for i in ids if i not in had]

    async def _on_named(
        self, ids: Sequence[int], batch: Batch[Result]
    ) -> AsyncIterator[list[Result]]:
        """Each letter in a transaction of its own; a lock is waited for, for a while."""
        known = self._ids(ids)
        impossible = dict.fromkeys(ids).keys() - known
        yield [batch.not_found(i) for i in dict.fromkeys(ids) if i in impossible]
        for letter_id in known:
            try:
                yield await self._on_one(letter_id, batch)
            except RowLocked:
                busy = "somebody else is changing it"
                yield [batch.result(letter_id, "skipped", reason=busy)]
            except RowRefused as failure:
                yield [batch.result(letter_id, "failed", reason=str(failure))]

    async def _on_one(self, letter_id: int, batch: Batch[Result]) -> list[Result]:
        if batch.prepare is not None:
            await batch.prepare([letter_id])
        if batch.dry_run:
            async with self._reading() as at:
                found = await reading.letters(*at, [letter_id])
                return await batch.act(at, found) if found else [batch.not_found(letter_id)]
        async with self._writing() as at:
            found = await locked(*at, [letter_id], pass_over=False)
            return await batch.act(at, found) if found else [batch.not_found(letter_id)]


async def tried(act: Callable[[], Awaitable[Done]]) -> Done:
    """Do it, again if somebody was in the way."""
    for _ in range(TRIES - 1):
        try:
            return await act()
        except (TryLater, RowLocked):
            await asyncio.sleep(PAUSE_SECONDS)
    return await act()


def continued(cursor: str, query: Query | None) -> cursors.Run:
    """The run of a cursor; a filter that says otherwise is refused."""
    run = cursors.run_of(cursor)
    if query is not None and not query.is_empty and render(query) != run.filter:
        raise BadRequest(
            "the cursor belongs to another filter", "pass the cursor without a filter, or neither"
        )
    return run


class Counting(Protocol[Taken_contra]):
    """What sums up a run."""

    counts: Counter[str]

    @property
    def handled(self) -> int:
        """Letters that got a result."""

    def add(self, results: Sequence[Taken_contra]) -> None:
        """Count these."""


@asynccontextmanager
async def told_if_broken_off(
    tally: Counting[Any], result: Callable[[], object], record: Callable[[], Awaitable[None]]
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
