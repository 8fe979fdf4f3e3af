"""The verbs that act on dead letters: replay, replay-all, purge, restore, mark.

In: the shared options and those of the verb. Out: the exit status that belongs to the result. What
acts on many asks first, and can be stopped between two chunks.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from outlast.cli.asking import Asked, Mending, Wanted
from outlast.cli.frame import DONE, FAILED, failed, ids_of, query_of, run, show
from outlast.cli.known import need_known, what_became
from outlast.cli.mending import edit_of
from outlast.cli.outcomes import (
    LINES_MAX,
    print_bulk_replay,
    print_change,
    print_replays,
    print_waited,
)
from outlast.cli.paper import say, tell
from outlast.cli.progress import Stopped, stoppable
from outlast.cli.questions import confirm, scope_of
from outlast.model.replay import BulkReplay
from outlast.ops import Actor, BadRequest, Desk
from outlast.ops.replaying import ReplayOptions
from outlast.ops.running import Interrupted
from outlast.ops.tally import BulkChange

HINT_AT_RATE_FROM = 1000

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Way(NamedTuple):
    """How a replay is meant, as it was typed."""

    to: str | None
    original: bool
    dry_run: bool
    force: bool
    include_poison: bool
    reason: str | None
    wait: str | None
    mending: Mending

    @property
    def options(self) -> ReplayOptions:
        """Checked: what cannot be meant is refused here."""
        return ReplayOptions(
            to=self.to,
            original=self.original,
            dry_run=self.dry_run,
            force=self.force,
            reason=self.reason,
            include_poison=self.include_poison,
            edit=edit_of(self.mending),
        )


def replay_letters(asked: Asked, texts: Sequence[str], way: Way) -> int:
    """Letters by their ids."""

    async def body(desk: Desk, actor: Actor) -> int:
        wait, options = _seconds(way.wait), way.options
        ids, others = ids_of(texts)
        await _tell_notes(desk)
        try:
            done = await desk.replay(actor, ids, options)
        except Interrupted as broken:
            return _broken(asked, broken, print_replays)
        status = await _ended(asked, desk, actor, done, wait, print_replays, others)
        # each letter was meant, so one that somebody holds is not done
        return status or (FAILED if done.skipped else DONE)

    return run(asked, body, loads_app=True)


def replay_selected(
    asked: Asked, wanted: Wanted, way: Way, *, everything: bool, yes: bool, rate: str | None
) -> int:
    """All that a filter takes."""

    async def body(desk: Desk, actor: Actor) -> int:
        wait, speed, options = _seconds(way.wait), _per_second(rate), way.options
        query = query_of(wanted)
        plan = await desk.plan_replay(actor, query, options, everything=everything)
        if not plan.total:
            await need_known(asked, desk, actor, wanted)
            return _nothing(asked, print_bulk_replay, BulkReplay(left_out=plan.left_out))
        await _tell_notes(desk)
        if not options.dry_run:
            if plan.total > HINT_AT_RATE_FROM and speed is None:
                tell(f"{plan.total} letters at once: --rate 100/s spares who receives them")
            question = f"Replay all DLQ messages{scope_of(query)}?"
            confirm(question, yes=yes, told=f"{plan.total} DLQ message(s).")

        async def go(progress: Callable[[Any], None]) -> BulkReplay:
            done = await desk.replay_all(
                actor, None, options, cursor=plan.cursor, rate=speed, progress=progress
            )
            return replace(done, left_out=plan.left_out)

        try:
            done = await stoppable(go, plan.total)
        except Stopped as stop:
            return _stop(asked, replace(stop.done, left_out=plan.left_out), print_bulk_replay)
        except Interrupted as broken:
            return _broken(asked, broken, print_bulk_replay)
        status = await _ended(asked, desk, actor, done, wait, print_bulk_replay, [])
        if not options.dry_run:
            tell("DLQ replay complete")
        return status

    return run(asked, body, loads_app=True)


async def _ended(
    asked: Asked,
    desk: Desk,
    actor: Actor,
    done: BulkReplay,
    wait: float | None,
    printed: Callable[[Any], None],
    unknown: Sequence[str],
) -> int:
    sent = [result.dlq_id for result in done.results if result.outcome == "replayed"]
    if not asked.json:
        printed(done)
    if wait is not None and sent:
        try:
            waited = await desk.wait_for_outcome(actor, sent, wait)
        except asyncio.CancelledError:
            # Ctrl-C: what was sent is sent, and the document must say so
            if asked.json:
                show(_with_unknown(done.as_json(), unknown))
            raise
        done = waited.told_in(done)
        print_waited(waited, as_json=asked.json)
    if asked.json:
        show(_with_unknown(done.as_json(), unknown))
    for text in unknown:
        tell(f"DLQ message '{text}' not found.")
    for result in done.results[:LINES_MAX]:
        if result.outcome == "failed" and (result.reason or "").endswith("not found."):
            became = await what_became(desk, actor, str(result.dlq_id))
            if became:
                tell(f"  '{result.dlq_id}' was {became}")
    return done.exit_code or (FAILED if unknown else DONE)


def purge_letters(
    asked: Asked,
    wanted: Wanted,
    *,
    everything: bool,
    yes: bool,
    hard: bool,
    dry_run: bool,
    reason: str | None,
) -> int:
    """By ids or by filter; kept for a while unless `hard`."""

    async def body(desk: Desk, actor: Actor) -> int:
        ids, others = ids_of(wanted.words)
        if ids and (others or wanted.has_options or everything):
            raise BadRequest("purge takes ids or a filter, not both", "an id in a filter is id:17")
        until = datetime.now(UTC) + timedelta(seconds=desk.options.keep_discarded_seconds)
        end = "" if hard else f" after {until:%Y-%m-%d %H:%M} UTC"
        warning = f"This cannot be undone{end}."
        await _tell_notes(desk)
        if ids:
            if not dry_run:
                count = len(set(ids))
                confirm(f"Purge {count} DLQ message(s) by id? {warning}", yes=yes)
            changed = await desk.purge(actor, ids, reason=reason, hard=hard, dry_run=dry_run)
            return _changed(asked, changed, [])
        query = query_of(wanted)
        plan = await desk.plan_purge(
            actor, query, reason=reason, dry_run=dry_run, everything=everything
        )
        if not plan.total:
            await need_known(asked, desk, actor, wanted)
            return _nothing(asked, print_change, BulkChange("purged"))
        if not dry_run:
            question = f"Purge {plan.total} DLQ message(s){scope_of(query)}? {warning}"
            confirm(question, yes=yes)

        async def go(progress: Callable[[Any], None]) -> BulkChange:
            return await desk.purge_all(
                actor,
                reason=reason,
                hard=hard,
                dry_run=dry_run,
                cursor=plan.cursor,
                progress=progress,
            )

        try:
            return _changed(asked, await stoppable(go, plan.total), [], named=False)
        except Stopped as stop:
            return _stop(asked, stop.done, print_change)
        except Interrupted as broken:
            return _broken(asked, broken, print_change)

    return run(asked, body)


def restore_letters(asked: Asked, texts: Sequence[str], reason: str | None) -> int:
    """Purged letters are open again."""

    async def body(desk: Desk, actor: Actor) -> int:
        ids, others = ids_of(texts)
        await _tell_notes(desk)
        return _changed(asked, await desk.restore(actor, ids, reason=reason), others)

    return run(asked, body)


def mark_letters(asked: Asked, texts: Sequence[str], **marks: Any) -> int:
    """Open again, for review, an owner, a cause, a note."""

    async def body(desk: Desk, actor: Actor) -> int:
        ids, others = ids_of(texts)
        await _tell_notes(desk)
        return _changed(asked, await desk.mark(actor, ids, **marks), others)

    return run(asked, body)


def _changed(
    asked: Asked, result: BulkChange, unknown: Sequence[str], *, named: bool = True
) -> int:
    """`named`: each letter was meant, so one that somebody holds is not done."""
    if asked.json:
        show(_with_unknown(result.as_json(), unknown))
    else:
        print_change(result)
    for text in unknown:
        tell(f"DLQ message '{text}' not found.")
    return result.exit_code or (FAILED if unknown or (named and result.skipped) else DONE)


def _with_unknown(document: dict[str, Any], unknown: Sequence[str]) -> dict[str, Any]:
    for text in unknown:
        reason = f"DLQ message '{text}' not found."
        document["results"].append({"dlq_id": text, "outcome": "failed", "reason": reason})
    document["failed"] += len(unknown)
    return document


def _nothing(asked: Asked, printed: Callable[[Any], None], empty: Any) -> int:
    if asked.json:
        show(empty.as_json())
    else:
        say("No DLQ messages found.")
        if isinstance(empty, BulkReplay):
            printed(empty)
    return DONE


def _stop(asked: Asked, done: Any, printed: Callable[[Any], None]) -> int:
    if asked.json:
        show(done.as_json() | {"stopped": True})
    else:
        printed(done)
    tell("Stopped. What is done is not undone; the same command goes on with the rest.")
    return FAILED


def _broken(asked: Asked, broken: Interrupted, printed: Callable[[Any], None]) -> int:
    done: Any = broken.done
    if not asked.json:
        printed(done)
    return failed(asked, broken, done.as_json())


async def _tell_notes(desk: Desk) -> None:
    """That nothing is recorded is said before somebody acts."""
    notes = await desk.notes()
    if notes:
        tell("; ".join(notes))


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if found is None:
        raise BadRequest(f"--wait takes a time such as 30s or 10m, got {text!r}")
    return float(found[1]) * _UNITS[found[2] or "s"]


def _per_second(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(?:/s)?", text)
    if found is None or not float(found[1]):
        raise BadRequest(f"--rate takes letters a second such as 50/s, got {text!r}")
    return float(found[1])
