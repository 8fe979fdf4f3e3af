"""A store that fails on demand: before a call takes effect, after it, or not until it is let go.

Wraps any store. A fault is used up by the call it hits; `gate(name)` holds the next call until it
is opened.
"""

import asyncio
from collections import defaultdict, deque
from typing import Any

from outlast.model.errors import Disconnected

LINES = {
    "extend": "settles",
    "ack": "settles",
    "retry": "settles",
    "release": "settles",
    "bury": "letters",
    "resolve": "letters",
    "refresh": "letters",
    "reopen": "letters",
    "postpone": "settles",
}
LETTERS_ONLY = {"report", "forget_workers", "recheck_letters"}
"""On the letters line, with no rows to pass over."""


class FaultyStore:
    """The engine's view of a database that has bad moments."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[tuple[float, str, Any, bool]] = []
        self.faults: dict[str, deque[tuple[str, BaseException]]] = defaultdict(deque)
        self.gates: dict[str, deque[asyncio.Event]] = defaultdict(deque)
        self.entered = asyncio.Condition()
        self.down: set[str] = set()
        self.reconnects: list[float] = []
        self.refuse_reconnect = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def fail(self, method: str, error: BaseException, *, when: str = "before") -> None:
        self.faults[method].append((when, error))

    def gate(self, method: str) -> asyncio.Event:
        gate = asyncio.Event()
        self.gates[method].append(gate)
        return gate

    def count(self, method: str) -> int:
        return sum(1 for _, name, _, _ in self.calls if name == method)

    async def reconnect(self, line: str) -> None:
        self.reconnects.append(asyncio.get_running_loop().time())
        if self.refuse_reconnect:
            raise Disconnected("connection refused")
        self.down.discard(line)
        await self.inner.reconnect(line)

    async def _call(self, name: str, *arguments: Any, skip: bool = False) -> Any:
        loop = asyncio.get_running_loop()
        self.calls.append((loop.time(), name, arguments[0], skip))
        line = "letters" if name in LETTERS_ONLY else LINES.get(name, "claims")
        if line in self.down:
            raise Disconnected(f"{line} is down")
        if self.gates[name]:
            await self.gates[name].popleft().wait()
        when, error = self.faults[name].popleft() if self.faults[name] else ("", None)
        if when == "before":
            raise error
        method = getattr(self.inner, name)
        kwargs = {"skip": skip} if name in LINES else {}
        answer = await method(*arguments, **kwargs)
        if when == "after":
            raise error
        return answer

    async def claim(self, wanted, limit, token, timeout):
        return await self._call("claim", wanted, limit, token, timeout)

    async def read_back(self, queues, token, timeout):
        return await self._call("read_back", queues, token, timeout)

    async def take_over(self, rows, token, timeout):
        return await self._call("take_over", rows, token, timeout)

    async def look(self, peek, walk, timeout):
        return await self._call("look", peek, walk, timeout)

    async def extend(self, pairs, timeout, *, skip=False):
        return await self._call("extend", pairs, timeout, skip=skip)

    async def ack(self, pairs, timeout, *, skip=False):
        return await self._call("ack", pairs, timeout, skip=skip)

    async def retry(self, entries, timeout, *, skip=False):
        return await self._call("retry", entries, timeout, skip=skip)

    async def release(self, pairs, timeout, *, skip=False):
        return await self._call("release", pairs, timeout, skip=skip)

    async def bury(self, letters, timeout, *, skip=False):
        return await self._call("bury", letters, timeout, skip=skip)

    async def resolve(self, passes, timeout, *, skip=False):
        return await self._call("resolve", passes, timeout, skip=skip)

    async def refresh(self, passes, timeout, *, skip=False):
        return await self._call("refresh", passes, timeout, skip=skip)

    async def reopen(self, passes, timeout, *, skip=False):
        return await self._call("reopen", passes, timeout, skip=skip)

    async def postpone(self, pairs, seconds, timeout, *, skip=False):
        return await self._call("postpone", pairs, seconds, timeout, skip=skip)

    async def report(self, worker, timeout):
        return await self._call("report", worker, timeout)

    async def forget_workers(self, timeout):
        return await self._call("forget_workers", timeout)

    async def recheck_letters(self, timeout):
        return await self._call("recheck_letters", timeout)
