"""Who subscribes to what, who serves it, and what waits there.

In: an actor who may inspect. Out: one row for each queue that is known, or the refusal of a name
that is not. Nothing is written.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outlast.model.replay import WorkerSeen
from outlast.ops.actor import Actor
from outlast.ops.context import DeskContext
from outlast.ops.refusals import DeskError
from outlast.ops.views import iso
from outlast.policy.gates import LIVE_SECONDS
from outlast.policy.names import check_name
from outlast.policy.neutral_text import neutral_text
from outlast.stores.desk.subscriptions import (
    QUEUES_MAX,
    QueueNumbers,
    is_named,
    known_queues,
    numbers_of,
    served,
)
from outlast.stores.desk.workers import workers_seen

NAMES_TOLD = 20
_SHOWN_CHARS_MAX = 255


class UnknownSubscription(DeskError, LookupError):  # noqa: N818
    """Nobody and nothing has this name. `known` are some that there are."""

    def __init__(self, name: str, known: tuple[str, ...], *, more: bool) -> None:
        shown = neutral_text(name[:_SHOWN_CHARS_MAX])
        some = ", ".join(neutral_text(one) for one in known[:NAMES_TOLD])
        rest = ", …" if more or len(known) > NAMES_TOLD else ""
        super().__init__(
            f"No subscription found for stream category '{shown}'.",
            f"there are {some}{rest}: outlast subscriptions list"
            if known
            else "no worker, message or dead letter names any: is it the right database?",
        )
        self.name = name
        self.known = known


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One queue. `workers` are those that live and claim from it, None where none are recorded;
    `known_by` says where the name was found.
    """

    numbers: QueueNumbers
    subscribers: tuple[str, ...]
    workers: tuple[str, ...] | None
    versions: tuple[str, ...]
    known_by: tuple[str, ...]

    @property
    def name(self) -> str:
        """What `--subscription` takes."""
        return self.numbers.queue

    def as_json(self) -> dict[str, Any]:
        """One item of the list; null is "not recorded"."""
        numbers = self.numbers
        return {
            "queue": numbers.queue,
            "subscribers": list(self.subscribers),
            "live_workers": None if self.workers is None else len(self.workers),
            "workers": None if self.workers is None else list(self.workers),
            "versions": list(self.versions),
            "depth": numbers.depth,
            "depth_is": "at least" if numbers.depth_at_least else "exact",
            "dead_letters": numbers.dead_letters,
            "dead_letters_is": "at least" if numbers.dead_letters_at_least else "exact",
            "oldest_due_at": iso(numbers.oldest_due_at),
            "known_by": list(self.known_by),
        }


@dataclass(frozen=True, slots=True)
class SubscriptionPage:
    """By name. `more`: there are too many to show. `recorded`: there is a worker table."""

    rows: tuple[SubscriptionRow, ...]
    more: bool
    recorded: bool

    def as_json(self) -> dict[str, Any]:
        """The document of `subscriptions list`."""
        return {
            "items": [row.as_json() for row in self.rows],
            "total": len(self.rows),
            "more": self.more,
            "recorded": self.recorded,
        }


class Subscriptions(DeskContext):
    """The names, and what they mean."""

    async def subscriptions(self, actor: Actor) -> SubscriptionPage:
        """One row for each queue that a worker, a message, a letter or the history names."""
        actor.needs("inspect", "look at subscriptions")
        async with self._reading() as at:
            seen = await workers_seen(*at)
            known = await known_queues(*at, seen or ())
            names = known.names
            rows = []
            for queue in names[:QUEUES_MAX]:
                sources = tuple(s for s, queues in known.by_source.items() if queue in queues)
                rows.append(_row(await numbers_of(*at, queue), seen, sources))
                # many queues take a while: that must not hold back the cleaning of tables
                await at.connection.rollback()
        return SubscriptionPage(
            tuple(rows), known.more or len(names) > QUEUES_MAX, seen is not None
        )

    async def need_subscription(
        self, actor: Actor, *names: str, also: Collection[str] = ()
    ) -> None:
        """Refuse a queue or subscriber that nothing names. `also`: those of the application."""
        actor.needs("inspect", "look at subscriptions")
        async with self._reading() as at:
            seen = await workers_seen(*at) or ()
            for name in names:
                if name in also or _serves(seen, name):
                    continue
                if _is_storable(name) and await is_named(*at, name):
                    continue
                known = await known_queues(*at, seen)
                if name not in known.names:
                    told = sorted({*known.names, *also})
                    raise UnknownSubscription(name, tuple(told[:QUEUES_MAX]), more=known.more)


def _row(
    numbers: QueueNumbers, seen: tuple[WorkerSeen, ...] | None, sources: tuple[str, ...]
) -> SubscriptionRow:
    queue = numbers.queue
    live = [worker for worker in seen or () if _is_live(worker) and queue in worker.queues]
    subscribers = {name for worker in seen or () for name in served(worker).get(queue, ())}
    return SubscriptionRow(
        numbers,
        tuple(sorted(subscribers.union(numbers.subscribers))),
        None if seen is None else tuple(worker.instance for worker in live),
        tuple(sorted({worker.version for worker in live if worker.version is not None})),
        sources,
    )


def _is_storable(name: str) -> bool:
    try:
        check_name("name", name)
    except ValueError:
        return False
    return True


def _is_live(worker: WorkerSeen) -> bool:
    silent = worker.silent_for
    return not worker.stopped and silent is not None and silent <= timedelta(seconds=LIVE_SECONDS)


def _serves(seen: tuple[WorkerSeen, ...], name: str) -> bool:
    return any(
        name in worker.queues or name in told or any(name in names for names in told.values())
        for worker in seen
        for told in [served(worker)]
    )
