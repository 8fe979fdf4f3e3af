"""Wake: for databases without wake-ups of their own, ask whether somebody committed something.

A change leads to a look, not to a claim: a claim begins only when something is due.
"""

import asyncio
from collections.abc import Callable

from outlast.model.errors import StoreFailure
from outlast.ports.store import Store


async def watch_changes(store: Store, seconds: float, changed: Callable[[], None]) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        try:
            if await store.changed():
                changed()
        except StoreFailure:
            # the claims line meets the same failure and acts on it
            continue
