"""Lease: what is in hand begins its leases anew, and what ran too long is told to end.

Runs on the settles line, in the settle room's task: before a settle that waits. A refusal cancels
nothing: the outcome is fenced by its token.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from outlast.engine.dispatch import FOR_LEASE_LIMIT
from outlast.engine.hand import InHand, Subscription
from outlast.model.delivery import Answer, Pair
from outlast.model.errors import Disconnected, OutcomeUnknown, RowLocked, StoreFailure
from outlast.ports.store import Store

_GROUP_MAX = 500
_SOON = 0.25
"""A refresh that failed, or met a settle in flight, comes again after this part of its interval:
a verdict whose statement is sent again and again would miss its turn each time.
"""


class Lessor:
    """Refreshes the leases of every subscription of one engine."""

    def __init__(
        self,
        store: Store,
        subscriptions: Callable[[], Iterable[Subscription]],
        timeout: Callable[[], float],
        logger: logging.Logger,
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._timeout = timeout
        self._logger = logger

    def next_at(self) -> float | None:
        """When the next refresh is due."""
        return min((s.refresh_at for s in self._subscriptions() if s.hand), default=None)

    async def refresh(self) -> None:
        """Refresh what is due. Raises only when the line is lost."""
        now = asyncio.get_running_loop().time()
        for subscription in list(self._subscriptions()):
            if now < subscription.refresh_at:
                continue
            interval = subscription.options.refresh_seconds
            entries = list(self._refreshable(subscription, now))
            crossed = any(entry.in_flight for entry in entries)
            subscription.refresh_at = now + interval * (_SOON if crossed else 1.0)
            try:
                for start in range(0, len(entries), _GROUP_MAX):
                    await self._extend(subscription, entries[start : start + _GROUP_MAX])
            except (Disconnected, OutcomeUnknown):
                subscription.refresh_at = now + interval * _SOON
                raise
            except StoreFailure as failure:
                subscription.refresh_at = now + interval * _SOON
                self._logger.warning("leases of %s not refreshed: %s", subscription.name, failure)

    def _refreshable(self, subscription: Subscription, now: float) -> Iterator[InHand]:
        fresh = now - subscription.options.refresh_seconds / 2
        limit = subscription.options.lease_limit
        for entry in subscription.hand:
            if entry.task is not None and entry.started_at is not None:
                if entry.cancelled_for is not None:
                    continue
                if now - entry.started_at >= limit:
                    # also without a lease: a handler that hangs may not keep its slot
                    entry.cancelled_for = FOR_LEASE_LIMIT
                    entry.task.cancel()
                    continue
            if not (entry.lost or entry.refreshed_at > fresh):
                yield entry

    async def _extend(self, subscription: Subscription, entries: list[InHand]) -> None:
        sent_at = asyncio.get_running_loop().time()
        # a verdict may have been sent on the other line since the list was made
        asked = [e for e in entries if not e.in_flight and e in subscription.hand]
        if not asked:
            return
        pairs: list[Pair] = [(e.delivery.id, e.delivery.token) for e in asked]
        try:
            answer = await self._store.extend(pairs, self._timeout())
        except RowLocked:
            answer = await self._store.extend(pairs, self._timeout(), skip=True)
        self._apply(subscription, asked, answer, sent_at)

    def _apply(
        self, subscription: Subscription, asked: list[InHand], answer: Answer, sent_at: float
    ) -> None:
        lost, held = set(answer.lost), set(answer.held)
        for entry in asked:
            pair = (entry.delivery.id, entry.delivery.token)
            if pair in held:
                continue
            if pair not in lost:
                entry.refreshed_at = sent_at
                entry.deadline = sent_at + subscription.ttl
            elif entry in subscription.hand and not entry.in_flight:
                # else the refusal crossed the row's own settle and means nothing
                entry.lost = True
