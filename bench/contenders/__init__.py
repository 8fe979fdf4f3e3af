"""Who runs: name, interpreter and settings of every contender.

Only names here, for the parent reads this without the libraries of the peers.
"""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Entry:
    """One contender at one setting."""

    name: str
    interpreter: Literal["ours", "peers"]
    home: str
    """Module and class that drive it."""
    settings: dict[str, Any] = field(default_factory=dict)
    slow: bool = False
    """Drains a smaller backlog: hundreds of messages a second."""


def _outbox(name: str, **settings: Any) -> Entry:
    peer = name.startswith("fso")
    return Entry(
        name,
        "peers" if peer else "ours",
        "bench.contenders.outboxes:Outbox",
        {"module": "faststream_outbox" if peer else "outlast", **settings},
        slow=peer and not settings,
    )


def _pgqueuer(name: str, **settings: Any) -> Entry:
    return Entry(name, "peers", "bench.contenders.pgq:PgQueuerQueue", settings)


OURS_BEST = (
    _outbox("outlast w1 f500", max_workers=1, fetch_batch_size=500),
    _outbox("outlast w1 f1000", max_workers=1, fetch_batch_size=1000),
)
FSO_BEST = (
    _outbox(
        "fso w4 f1000 t250", max_workers=4, fetch_batch_size=1000, terminal_flush_batch_size=250
    ),
    _outbox(
        "fso w1 f1000 t1000", max_workers=1, fetch_batch_size=1000, terminal_flush_batch_size=1000
    ),
)
PGQUEUER_BEST = (
    _pgqueuer("pgqueuer b500 pool", batch_size=500, pool=True),
    _pgqueuer("pgqueuer b1000", batch_size=1000),
)
OURS_DEFAULT = _outbox("outlast default")
FSO_DEFAULT = _outbox("fso default")
PGQUEUER_DEFAULT = _pgqueuer("pgqueuer default")
FLOOR = Entry("pipeline floor", "ours", "bench.contenders.floor:Floor", {"batch": 500})

ENTRIES = {
    entry.name: entry
    for entry in (
        *OURS_BEST,
        *FSO_BEST,
        *PGQUEUER_BEST,
        OURS_DEFAULT,
        FSO_DEFAULT,
        PGQUEUER_DEFAULT,
        FLOOR,
    )
}
