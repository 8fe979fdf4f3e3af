"""Edit: what a message says is mended, the original stays.

In: an actor who may edit, a letter, an edit. Out: a revision, or what it would be. The letter is
read, the edit is made outside of any transaction, and written only if the letter is still the same.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from outlast.model import headers as envelope
from outlast.model.edit import Draft, Edit, EditError, NoDraft
from outlast.model.errors import RowLocked
from outlast.model.letter_view import LetterView
from outlast.model.replay import Denial
from outlast.ops.actor import Actor
from outlast.ops.context import DeskContext
from outlast.ops.drafting import Limits, Message, aside, mended
from outlast.ops.edit_shown import reads_secrets, shown_diff
from outlast.ops.refusals import (
    BadRequest,
    EditConflict,
    EditRefused,
    NotRecorded,
    not_found,
)
from outlast.policy.edit_rules import check_edit, detail_of, etag_of, header_warnings, made_by
from outlast.policy.letter_states import transition
from outlast.policy.masking import Masker
from outlast.stores.desk import reading
from outlast.stores.desk.locking import locked
from outlast.stores.desk.reading import Revision
from outlast.stores.desk.revisions import revise
from outlast.stores.desk.shape import DeskTables

EDITED_AT_ONCE = 50
"""Letters of one transaction of a replay with an edit."""

DRAFTS_BYTES_MAX = 64 * 1024 * 1024
"""Of the new bodies of one such transaction."""


@dataclass(frozen=True, slots=True)
class EditResult:
    """`revision` is what a replay sends now, `digest` that of its body, `transform` what made it.

    `etag` is that of the letter as it is now. A dry run tells what would be.
    """

    dlq_id: int
    revision: int
    digest: str
    etag: str
    diff: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    transform: str | None = None
    transform_digest: str | None = None
    dry_run: bool = False
    changed: bool = True

    def as_json(self) -> dict[str, Any]:
        """The document of `--json` and REST."""
        names = ("dlq_id", "revision", "digest", "etag", "transform", "transform_digest")
        shown: dict[str, Any] = {name: getattr(self, name) for name in names}
        shown |= {"diff": list(self.diff), "warnings": list(self.warnings)}
        return shown | ({"dry_run": True} if self.dry_run else {})


class Editing(DeskContext):
    """Revisions, by themselves or on the way of a replay."""

    @cached_property
    def _masker(self) -> Masker:
        return Masker(self.options.secret_names)

    async def edit(
        self,
        actor: Actor,
        letter_id: int,
        edit: Edit,
        *,
        expected: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
    ) -> EditResult:
        """Add a revision. `expected` is the `etag` of the letter that the editor saw."""
        act = self._reasoned(actor, reason, "revision", dry_run=dry_run)
        await self._need_edit(actor, edit)
        letter, base = await self._to_edit(letter_id)
        if expected is not None and expected != etag_of(letter):
            raise _conflict(letter_id)
        allowed = transition("edit", letter)
        if isinstance(allowed, Denial):
            raise EditRefused(allowed.reason, allowed.remedy, state=allowed.state)
        draft = await self._draft(letter, base, edit, shows=True)
        if isinstance(draft, NoDraft):
            raise EditRefused(draft.reason, draft.remedy)
        number = draft.before
        if draft.changes and dry_run:
            number = (letter.revision or 0) + 1
        elif draft.changes:
            try:
                async with self._writing() as at:
                    found = await locked(*at, [letter_id], pass_over=False)
                    if not found or etag_of(found[0]) != draft.etag:
                        raise _conflict(letter_id)
                    number = (await revise(*at, act, [(found[0], draft)]))[letter_id]
            except RowLocked:
                raise EditConflict(
                    f"somebody else is changing dead letter {letter_id}: nothing was written",
                    "try again",
                ) from None
        shown = letter if dry_run or not draft.changes else replace(letter, revision=number)
        warnings = draft.warnings
        if not draft.changes:
            warnings = (*warnings, "nothing changes: no revision is written")
        return EditResult(
            letter_id,
            number,
            "sha256:" + hashlib.sha256(draft.payload).hexdigest(),
            etag_of(shown),
            draft.diff,
            warnings,
            draft.transform,
            draft.digest,
            dry_run,
            draft.changes,
        )

    async def _need_edit(self, actor: Actor, edit: Edit) -> None:
        """Refuse an edit that this actor may not make, or nobody can, of any letter here."""
        actor.needs("edit", "change messages")
        try:
            check_edit(edit, bytes_max=self.options.edited_bytes_max)
        except EditError as error:
            raise BadRequest(str(error), error.remedy) from None
        if "reveal" not in actor.scopes and reads_secrets(self._masker, edit):
            actor.needs("reveal", "test, copy or move what is masked")
        await self._need_states()
        await self._need(self._without_revisions)

    def _without_revisions(self, tables: DeskTables) -> NotRecorded | None:
        if tables.revision is not None:
            return None
        return NotRecorded(
            "there is no revision table: messages cannot be edited",
            f"{self.print_command} prints the SQL that adds it",
        )

    async def _to_edit(self, letter_id: int) -> tuple[LetterView, Revision | None]:
        ids = self._ids([letter_id])
        async with self._reading() as at:
            found = await reading.letters(*at, ids)
            if not found:
                raise not_found(letter_id)
            revised = [letter_id] if found[0].revision else []
            bases = await reading.newest_revisions(*at, revised)
        return found[0], bases.get(letter_id)

    async def _drafts(
        self, ids: Sequence[int], edit: Edit, *, original: bool, shows: int
    ) -> Mapping[int, Draft | NoDraft]:
        """A draft for each letter that can be replayed now; the first of them `shows` a diff."""
        async with self._reading() as at:
            letters = await reading.letters(*at, ids)
            revised = [letter.id for letter in letters if letter.revision and not original]
            bases = await reading.newest_revisions(*at, revised)
        drafts: dict[int, Draft | NoDraft] = {}
        size = 0
        for letter in sorted(letters, key=lambda one: one.id):
            if isinstance(transition("replay", letter), Denial):
                continue
            # the original is a base of its own: no revision is asked for
            seen = replace(letter, revision=None) if original else letter
            draft = await self._draft(seen, bases.get(letter.id), edit, shows=len(drafts) < shows)
            if isinstance(draft, Draft):
                draft = replace(draft, etag=etag_of(letter))
                size += len(draft.payload)
                if drafts and size > DRAFTS_BYTES_MAX:
                    size -= len(draft.payload)
                    draft = NoDraft("the edited bodies are too large together", "replay it alone")
            drafts[letter.id] = draft
        return drafts

    async def _draft(
        self, letter: LetterView, base: Revision | None, edit: Edit, *, shows: bool
    ) -> Draft | NoDraft:
        if letter.revision and base is None:
            return NoDraft(
                f"revision {letter.revision} of dead letter {letter.id} is not there",
                "replay the message as it first was, with --original",
            )
        stored: Any = letter.headers if base is None else base.headers
        payload = letter.payload if base is None else base.payload
        all_headers = dict(stored) if isinstance(stored, Mapping) else {}
        before = Message(bytes(payload or b""), envelope.visible(all_headers))
        reserved = {name: all_headers[name] for name in all_headers.keys() - before.headers.keys()}
        limits = Limits(self.options.edited_bytes_max, self.options.transform_seconds)
        try:
            after = await mended(edit, before, limits)
        except EditError as error:
            return NoDraft(self._redaction.value(str(error)), error.remedy)
        changes = after != before
        diff: tuple[str, ...] = ()
        if shows and changes:
            given = (self._redaction, self._masker, before, after)
            diff = await aside(before.payload, shown_diff, *given)
        warnings = header_warnings(before.headers, edit)
        if edit.not_idempotent and changes:
            warnings.append("whether the edit is idempotent was not looked at")
        if shows and changes and not diff:
            warnings.append("what changes is masked")
        name, digest = made_by(edit)
        number = base.revision if base else 0
        detail = detail_of(edit)
        return Draft(
            etag_of(letter),
            number,
            after.payload,
            {**after.headers, **reserved},
            changes,
            name,
            digest,
            detail,
            diff,
            tuple(warnings),
        )


def _conflict(letter_id: int) -> EditConflict:
    return EditConflict(
        f"dead letter {letter_id} has changed meanwhile: nothing was written",
        f"look again: outlast dlq inspect {letter_id}",
    )
