"""The verbs on live rows: outbox list, inspect, cancel, run-now.

In: the shared options and those of the verb. Out: an exit status. Looking changes no row.
"""

import json
from collections.abc import Sequence

from outlast.cli.asking import Asked, Wanted
from outlast.cli.frame import DONE, FAILED, ids_of, one_id, query_of, run, show
from outlast.cli.paper import print_grid, say, second, tell, when
from outlast.ops import Actor, Desk, LetterNotFound

_CANCELLED = {
    "cancelled": "Cancelled message '{row}' of stream '{queue}'.",
    "recalled": "Took back message '{row}' of stream '{queue}': DLQ message '{letter}' is open.",
}


def list_outbox(asked: Asked, wanted: Wanted, limit: int, after: int) -> int:
    """Live rows by id."""

    async def body(desk: Desk, actor: Actor) -> int:
        query = query_of(wanted, rows=True)
        page = await desk.outbox_list(actor, query, limit=limit, after=after)
        if asked.json:
            show(page.as_json())
            return DONE
        if page.looked_at is not None:
            tell(f"looked at {page.looked_at:,} messages; to go on: --after {page.after}")
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
                second(row.next_attempt_at),
            ]
            for row in page.rows
        ]
        print_grid(headers, cells, cut=(1,), right=(3, 4))
        if page.after is not None and page.looked_at is None:
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


def run_rows(asked: Asked, texts: Sequence[str]) -> int:
    """Rows that wait for their time."""

    async def body(desk: Desk, actor: Actor) -> int:
        ids, others = ids_of(texts)
        answers = await desk.outbox_run_now(actor, ids)
        lost = [*others, *(str(i) for i in dict.fromkeys(ids) if not answers.get(i))]
        if asked.json:
            due = [{"row_id": i, "outcome": "due"} for i, is_due in answers.items() if is_due]
            bad = [{"row_id": text, "outcome": "not_waiting"} for text in lost]
            show({"results": [*due, *bad]})
        else:
            for row_id, is_due in answers.items():
                if is_due:
                    say(f"Message '{row_id}' is due now.")
        for text in lost:
            tell(f"Message '{text}' is not run: it is gone, or in a worker's hands")
        return FAILED if lost else DONE

    return run(asked, body)
