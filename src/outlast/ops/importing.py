"""Import: what an export wrote comes back as open letters, each once.

In: an actor who may edit, and text. Out: a result for each document. A masked document is refused,
a letter that is there already is skipped; every document ends by itself.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from outlast.model.errors import RowRefused, StoreFailure
from outlast.model.replay import DONE, FAILED
from outlast.ops.actor import Actor
from outlast.ops.context import DeskContext
from outlast.ops.refusals import BadRequest
from outlast.ops.running import interrupted, tried
from outlast.ops.tally import Kept
from outlast.policy.import_forms import ImportLetter, read_letter
from outlast.policy.import_text import Found, read_documents
from outlast.policy.import_values import NotImportable
from outlast.stores.desk import reading
from outlast.stores.desk.history import Act
from outlast.stores.desk.importing import Placed, known_as, place

IMPORT_CHARS_MAX = 256 * 1024 * 1024
LETTERS_AT_ONCE = 50
BYTES_AT_ONCE = 4 * 1024 * 1024

ImportOutcome = Literal["imported", "would_import", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class ImportedDocument:
    """What became of one document. `number` counts from 1; `dlq_id` is the letter's id here."""

    number: int
    line: int
    outcome: ImportOutcome
    dlq_id: int | None = None
    queue: str | None = None
    reason: str | None = None
    remedy: str | None = None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Only what is known: no member is null."""
        names = ("number", "line", "outcome", "dlq_id", "queue", "reason", "remedy")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return found | ({"notes": list(self.notes)} if self.notes else {})


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Of very many documents all are counted, and those that failed are kept first."""

    imported: int = 0
    skipped: int = 0
    failed: int = 0
    results: tuple[ImportedDocument, ...] = ()
    dry_run: bool = False

    @property
    def exit_code(self) -> int:
        """What was there already is no failure."""
        return FAILED if self.failed else DONE

    def as_json(self) -> dict[str, Any]:
        """The document of `--json` and REST."""
        shown: dict[str, Any] = {
            "imported": self.imported,
            "skipped": self.skipped,
            "failed": self.failed,
            "results": [result.as_json() for result in self.results],
        }
        return shown | ({"dry_run": True} if self.dry_run else {})


@dataclass(slots=True)
class _Tally:
    dry_run: bool
    counts: Counter[str] = field(default_factory=Counter)
    kept: Kept[ImportedDocument] = field(default_factory=Kept)

    def add(self, result: ImportedDocument) -> None:
        self.counts[result.outcome] += 1
        self.kept.add(result, is_good=result.outcome != "failed")

    def result(self) -> ImportResult:
        return ImportResult(
            self.counts["would_import" if self.dry_run else "imported"],
            self.counts["skipped"],
            self.counts["failed"],
            self.kept.all(),
            self.dry_run,
        )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A document that may come in."""

    number: int
    line: int
    letter: ImportLetter

    def ended(self, outcome: ImportOutcome, **more: Any) -> ImportedDocument:
        queue = self.letter.values["queue"]
        notes = self.letter.notes if outcome in {"imported", "would_import"} else ()
        return ImportedDocument(self.number, self.line, outcome, queue=queue, notes=notes, **more)


class Importing(DeskContext):
    """Letters out of a file."""

    async def import_letters(
        self,
        actor: Actor,
        text: str,
        *,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> ImportResult:
        """An array, one object, or one for each line. Each letter is open, whatever it was."""
        actor.needs("edit", "import dead letters")
        if len(text) > IMPORT_CHARS_MAX:
            raise BadRequest(
                f"{len(text):,} characters in one import; {IMPORT_CHARS_MAX:,} are read",
                "export in parts, by since: and until:",
            )
        act = self._act(actor, reason)
        await self._need_states()
        async with self._reading() as at:
            now = await reading.database_now(at.connection)
        tally, waiting, size = _Tally(dry_run), list[_Ready](), 0
        seen: dict[tuple[Any, ...], int] = {}
        try:
            for found in read_documents(text):
                ready = _read(found, now)
                if isinstance(ready, ImportedDocument):
                    tally.add(ready)
                    continue
                waiting.append(ready)
                size += len(ready.letter.payload)
                if len(waiting) >= LETTERS_AT_ONCE or size >= BYTES_AT_ONCE:
                    await self._end_import(waiting, act, tally, seen)
                    waiting, size = [], 0
            await self._end_import(waiting, act, tally, seen)
        except StoreFailure as failure:
            raise interrupted(failure, tally.result(), tally.counts.total()) from failure
        if not tally.counts:
            raise BadRequest("there is nothing to import", "outlast dlq export --reveal writes it")
        return tally.result()

    async def _end_import(
        self, some: Sequence[_Ready], act: Act, tally: _Tally, seen: dict[tuple[Any, ...], int]
    ) -> None:
        """Write some letters, or say what would become of them."""
        if tally.dry_run:
            for ready in some:
                tally.add(await self._try_import(ready, seen))
            return
        try:
            placed = await self._place_letters([ready.letter for ready in some], act)
        except RowRefused:
            # one letter's data: the others must not suffer
            for ready in some:
                try:
                    (one,) = await self._place_letters([ready.letter], act)
                except RowRefused as failure:
                    tally.add(ready.ended("failed", reason=str(failure)))
                else:
                    tally.add(_placed(ready, one))
            return
        for ready, one in zip(some, placed, strict=True):
            tally.add(_placed(ready, one))

    async def _place_letters(self, letters: Sequence[ImportLetter], act: Act) -> list[Placed]:
        async def once() -> list[Placed]:
            async with self._writing() as at:
                return await place(*at, letters, act)

        return await tried(once)

    async def _try_import(
        self, ready: _Ready, seen: dict[tuple[Any, ...], int]
    ) -> ImportedDocument:
        values, letter = ready.letter.values, ready.letter
        async with self._reading() as at:
            known = await known_as(*at, letter)
        if known is not None:
            return _placed(ready, Placed(known, is_new=False))
        names = ("message_id", "original_id", "queue", "failed_at")
        same = (*(values[name] for name in names), letter.digest)
        first = seen.setdefault(same, ready.number)
        if first != ready.number:
            return ready.ended("skipped", reason=f"the same letter as document {first}")
        return ready.ended("would_import")


def _placed(ready: _Ready, placed: Placed) -> ImportedDocument:
    if placed.is_new:
        return ready.ended("imported", dlq_id=placed.dlq_id)
    reason = f"already here as {placed.dlq_id}"
    return ready.ended("skipped", dlq_id=placed.dlq_id, reason=reason)


def _read(found: Found, now: datetime) -> _Ready | ImportedDocument:
    if found.problem is None:
        try:
            return _Ready(found.number, found.line, read_letter(found.value, now))
        except NotImportable as error:
            reason, remedy = str(error), error.remedy
    else:
        reason, remedy = found.problem, None
    return ImportedDocument(found.number, found.line, "failed", reason=reason, remedy=remedy)
