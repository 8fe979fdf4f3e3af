"""`dlq edit`: another body, other headers, as a revision. The message as it was stays.

In: the shared options and those of the verb. Out: an exit status. With no change given and a
terminal to sit at, $EDITOR opens on the payload.
"""

import json
import sys
from typing import NamedTuple

from outlast.cli.asking import Asked, Mending
from outlast.cli.editor import EditedFile
from outlast.cli.frame import DONE, one_id, run, show
from outlast.cli.known import not_found
from outlast.cli.mending import edit_of
from outlast.cli.paper import say, tell
from outlast.model.edit import Edit
from outlast.model.errors import OutlastError
from outlast.ops import Actor, BadRequest, Desk, LetterNotFound
from outlast.ops.editing import EditResult
from outlast.ops.redaction import ShownPayload
from outlast.policy.masking import MASK

_SUFFIXES = {"json": ".json", "text": ".txt"}


class Rewriting(NamedTuple):
    """How an edit is meant, as it was typed."""

    payload: str | None
    mending: Mending
    reveal: bool
    reason: str | None
    dry_run: bool


def edit_letter(asked: Asked, text: str, way: Rewriting) -> int:
    """One letter gets a revision."""

    async def body(desk: Desk, actor: Actor) -> int:
        edit = edit_of(way.mending, way.payload)
        try:
            if edit is None:
                return await _by_hand(asked, desk, actor, text, way)
            done = await desk.edit(
                actor, one_id(text), edit, reason=way.reason, dry_run=way.dry_run
            )
        except LetterNotFound:
            raise await not_found(desk, actor, text) from None
        return _told(asked, done, way)

    return run(asked, body)


async def _by_hand(asked: Asked, desk: Desk, actor: Actor, text: str, way: Rewriting) -> int:
    """Show the newest payload in an editor, and take what is saved."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadRequest(
            "no change is given, and there is no terminal for an editor",
            "say --payload, --patch, --transform, --header or --unset-header",
        )
    detail = await desk.inspect(actor, one_id(text), reveal=way.reveal)
    revisions = detail.revisions or ()
    shown = max(revisions, key=lambda r: r.revision).payload if revisions else detail.payload
    if shown.kind == "hex" or shown.is_cut:
        what = "is no text" if shown.kind == "hex" else "is too large for an editor"
        raise BadRequest(f"the payload of message '{text}' {what}", "give it with --payload FILE")
    with EditedFile(shown.text, _SUFFIXES[shown.kind]) as file:
        saved = file.edited()
        if saved is None:
            return _nothing(asked)
        try:
            _check(saved, shown)
            done = await desk.edit(
                actor,
                one_id(text),
                Edit(payload=saved),
                expected=detail.etag,
                reason=way.reason,
                dry_run=way.dry_run,
            )
        except OutlastError as error:
            error.add_note(f"what was saved is kept in {file.keep()}")
            raise
    return _told(asked, done, way)


def _nothing(asked: Asked) -> int:
    if asked.json:
        show({"edited": False})
    else:
        say("Nothing was changed.")
    return DONE


def _check(saved: bytes, shown: ShownPayload) -> None:
    """Refuse what nobody can mean: a mask in place of a secret, JSON that is none any more."""
    if shown.masked and MASK.encode() in saved:
        raise BadRequest(
            f"what was saved has a mask ({MASK}) where a secret was",
            "--reveal shows the secret (this is recorded); --patch changes one value only",
        )
    if shown.kind != "json":
        return
    try:
        json.loads(saved)
    except (ValueError, RecursionError) as error:
        raise BadRequest(
            f"what was saved is no JSON: {error}", "--payload FILE takes any bytes"
        ) from None


def _told(asked: Asked, done: EditResult, way: Rewriting) -> int:
    if asked.json:
        show(done.as_json())
    else:
        for line in done.diff:
            say(line)
        if not done.changed:
            say("Nothing was changed.")
        elif way.dry_run:
            say(f"Would edit message '{done.dlq_id}': revision {done.revision}.")
        else:
            say(f"Edited message '{done.dlq_id}': revision {done.revision}.")
            tell(f"to replay: outlast dlq replay {done.dlq_id}")
    for warning in done.warnings:
        tell(f"warning for message '{done.dlq_id}': {warning}")
    return DONE
