"""How a replayed row ends: its letter moves in the statement that settles the row.

The kinds of verdict for rows with a replay link. An ack or a retry whose letter cannot be written
is repeated once as a plain one: a handler that succeeded is not run for ever.
"""

from collections.abc import Callable

from outlast.engine.hand import InHand
from outlast.engine.verdicts import AckKind, BuryKind, Kind, RetryKind
from outlast.model.delivery import Answer
from outlast.model.errors import StoreFailure
from outlast.model.failure import Failure
from outlast.model.outcome import Ack, Retry
from outlast.model.replay_pass import Delivered, Failed, Retried, letter_of

Plainly = Callable[[InHand], None]


def _letter_id(entry: InHand) -> int:
    letter_id = letter_of(entry.delivery.headers)
    assert letter_id is not None, "only rows with a replay link come here"
    return letter_id


class _OrPlainly(Kind):
    """With its letter, or else once more without it."""

    one_by_one_when_locked = True
    plainly: Plainly

    def group_max(self, first: InHand) -> int:
        return min(super().group_max(first), self.options.letter_group_max)

    def give_up(self, entry: InHand, failure: StoreFailure) -> None:
        self.logger.error(
            "the %s of row %d, a replay of dead letter %d, cannot be written together with the "
            "letter and is repeated without it; the letter ends by reconciliation: %s",
            self.name,
            entry.delivery.id,
            _letter_id(entry),
            failure,
        )
        self.plainly(entry)


class ResolveKind(_OrPlainly, AckKind):
    """Acknowledged: the row goes, the letter is resolved."""

    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        actor = self.options.consumer_instance[:255]
        passes = [
            Delivered(e.delivery.id, e.delivery.token, _letter_id(e), actor)
            for e in group
            if isinstance(e.outcome, Ack)
        ]
        return await self.store.resolve(passes, timeout, skip=skip)


class RefreshKind(_OrPlainly, RetryKind):
    """Failed, to be tried again: the letter shows the newest failure at once."""

    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        passes = [
            Retried(
                e.delivery.id,
                e.delivery.token,
                _letter_id(e),
                e.outcome.delay_seconds,
                e.attempt,
                e.outcome.failure or Failure(),
            )
            for e in group
            if isinstance(e.outcome, Retry) and e.attempt is not None
        ]
        return await self.store.refresh(passes, timeout, skip=skip)


class ReopenKind(BuryKind):
    """Failed for good: the same letter is open again, or a new one is written."""

    one_by_one_when_locked = True

    async def write(self, group: list[InHand], timeout: float, skip: bool) -> Answer:
        passes = [Failed(_letter_id(e), self.letter(e)) for e in group]
        return await self.store.reopen(passes, timeout, skip=skip)
