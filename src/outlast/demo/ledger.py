"""The proof: what was committed is delivered, dead or waiting, and nothing else was ever seen.

In: the tables, read when nothing moves any more, and what handlers and service saw themselves.
Out: a `Balance`. Counters of the broker must never be used here: they are what is being checked.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from outlast.demo.record import Record
from outlast.demo.shop import Order, outbox, outbox_dlq
from outlast.model.headers import message_id
from outlast.model.query import REPLAYING, RESOLVED

_SHOWN_MAX = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Stock:
    """Message ids, by where they were found."""

    committed: AbstractSet[str]
    """From the orders table: messages that were committed with their order."""
    rolled_back: AbstractSet[str] = frozenset()
    """From the order service: messages of the transactions that it rolled back."""
    begun: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    """From the handlers: what they began, and what they finished without an error."""
    dead: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    """From the dead-letter table and from the outbox, by rows."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The last table."""

    committed: int
    rolled_back: int
    delivered: int
    dead: int
    waiting: int
    rolled_back_seen: int
    delivered_again: int
    """Allowed: delivery is at least once."""
    findings: tuple[str, ...]
    """What is wrong, in sentences; empty if everything is accounted for."""

    @property
    def accounted(self) -> int:
        """The other side of the ledger."""
        return self.delivered + self.dead + self.waiting

    @property
    def holds(self) -> bool:
        """Whether the proof holds."""
        return not self.findings and self.committed == self.accounted


async def take_stock(session: AsyncSession, record: Record, rolled_back: AbstractSet[str]) -> Stock:
    """Read the tables."""
    committed = await session.scalars(select(Order.messages))
    # what was sent again is counted where it went
    kept = outbox_dlq.c.state.not_in((REPLAYING, RESOLVED))
    dead = await session.scalars(select(outbox_dlq.c.message_id).where(kept))
    waiting = await session.execute(select(outbox.c.headers, outbox.c.id))
    return Stock(
        committed={mark for messages in committed for mark in messages.split()},
        rolled_back=frozenset(rolled_back),
        begun=record.begun,
        finished=record.finished,
        dead=Counter(str(mark) for mark in dead),
        waiting=Counter(message_id(headers, row) for headers, row in waiting),
    )


def balance(stock: Stock) -> Balance:
    """Compare both sides, message by message: equal sums alone could hide a loss and a double."""
    delivered, dead, waiting = (set(x) for x in (stock.finished, stock.dead, stock.waiting))
    found = delivered | dead | waiting
    seen = set(stock.begun) | found
    rolled_back_seen = stock.rolled_back & (seen | stock.committed)
    suspicions = (
        (stock.committed - found, "committed, but neither delivered nor dead nor waiting"),
        (rolled_back_seen, "rolled back, but seen"),
        (seen - stock.committed - stock.rolled_back, "never committed, but seen"),
        (_more_than_once(stock.dead), "more than one dead letter"),
        (_more_than_once(stock.waiting), "more than one row in the outbox"),
        (delivered & dead, "delivered, and a dead letter too"),
        (delivered & waiting, "delivered, and still waiting"),
        (dead & waiting, "a dead letter, and still waiting"),
    )
    return Balance(
        committed=len(stock.committed),
        rolled_back=len(stock.rolled_back),
        delivered=len(delivered),
        dead=stock.dead.total(),
        waiting=stock.waiting.total(),
        rolled_back_seen=len(rolled_back_seen),
        delivered_again=stock.finished.total() - len(delivered),
        findings=tuple(_sentence(marks, what) for marks, what in suspicions if marks),
    )


def _more_than_once(rows: Counter[str]) -> set[str]:
    return {mark for mark, count in rows.items() if count > 1}


def _sentence(marks: Iterable[str], what: str) -> str:
    names = sorted(marks)
    shown = ", ".join(names[:_SHOWN_MAX])
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return f"{what}: {shown}{more}"
