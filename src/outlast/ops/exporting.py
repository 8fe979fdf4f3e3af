"""Export: every letter of a filter as text, a piece at a time.

In: an actor who may inspect. Out: pieces of one document, or of lines. What is exported is what was
there when it began. Nothing is written, but that somebody was given secrets: that is recorded
before the first of them leaves.
"""

from collections.abc import AsyncIterator, Callable
from typing import Literal, get_args

from outlast.model.query import Query
from outlast.ops.actor import Actor
from outlast.ops.context import DeskContext
from outlast.ops.refusals import BadRequest
from outlast.policy.exact_json import write_json
from outlast.policy.export_forms import ExportedLetter, csv_head, csv_line, document
from outlast.policy.export_pytest import HEAD, letter_test
from outlast.policy.filter_text import render
from outlast.stores.desk import reading
from outlast.stores.desk.history import Act, Entry, tell
from outlast.stores.desk.selection import Boundary, Selection, counted, selection, walk

ExportKind = Literal["json", "jsonl", "csv", "pytest"]

LETTERS_AT_ONCE = 50
BYTES_AT_ONCE = 4 * 1024 * 1024


class Exporting(DeskContext):
    """Letters for a file."""

    def export(
        self,
        actor: Actor,
        query: Query | None = None,
        *,
        kind: ExportKind = "json",
        reveal: bool = False,
        reason: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> AsyncIterator[str]:
        """By id. `reveal` needs its scope and is recorded; `progress` hears how many there were."""
        actor.needs("inspect", "export dead letters")
        if kind not in get_args(ExportKind):
            raise BadRequest(f"there is no export as {kind!r}; there are json, jsonl, csv, pytest")
        if reveal:
            actor.needs("reveal", "see what is masked")
        act = self._act(actor, reason)._replace(request_id=None)
        return self._export_pieces(query or Query(), kind, act if reveal else None, progress)

    async def _export_pieces(
        self,
        query: Query,
        kind: ExportKind,
        revealing: Act | None,
        progress: Callable[[int], None] | None,
    ) -> AsyncIterator[str]:
        async with self._reading() as at:
            boundary = await reading.boundary(*at)
            chosen = await selection(*at, query)
        if revealing is not None:
            await self._record_export(query, kind, revealing, chosen, boundary)
        reveal = revealing is not None
        if kind == "csv":
            yield csv_head(revealed=reveal)
        elif kind == "pytest":
            yield HEAD
        number = 0
        async for letters in self._export_letters(chosen, boundary, reveal=reveal):
            for letter in letters:
                number += 1
                yield _piece(letter, kind, number)
            if progress is not None:
                progress(number)
        if kind == "json":
            yield "\n]\n" if number else "[]\n"

    async def _export_letters(
        self, chosen: Selection, boundary: Boundary, *, reveal: bool
    ) -> AsyncIterator[list[ExportedLetter]]:
        after: int | None = 0
        most_bytes = min(BYTES_AT_ONCE, self.options.chunk_bytes)
        most = min(LETTERS_AT_ONCE, self.options.chunk)
        while after is not None:
            # whoever reads slowly holds no connection: nothing is given away inside
            async with self._reading() as at:
                ids, after = await walk(at.connection, chosen, boundary, after, most, most_bytes)
                found = await reading.letters(*at, ids)
            found.sort(key=lambda letter: letter.id)
            if found:
                yield [self._redaction.exported(letter, reveal=reveal) for letter in found]

    async def _record_export(
        self, query: Query, kind: str, act: Act, chosen: Selection, boundary: Boundary
    ) -> None:
        if chosen.tables.history is None:
            return
        async with self._reading() as at:
            count = await counted(at.connection, chosen, boundary)
        detail = {"filter": render(query), "kind": kind, "count": count, "reveal": True}
        async with self._writing() as at:
            await tell(*at, act, [Entry(None, "exported", detail)])


def _piece(letter: ExportedLetter, kind: ExportKind, number: int) -> str:
    match kind:
        case "json":
            return ("[\n" if number == 1 else ",\n") + write_json(document(letter))
        case "jsonl":
            return write_json(document(letter)) + "\n"
        case "csv":
            return csv_line(letter)
        case "pytest":
            return letter_test(letter)
