"""The verbs on live rows and workers: outbox list, inspect, cancel; workers list.

In: the shared options and those of the verb. Out: an exit status. Looking changes no row.
"""

import json
from collections.abc import Sequence

from outlast.cli.asking import Asked
from outlast.cli.frame import DONE, FAILED, ids_of, one_id, run, show
from outlast.cli.paper import NOT_RECORDED, minute, print_grid, say, tell, when
from outlast.ops import Actor, Desk, LetterNotFound
from outlast.ops.views import iso

_CANCELLED = {
    "cancelled": "Cancelled message '{row}' of stream '{queue}'.",
    "recalled": "Took back message '{row}' of stream '{queue}': DLQ message '{letter}' is open.",
}


def list_outbox(asked: Asked, queue: str | None, limit: int, after: int) -> int:
    """Live rows by id."""

    async def body(desk: Desk, actor: Actor) -> int:
        page = await desk.outbox_list(actor, queue=queue, limit=limit, after=after)
        if asked.json:
            show(page.as_json())
            return DONE
        if not page.rows:
            say("No outbox messages found.")
            return DONE
        headers = ("ID", "Queue", "State", "Attempts", "Deliveries", "Next Attempt")
        cells = [
            [
                str(row.id),
                row.queue,
                row.state,
                str(row.attempts_count),
                str(row.deliveries_count),
                minute(row.next_attempt_at),
            ]
            for row in page.rows
        ]
        print_grid(headers, cells, cut=(1,))
        if page.after is not None:
            tell(f"to go on: --after {page.after}")
        return DONE

    return run(asked, body)


def inspect_row(asked: Asked, text: str) -> int:
    """One live row with its body."""

    async def body(desk: Desk, actor: Actor) -> int:
        try:
            detail = await desk.outbox_inspect(actor, one_id(text))
        except LetterNotFound as error:
            if one_id(text):
                raise
            raise LetterNotFound(f"'{text}' is no id of an outbox row", error.remedy) from None
        if asked.json:
            show(detail.as_json())
            return DONE
        row = detail.row
        for name, value in (
            ("ID", row.id),
            ("Queue", row.queue),
            ("State", row.state),
            ("Message ID", row.message_id),
            ("Timer ID", row.timer_id or "none"),
            ("Replay Of", row.letter_id or "none"),
            ("Attempts", row.attempts_count),
            ("Deliveries", row.deliveries_count),
            ("Created At", when(row.created_at)),
            ("Next Attempt", when(row.next_attempt_at)),
        ):
            say(f"{name}: {value}")
        say()
        say("Headers:")
        say(json.dumps(detail.headers or {}, indent=2, ensure_ascii=False), lines=True)
        say()
        say("Payload:")
        say(detail.payload.text, lines=True)
        return DONE

    return run(asked, body)


def cancel_rows(asked: Asked, texts: Sequence[str], reason: str | None) -> int:
    """Rows that no worker holds."""

    async def body(desk: Desk, actor: Actor) -> int:
        ids, others = ids_of(texts)
        answers = await desk.outbox_cancel(actor, ids, reason=reason)
        answered = {answer.row_id for answer in answers}
        unknown = [*others, *(str(i) for i in dict.fromkeys(ids) if i not in answered)]
        is_done = not unknown
        if asked.json:
            lost = [{"row_id": text, "outcome": "not_found"} for text in unknown]
            show({"results": [*(answer.as_json() for answer in answers), *lost]})
        for answer in answers:
            form = _CANCELLED.get(answer.outcome)
            if form is None:
                is_done = False
                why = answer.reason or answer.outcome.replace("_", " ")
                tell(f"Message '{answer.row_id}' is not cancelled: {why}")
            elif not asked.json:
                say(form.format(row=answer.row_id, queue=answer.queue, letter=answer.dlq_id))
        for text in unknown:
            tell(f"Message '{text}' is not cancelled: not found")
        return DONE if is_done else FAILED

    return run(asked, body)


def print_workers(asked: Asked) -> int:
    """Who was seen, when, with which version and queues."""

    async def body(desk: Desk, actor: Actor) -> int:
        seen = await desk.workers(actor)
        if asked.json:
            items = [
                {
                    "instance": worker.instance,
                    "version": worker.version,
                    "queues": sorted(worker.queues),
                    "started_at": iso(worker.started_at),
                    "seen_at": iso(worker.seen_at),
                }
                for worker in seen or ()
            ]
            show({"items": items, "total": len(items), "recorded": seen is not None})
        elif seen is None:
            say(NOT_RECORDED)
            tell("there is no worker table: which workers run is not recorded")
        elif not seen:
            say("No workers found.")
        else:
            cells = [
                [
                    worker.instance,
                    worker.version or NOT_RECORDED,
                    minute(worker.started_at),
                    minute(worker.seen_at),
                    ", ".join(sorted(worker.queues)),
                ]
                for worker in seen
            ]
            headers = ("Instance", "Version", "Started At", "Seen At", "Queues")
            print_grid(headers, cells, cut=(4, 1))
        return DONE

    return run(asked, body)
