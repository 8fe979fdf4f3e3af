"""The queues of one subscription: whose turn it is, and when rows of them become due."""

import heapq
import math
from collections import deque
from collections.abc import Sequence

QUEUES_PER_STATEMENT = 100
"""Many queues are visited in rotating chunks of this many."""

_BUCKET_SECONDS = 0.005
_DUE_TIMES_MAX = 100_000


class QueueRing:
    """Rotates, so that no queue is always first; queues known to have due rows go before it."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.names = tuple(queues)
        self._known = frozenset(queues)
        self._ring = deque(queues)
        self._hot: dict[str, None] = {}
        self._left_in_round = 0

    def __contains__(self, queue: str) -> bool:
        return queue in self._known

    @property
    def hot(self) -> bool:
        """Whether some queue is known to have due rows."""
        return bool(self._hot)

    @property
    def mid_round(self) -> bool:
        """Whether queues of the current round are still to be visited."""
        return self._left_in_round > 0

    def heat(self, queue: str | None) -> None:
        """This queue has due rows (None: any of them may)."""
        if queue is None:
            self._left_in_round = len(self._ring)
        elif queue in self._known:
            self._hot[queue] = None

    def begin_round(self) -> None:
        """Every queue is to be visited once more."""
        self._left_in_round = len(self._ring)

    def next_chunk(self) -> list[str]:
        """The queues of the next claim: hot ones first, then the ring."""
        chunk = list(self._hot)[:QUEUES_PER_STATEMENT]
        for queue in chunk:
            del self._hot[queue]
        turn = min(QUEUES_PER_STATEMENT - len(chunk), len(self._ring))
        seen = set(chunk)
        for _ in range(turn):
            queue = self._ring[0]
            self._ring.rotate(-1)
            if queue not in seen:
                chunk.append(queue)
        if turn == len(self._ring) > 1:
            # all of them were visited: another one is first the next time
            self._ring.rotate(-1)
        self._left_in_round = max(0, self._left_in_round - turn)
        return chunk


class DueTimes:
    """Instants, on the loop's clock, at which a queue will have a due row. Never early."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._known: set[tuple[int, str]] = set()

    def add(self, at: float, queue: str) -> None:
        """Remember it; beyond the limit the next look finds it again."""
        mark = (math.ceil(at / _BUCKET_SECONDS), queue)
        if mark in self._known or len(self._heap) >= _DUE_TIMES_MAX:
            return
        self._known.add(mark)
        heapq.heappush(self._heap, mark)

    def next_at(self) -> float | None:
        """The earliest instant."""
        return self._heap[0][0] * _BUCKET_SECONDS if self._heap else None

    def pop_due(self, now: float) -> list[str]:
        """The queues whose instant has come."""
        queues: list[str] = []
        while self._heap and self._heap[0][0] * _BUCKET_SECONDS <= now:
            mark = heapq.heappop(self._heap)
            self._known.discard(mark)
            queues.append(mark[1])
        return queues
