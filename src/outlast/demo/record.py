"""The world that handlers change: a bank, a mail server. It knows nothing of the database.

In: message ids, by the handlers. Out: the counts that the ledger compares with the database.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Record:
    """Which messages a handler has begun, and which it has finished without an error."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()

    @contextmanager
    def handling(self, message_id: str) -> Iterator[None]:
        """Around the work of a handler; an exception goes through, and is no effect."""
        self.begun[message_id] += 1
        yield
        self.finished[message_id] += 1
