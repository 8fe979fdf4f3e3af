"""The verbs that look at dead letters: list, inspect, history, groups, stats.

In: the shared options and those of the verb. Out: an exit status. Nothing is changed here.
"""

import contextlib
import difflib
import json
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from outlast.cli.asking import Asked, Wanted
from outlast.cli.frame import DONE, one_id, query_of, run, show
from outlast.cli.known import need_known, not_found
from outlast.cli.paper import NOT_RECORDED, print_grid, say, second, span, tell, when
from outlast.model.errors import StoreFailure
from outlast.model.letter_view import LetterView
from outlast.ops import Actor, Desk, LetterNotFound, NotRecorded
from outlast.ops.views import LetterDetail, LetterPage, RevisionShown, history_json, stats_json
from outlast.policy.filter_text import render

BY_PRODUCER = f"{NOT_RECORDED} by producer"
_NONE_SO_FAR = "No DLQ messages found so far; there are more to look at."

HEADERS = (*("DLQ ID", "Subscription", "Consumer Group", "Failure Reason", "Failed At", "Retries"),)


def list_letters(asked: Asked, wanted: Wanted, limit: int, after: str | None, wide: bool) -> int:
    """Newest failure first."""

    async def body(desk: Desk, actor: Actor) -> int:
        page = await desk.list(actor, query_of(wanted), limit=limit, after=after)
        if not page.total:
            await need_known(asked, desk, actor, wanted)
        if asked.json:
            show(page.as_json())
        else:
            _print_page(page, is_first=after is None, wide=wide)
        for note in page.notes:
            tell(note)
        return DONE

    return run(asked, body)


def _print_page(page: LetterPage, *, is_first: bool, wide: bool) -> None:
    if not page.letters:
        say("No DLQ messages found." if page.cursor is None else _NONE_SO_FAR)
        _tell_more(page.cursor)
        return
    print_grid(
        HEADERS, [_row(letter) for letter in page.letters], cut=(3, 2, 1), right=(5,), wide=wide
    )
    say()
    say(f"{page.total}{'+' if page.at_least else ''} DLQ message(s) found.")
    if page.more or not is_first:
        order = "the newest" if is_first else "the next"
        say(f"Showing {order} {len(page.letters)} (--limit, --after).")
    _tell_more(page.cursor)
    if page.causes is not None:
        causes, letters = page.causes
        verb = "cause makes" if causes == 1 else "causes make"
        tell(f"{causes} {verb} up {letters} of these: outlast dlq groups")


def _tell_more(cursor: str | None) -> None:
    if cursor is not None:
        tell(f"to go on: --after {cursor}")


def _row(letter: LetterView) -> list[str]:
    return [
        str(letter.id),
        letter.queue,
        letter.subscriber or NOT_RECORDED,
        letter.failure,
        second(letter.latest_failure_at),
        "-" if letter.retry_count is None else str(letter.retry_count),
    ]


def inspect_letter(asked: Asked, text: str, *, reveal: bool) -> int:
    """Everything about one letter."""

    async def body(desk: Desk, actor: Actor) -> int:
        try:
            detail = await desk.inspect(actor, one_id(text), reveal=reveal)
            if detail.outcome_unknown:
                # whoever may look and not write is told so by the letter's note
                with contextlib.suppress(StoreFailure, NotRecorded):
                    if await desk.reconcile(actor, [one_id(text)]):
                        detail = await desk.inspect(actor, one_id(text), reveal=reveal)
        except LetterNotFound:
            raise await not_found(desk, actor, text) from None
        if asked.json:
            show(detail.as_json())
        else:
            _print_detail(detail)
        return DONE

    return run(asked, body)


def inspect_some(asked: Asked, wanted: Wanted, limit: int, *, reveal: bool) -> int:
    """The newest letters with their bodies, in short."""

    async def body(desk: Desk, actor: Actor) -> int:
        query = query_of(wanted)
        page = await desk.list(actor, query, limit=limit)
        if not page.total:
            await need_known(asked, desk, actor, wanted)
        details = []
        for letter in page.letters:
            # a letter that is gone since is none of the list's any more
            with contextlib.suppress(LetterNotFound):
                details.append(await desk.inspect(actor, letter.id, reveal=reveal))
        if asked.json:
            items = [detail.as_json() for detail in details]
            show(page.as_json() | {"items": items})
            return DONE
        if not details:
            say("No DLQ messages found." if page.cursor is None else _NONE_SO_FAR)
        for detail in details:
            letter = detail.letter
            _print_fields(
                ("Message ID", letter.message_id),
                ("Failed at", when(letter.latest_failure_at)),
                ("Reason", letter.failure),
                ("Retry count", letter.retry_count),
                ("DLQ ID", letter.id),
            )
            say(f"Body: {detail.payload.text}", lines=True)
            say("---")
        if page.cursor is not None:
            words = f" {shlex.quote(render(query))}" if query.words else ""
            tell(f"to go on: outlast dlq list{words} --limit {limit} --after {page.cursor}")
        for note in page.notes:
            tell(note)
        return DONE

    return run(asked, body)


def _print_detail(detail: LetterDetail) -> None:
    letter = detail.letter
    _print_fields(
        ("DLQ ID", letter.id),
        ("Original ID", letter.original_id),
        ("Stream", letter.queue),
        ("Consumer Group", letter.subscriber),
        ("DLQ Stream", letter.dlq_stream),
        ("Failure Reason", letter.failure_reason),
        ("Failed At", when(letter.latest_failure_at)),
        ("Retry Count", letter.retry_count),
    )
    say()
    _print_fields(
        ("State", letter.state),
        ("Error", letter.error),
        ("Category", letter.failure_category),
        ("Message ID", letter.message_id),
        ("Event Type", letter.event_type),
        ("Fingerprint", letter.fingerprint),
        ("Attempts", letter.attempts_count),
        ("Deliveries", letter.total_deliveries),
        ("Replays", letter.replay_count),
        ("First Failure", when(letter.first_failure_at)),
        ("Last Failure", when(letter.last_failure_at)),
        ("Bouncing For", _span_of(letter.bouncing_for)),
        ("Time To Terminal Failure", _span_of(letter.time_to_terminal_failure)),
        ("Version", letter.consumer_version),
        ("Instance", letter.consumer_instance),
    )
    given = (
        ("Owner", letter.owner),
        ("Triage", letter.triage),
        ("Resolution", letter.resolution),
        ("HTTP Status", letter.http_status),
        ("Timer ID", letter.timer_id),
        ("Purge After", None if letter.purge_after is None else when(letter.purge_after)),
    )
    _print_fields(*((name, value) for name, value in given if value is not None))
    if letter.stack_trace:
        _print_block("Traceback", letter.stack_trace)
    _print_block("Headers", _json(letter.headers or {}))
    _print_revisions(detail)
    say()
    say("History:")
    for line in _history_lines(detail.as_json()["history"]):
        say(f"  {line}")
    for note in detail.notes:
        say(f"Note: {note}")
    if detail.next_step:
        say()
        say(detail.next_step)
    say()
    cut = " (cut)" if detail.payload.is_cut else ""
    # a replay sends the newest revision: nobody must take this one for it
    first = ", as it first was" if detail.revisions else ""
    say(f"Payload{first}:{cut}")
    say(detail.payload.text, lines=True)


def _print_fields(*fields: tuple[str, Any]) -> None:
    for name, value in fields:
        is_told = value not in {None, NOT_RECORDED}
        say(f"{name}: {value if is_told else BY_PRODUCER}")


def _print_block(title: str, text: str) -> None:
    say()
    say(f"{title}:")
    say("\n".join(f"  {line}" for line in text.splitlines()), lines=True)


def _span_of(length: Any) -> str:
    return span(None if length is None else length.total_seconds())


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _print_revisions(detail: LetterDetail) -> None:
    seen: tuple[Any, str] = (detail.letter.headers, detail.payload.text)
    for revision in detail.revisions or ():
        title = f"Revision {revision.revision} by {revision.actor}, {when(revision.at)}"
        _print_block(title, "\n".join(_diff(seen, revision)) or "no difference that is shown")
        seen = (revision.headers, revision.payload.text)


def _diff(before: tuple[Any, str], revision: RevisionShown) -> Iterator[str]:
    for what, old, new in (
        ("headers", _json(before[0] or {}), _json(revision.headers or {})),
        ("payload", before[1], revision.payload.text),
    ):
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), what, what, "", "", 1, "")
        yield from lines


def history_of(asked: Asked, text: str) -> int:
    """What happened to a letter."""

    async def body(desk: Desk, actor: Actor) -> int:
        try:
            history = await desk.history(actor, one_id(text))
        except LetterNotFound:
            raise await not_found(desk, actor, text) from None
        items = None if history is None else [history_json(entry) for entry in history]
        if asked.json:
            show({"items": items, "total": len(history or ())})
            return DONE
        for line in _history_lines(items):
            say(line)
        return DONE

    return run(asked, body)


def _history_lines(history: Sequence[dict[str, Any]] | None) -> Iterator[str]:
    if history is None:
        yield NOT_RECORDED
        return
    for entry in history:
        reason = f": {entry['reason']}" if entry["reason"] else ""
        detail = f" {json.dumps(entry['detail'], ensure_ascii=False)}" if entry["detail"] else ""
        by = f" by {entry['actor']}" if entry["actor"] else ""
        yield f"{when(datetime.fromisoformat(entry['at']))}  {entry['kind']}{by}{reason}{detail}"
    if not history:
        yield "nothing happened to it here"


def groups_of(asked: Asked, wanted: Wanted, limit: int) -> int:
    """Letters by cause."""

    async def body(desk: Desk, actor: Actor) -> int:
        page = await desk.groups(actor, query_of(wanted), limit=limit)
        if not page.groups:
            await need_known(asked, desk, actor, wanted)
        document = page.as_json()
        _tell_notes(document)
        if asked.json:
            show(document)
            return DONE
        if not page.groups:
            say("No DLQ messages found.")
        for group, item in zip(page.groups, document["items"], strict=True):
            name = group.error_type or NOT_RECORDED
            example = f": {group.example}" if group.example else ""
            say(f"{group.count} of {group.failure_category or NOT_RECORDED} · {name}{example}")
            _print_group(item)
            say(f"  first seen {when(group.first_seen)}, last seen {when(group.last_seen)}")
            say(f"  outlast dlq list '{item['filter']}'")
            say()
        if page.more:
            say(f"Showing the largest {len(page.groups)} (--limit).")
        return DONE

    return run(asked, body)


def _tell_notes(document: dict[str, Any]) -> None:
    for note in document.get("notes", ()):
        tell(note)


def _print_group(item: dict[str, Any]) -> None:
    for name in ("queues", "subscribers", "versions"):
        say(f"  {name}: {', '.join(item[name]) or NOT_RECORDED}")
    say(f"  why one group: {item['why']}")


def stats_of(asked: Asked, wanted: Wanted) -> int:
    """Depth, ages and arrivals."""

    async def body(desk: Desk, actor: Actor) -> int:
        stats = await desk.stats(actor, query_of(wanted))
        if not stats.depth:
            await need_known(asked, desk, actor, wanted)
        document = stats_json(stats)
        _tell_notes(document)
        if asked.json:
            show(document)
            return DONE
        say(f"{stats.depth} DLQ message(s) found.")
        if stats.oldest_at is not None:
            say(f"The oldest failed {span(document['oldest_age_seconds'])} ago.")
        if document["queues"]:
            say()
            headers = ("Subscription", "Category", "Depth", "Oldest", "Last Hour", "Last Day")
            rows = [_stats_row(row) for row in document["queues"]]
            print_grid(headers, rows, cut=(0,), right=(2, 3, 4, 5))
        if stats.states:
            say()
            said = ", ".join(f"{state} {number}" for state, number in sorted(stats.states.items()))
            say(f"By state: {said}")
        return DONE

    return run(asked, body)


def _stats_row(row: dict[str, Any]) -> list[str]:
    age = row["oldest_age_seconds"]
    return [
        row["queue"],
        row["failure_category"] or NOT_RECORDED,
        str(row["depth"]),
        "-" if age is None else span(age),
        str(row["arrivals_hour"]),
        str(row["arrivals_day"]),
    ]
