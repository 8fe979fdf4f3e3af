"""Looking at letters: list, count, groups, stats, one letter whole, its history.

In: an actor who may inspect. Out: masked values. Nothing is written, but that somebody was shown a
secret: that is recorded before it is shown.
"""

from dataclasses import replace

from outlast.model.letter_view import LetterView
from outlast.model.query import REPLAYING, STATES, Query
from outlast.ops import cursors
from outlast.ops.actor import Actor
from outlast.ops.context import At, DeskContext
from outlast.ops.refusals import BadRequest, not_found
from outlast.ops.views import GroupPage, LetterDetail, LetterPage, RevisionShown, looked_note
from outlast.stores.desk import numbers, reading
from outlast.stores.desk.history import Entry, tell
from outlast.stores.desk.numbers import Stats
from outlast.stores.desk.orphans import PASS_MAX, orphans
from outlast.stores.desk.reading import HistoryEntry, Page, Revision
from outlast.stores.desk.selection import Selection, selection

LIST_DEFAULT = 100
HINT_FROM = 20
"""Longer lists say how few causes they have."""

GROUPS_MAX = 1000


class Looking(DeskContext):
    """The reading half of the desk."""

    async def list(
        self,
        actor: Actor,
        query: Query | None = None,
        *,
        limit: int = LIST_DEFAULT,
        after: str | None = None,
        offset: int = 0,
    ) -> LetterPage:
        """Newest failure first. `after` is the cursor of the page before."""
        actor.needs("inspect", "look at dead letters")
        asked = query or Query()
        if not 1 <= limit <= self.options.list_max:
            raise BadRequest(f"limit is 1 to {self.options.list_max}, got {limit}")
        if not 0 <= offset <= self.options.offset_max:
            raise BadRequest(
                f"offset is 0 to {self.options.offset_max}, got {offset}", "go on with the cursor"
            )
        place = None if after is None else cursors.place_of(after)
        async with self._reading() as at:
            chosen = await selection(*at, asked, is_list=True)
            found = await reading.page(at.connection, chosen, limit, place, offset)
            causes = None
            if found.total > HINT_FROM:
                causes = await reading.causes(at.connection, chosen)
            unknown = await orphans(*at)
        return LetterPage(
            tuple(self._redaction.listed(letter) for letter in found.letters),
            found.total,
            found.at_least,
            found.more,
            cursors.of_place(found.last) if found.more and found.last else None,
            causes,
            found.looked_at,
            found.looked_of,
            _list_notes(found, chosen, len(unknown)),
        )

    async def count(self, actor: Actor, query: Query | None = None) -> int:
        """How many match, exactly; header and body words look at the newest 10,000."""
        actor.needs("inspect", "look at dead letters")
        async with self._reading() as at:
            return await reading.count(at.connection, await selection(*at, query or Query()))

    async def groups(
        self, actor: Actor, query: Query | None = None, *, limit: int = 50
    ) -> GroupPage:
        """Letters by cause, the commonest first."""
        actor.needs("inspect", "look at dead letters")
        if not 1 <= limit <= GROUPS_MAX:
            raise BadRequest(f"limit is 1 to {GROUPS_MAX}, got {limit}")
        async with self._reading() as at:
            chosen = await selection(*at, query or Query())
            found, total, looked = await numbers.groups(at.connection, chosen, limit)
        shown = tuple(
            replace(group, example=self._redaction.value(group.example)) for group in found
        )
        return GroupPage(shown, total, looked)

    async def stats(self, actor: Actor, query: Query | None = None) -> Stats:
        """Depth, ages, arrivals and causes."""
        actor.needs("inspect", "look at dead letters")
        asked = query or Query()
        async with self._reading() as at:
            chosen = await selection(*at, asked, states=STATES)
            return await numbers.stats(at.connection, chosen, asked.states)

    async def inspect(
        self, actor: Actor, letter_id: int, *, reveal: bool = False, reason: str | None = None
    ) -> LetterDetail:
        """One letter in any state. `reveal` needs its scope and is recorded."""
        actor.needs("inspect", "look at dead letters")
        if reveal:
            actor.needs("reveal", "see what is masked")
        ids = self._ids([letter_id])
        async with self._reading() as at:
            found = await reading.letters(*at, ids)
            if not found:
                raise not_found(letter_id)
            letter = found[0]
            keeps_record = at.tables.history is not None
        if reveal and keeps_record:
            act = self._act(actor, reason)
            async with self._writing() as at:
                await tell(*at, act, [Entry(letter.id, "revealed")])
        async with self._reading() as at:
            return await self._detail(at, letter, reveal=reveal)

    async def history(self, actor: Actor, letter_id: int) -> tuple[HistoryEntry, ...] | None:
        """What happened to a letter, also to one that is gone; None: not recorded."""
        actor.needs("inspect", "look at dead letters")
        ids = self._ids([letter_id])
        async with self._reading() as at:
            found = await reading.history(*at, letter_id) if ids else ()
            if not found and not await reading.letters(*at, ids, heavy=False):
                raise not_found(letter_id)
        return found and tuple(self._entry(entry) for entry in found)

    async def _detail(self, at: At, letter: LetterView, *, reveal: bool) -> LetterDetail:
        history = await reading.history(*at, letter.id)
        revisions: list[RevisionShown] | None = None
        if at.tables.revision is not None:
            made = reading.revisions(at.connection, at.tables.revision, letter.id)
            revisions = [self._revision(revision, reveal) async for revision in made]
        lost = letter.state == REPLAYING and bool(await orphans(*at, ids=[letter.id]))
        body = letter.payload or b""
        headers = self._redaction.headers(letter.headers)
        shown = self._redaction.whole(letter)
        if reveal:
            shown = replace(letter, payload=None)
        notes = []
        if lost:
            notes.append("the row of its replay is gone: how it ended is not known yet")
        if at.tables.missing:
            notes.append(f"not recorded by this table: {', '.join(at.tables.missing)}")
        return LetterDetail(
            shown,
            self._redaction.payload(body, reveal=reveal),
            headers.masked and not reveal,
            None if history is None else tuple(self._entry(entry) for entry in history),
            None if revisions is None else tuple(revisions),
            reveal,
            lost,
            body if reveal else None,
            tuple(notes),
        )

    def _entry(self, entry: HistoryEntry) -> HistoryEntry:
        value = self._redaction.value
        return replace(entry, reason=value(entry.reason), detail=value(entry.detail))

    def _revision(self, made: Revision, reveal: bool) -> RevisionShown:
        headers = made.headers if reveal else self._redaction.headers(made.headers).value
        return RevisionShown(
            made.revision,
            made.at,
            made.actor,
            made.transform,
            made.digest,
            self._redaction.value(made.reason),
            headers,
            self._redaction.payload(made.payload, reveal=reveal),
        )


def _list_notes(found: Page, chosen: Selection, unknown: int) -> tuple[str, ...]:
    notes = [f"this table does not record what {name}: asks for" for name in chosen.unrecorded]
    if found.looked_at is not None:
        notes.append(looked_note(found.looked_at, found.looked_of))
    if unknown:
        least = "at least " if unknown >= PASS_MAX else ""
        word = "replay" if unknown == 1 else "replays"
        notes.append(f"{least}{unknown} {word} of unknown outcome")
    return tuple(notes)
