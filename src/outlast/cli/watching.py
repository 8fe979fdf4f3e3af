"""Who works, and on what: workers list, subscriptions list.

In: the shared options. Out: an exit status. Nothing is changed here.
"""

from typing import Any

from outlast.cli.asking import Asked
from outlast.cli.frame import DONE, run, show
from outlast.cli.paper import NOT_RECORDED, print_grid, say, span, tell
from outlast.model.replay import WorkerSeen
from outlast.ops import Actor, Desk
from outlast.ops.subscriptions import SubscriptionRow
from outlast.ops.views import worker_json

_NO_WORKERS = "there is no worker table: which workers run is not recorded"


def print_workers(asked: Asked) -> int:
    """Who was seen, whether it lives, with which version, queues and bounds."""

    async def body(desk: Desk, actor: Actor) -> int:
        seen = await desk.workers(actor)
        items = [worker_json(worker) for worker in seen or ()]
        if asked.json:
            show({"items": items, "total": len(items), "recorded": seen is not None})
        elif seen is None:
            say(NOT_RECORDED)
            tell(_NO_WORKERS)
        elif not seen:
            say("No workers found.")
        else:
            headers = (
                *("Instance", "Version", "State", "Seen", "Started", "Lease", "Slots"),
                *("p50", "p99", "Queues"),
            )
            cells = [_worker_row(*both) for both in zip(seen, items, strict=True)]
            print_grid(headers, cells, cut=(9, 1, 0), right=(5, 6, 7, 8))
            live = sum(item["live"] for item in items)
            say()
            say(f"{len(items)} worker(s) found, {live} of them live.")
        return DONE

    return run(asked, body)


def _worker_row(worker: WorkerSeen, item: dict[str, Any]) -> list[str]:
    state = "live" if item["live"] else "stopped" if worker.stopped else "not live"
    silent = item["silent_for_seconds"]
    before = (worker.seen_at - worker.started_at).total_seconds()
    return [
        worker.instance,
        worker.version or NOT_RECORDED,
        state,
        _ago(silent),
        _ago(None if silent is None else silent + before),
        _told(item["lease"], "s"),
        _told(item["max_workers"]),
        _length(item["p50"]),
        _length(item["p99"]),
        ", ".join(sorted(worker.queues)),
    ]


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{span(round(seconds))} ago"


def _told(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.3g}{unit}"


def _length(seconds: float | None) -> str:
    """How long a handler took, in five characters where it can be."""
    if seconds is None or seconds >= 1:
        return _told(seconds, "s")
    thousandths = seconds * 1000
    return f"{thousandths:.0f}ms" if thousandths >= 1 else f"{thousandths:.1f}ms"


def print_subscriptions(asked: Asked) -> int:
    """Which queues are known, who serves them, and how much is there."""

    async def body(desk: Desk, actor: Actor) -> int:
        page = await desk.subscriptions(actor)
        if asked.json:
            show(page.as_json())
            return DONE
        if not page.rows:
            say("No subscriptions found.")
        else:
            headers = ("Subscription", "Handlers", "Workers", "Versions", "Waiting", "Dead Letters")
            cells = [_subscription_row(row) for row in page.rows]
            print_grid(headers, cells, cut=(1, 3, 0), right=(2, 4, 5))
            say()
            say(f"{len(page.rows)}{'+' if page.more else ''} subscription(s) found.")
        if not page.recorded:
            tell(_NO_WORKERS)
        return DONE

    return run(asked, body)


def _subscription_row(row: SubscriptionRow) -> list[str]:
    numbers = row.numbers
    return [
        row.name,
        ", ".join(row.subscribers) or NOT_RECORDED,
        "-" if row.workers is None else str(len(row.workers)),
        ", ".join(row.versions) or "-",
        f"{numbers.depth}{'+' if numbers.depth_at_least else ''}",
        f"{numbers.dead_letters}{'+' if numbers.dead_letters_at_least else ''}",
    ]
