"""The verbs that act on dead letters: replay, replay-all, purge, restore, mark.

In: the shared options and those of the verb. Out: the exit status that belongs to the result. What
acts on many asks first, and can be stopped between two chunks.
"""

import asyncio
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from outlast.cli.asking import Asked, Wanted
from outlast.cli.frame import DONE, FAILED, USAGE, Unanswered, failed, ids_of, query_of, run, show
from outlast.cli.outcomes import print_bulk_replay, print_change, print_replays, print_waited
from outlast.cli.paper import say, tell
from outlast.model.query import Query
from outlast.model.replay import BulkReplay
from outlast.ops import Actor, BadRequest, Desk
from outlast.ops.replaying import ReplayOptions
from outlast.ops.running import Interrupted
from outlast.ops.tally import BulkChange
from outlast.policy.filter_text import render
from outlast.policy.neutral_text import neutral_text

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
        )


class _Stopped(Exception):  # noqa: N818 - asked for, no error
    def __init__(self, done: Any) -> None:
        super().__init__()
        self.done = done


def replay_letters(asked: Asked, texts: Sequence[str], way: Way) -> int:
    """Letters by their ids."""

    async def body(desk: Desk, actor: Actor) -> int:
        wait = _seconds(way.wait)
        ids, others = ids_of(texts)
        await _tell_notes(desk)
        try:
            done = await desk.replay(actor, ids, way.options)
        except Interrupted as broken:
            return _broken(asked, broken, print_replays)
        return await _ended(asked, desk, actor, done, wait, print_replays, others)

    return run(asked, body)


def replay_selected(
    asked: Asked, wanted: Wanted, way: Way, *, everything: bool, yes: bool, rate: str | None
) -> int:
    """All that a filter takes."""

    async def body(desk: Desk, actor: Actor) -> int:
        wait, speed = _seconds(way.wait), _per_second(rate)
        query = query_of(wanted)
        plan = await desk.plan_replay(actor, query, way.options, everything=everything)
        if not plan.total:
            return _nothing(asked, print_bulk_replay, BulkReplay(left_out=plan.left_out))
        await _tell_notes(desk)
        if not way.options.dry_run:
            if plan.total > HINT_AT_RATE_FROM and speed is None:
                tell(f"{plan.total} letters at once: --rate 100/s spares who receives them")
            _confirm(yes, f"{plan.total} DLQ message(s).", f"Replay all DLQ messages{_of(query)}?")

        async def go(progress: Callable[[Any], None]) -> BulkReplay:
            done = await desk.replay_all(
                actor, None, way.options, cursor=plan.cursor, rate=speed, progress=progress
            )
            return replace(done, left_out=plan.left_out)

        try:
            done = await _stoppable(go, plan.total)
        except _Stopped as stop:
            return _stop(asked, replace(stop.done, left_out=plan.left_out), print_bulk_replay)
        except Interrupted as broken:
            return _broken(asked, broken, print_bulk_replay)
        return await _ended(asked, desk, actor, done, wait, print_bulk_replay, [])

    return run(asked, body)


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
        waited = await desk.wait_for_outcome(actor, sent, wait)
        done = waited.told_in(done)
        print_waited(waited, as_json=asked.json)
    if asked.json:
        show(_with_unknown(done.as_json(), unknown))
    for text in unknown:
        tell(f"DLQ message '{text}' not found.")
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
                _confirm(yes, None, f"Purge {count} DLQ message(s) by id? {warning}")
            changed = await desk.purge(actor, ids, reason=reason, hard=hard, dry_run=dry_run)
            return _changed(asked, changed, [])
        query = query_of(wanted)
        plan = await desk.plan_purge(actor, query, everything=everything)
        if not plan.total:
            return _nothing(asked, print_change, BulkChange("purged"))
        if not dry_run:
            _confirm(yes, None, f"Purge {plan.total} DLQ message(s){_of(query)}? {warning}")

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
            return _changed(asked, await _stoppable(go, plan.total), [])
        except _Stopped as stop:
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


def _changed(asked: Asked, result: BulkChange, unknown: Sequence[str]) -> int:
    if asked.json:
        show(_with_unknown(result.as_json(), unknown))
    else:
        print_change(result)
    for text in unknown:
        tell(f"DLQ message '{text}' not found.")
    return result.exit_code or (FAILED if unknown else DONE)


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


def _confirm(yes: bool, told: str | None, question: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Unanswered("there is no terminal to ask on: say --yes", USAGE)
    if told:
        tell(told)
    # the event loop would answer Ctrl-C by a cancellation that nothing here can see
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(f"{question} [y/N]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    finally:
        signal.signal(signal.SIGINT, before)
    if not answer:
        tell("")
        raise Unanswered("Aborted.", USAGE)
    if answer.strip().lower() not in {"y", "yes"}:
        raise Unanswered("Aborted.", FAILED)


def _of(query: Query) -> str:
    if query.is_empty:
        return ""
    word = query.words[0]
    is_alone = len(query.words) == len(word.alternatives) == 1
    if is_alone and word.name == "queue" and not word.negated:
        return neutral_text(f" for subscription '{word.alternatives[0].value}'")
    return neutral_text(f" for the filter '{render(query)}'")


async def _stoppable(go: Callable[[Callable[[Any], None]], Awaitable[Any]], total: int) -> Any:
    """Run to the end, or to the chunk after Ctrl-C; tell how far it is."""
    loop, asked_to_stop = asyncio.get_running_loop(), asyncio.Event()
    is_terminal = sys.stderr.isatty()

    def progress(done: Any) -> None:
        handled = _handled(done)
        if is_terminal and total > handled:
            sys.stderr.write(f"\r{handled} of {total}")
            sys.stderr.flush()
        elif handled < total:
            tell(f"{handled} of {total}")
        elif is_terminal:
            sys.stderr.write("\r\x1b[K")
        if asked_to_stop.is_set():
            raise _Stopped(done)

    loop.add_signal_handler(signal.SIGINT, asked_to_stop.set)
    try:
        return await go(progress)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _handled(done: BulkReplay | BulkChange) -> int:
    """Letters that got a result; the results themselves are kept for a part only."""
    if isinstance(done, BulkChange):
        return done.done + done.skipped + done.failed
    return done.replayed + done.skipped + done.failed + sum(kind.count for kind in done.refused)


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
