"""T7: from COMMIT to the start of the handler, 50 messages a second, the consumer idle between."""

import statistics
from collections.abc import Sequence
from typing import Any

from bench.contenders import FSO_BEST, FSO_DEFAULT, OURS_DEFAULT, PGQUEUER_DEFAULT, Entry
from bench.crew import Child, ask
from bench.gates import Finding
from bench.measures.cells import Cells, best, interleaved, median, ratios

PEERS = (FSO_DEFAULT, FSO_BEST[1])
ENTRIES = (OURS_DEFAULT, *PEERS, PGQUEUER_DEFAULT)
RATE = 50
SLICES = 3
"""Cells of a round: short ones, for what else the machine does comes and goes within seconds."""


def measure(dsn: str, rounds: int, samples: int, entries: Sequence[Entry] = ENTRIES) -> Cells:
    """`samples` messages a round of every contender; publisher and consumer apart."""
    samples = -(-samples // SLICES)

    def run(entry: Entry) -> dict[str, Any]:
        consumer = Child({"do": "listen", "dsn": dsn}, entry)
        try:
            consumer.answer()
            request = {"do": "publish", "dsn": dsn, "samples": samples, "rate": RATE}
            sent = ask(request, entry)["sent"]
            consumer.say("stop")
            seen = consumer.answer()["seen"]
        finally:
            consumer.end()
        delays = sorted((seen[key] - began) * 1e3 for key, began in sent.items() if key in seen)
        cuts = statistics.quantiles(delays, n=100)
        return {
            "p50_ms": statistics.median(delays),
            "p99_ms": cuts[98],
            "max_ms": delays[-1],
            "samples": len(delays),
            "lost": len(sent) - len(delays),
        }

    return interleaved("latency", entries, rounds * SLICES, run)


def findings(cells: Cells) -> list[Finding]:
    """The gate is p50; p99 is reported."""
    ours, fso = OURS_DEFAULT.name, best(cells, PEERS, "p50_ms", least=True)
    p50, p99 = ratios(cells, ours, fso, "p50_ms"), ratios(cells, ours, fso, "p99_ms")
    samples = sum(int(cell["samples"]) for cell in cells[ours] if cell is not None)
    return [
        Finding(
            "T7",
            f"latency p50, outlast / {fso}",
            median(p50) if p50 else None,
            "<=",
            0.75,
            note=f"{samples} samples",
        ),
        Finding("T7", f"latency p99, outlast / {fso}", median(p99) if p99 else None),
    ]
