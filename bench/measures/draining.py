"""T1, T4, T8: how fast a prefilled backlog is drained through a handler with a dict body."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.contenders import (
    FLOOR,
    FSO_BEST,
    FSO_DEFAULT,
    OURS_BEST,
    OURS_DEFAULT,
    PGQUEUER_BEST,
    PGQUEUER_DEFAULT,
    Entry,
)
from bench.crew import ask
from bench.gates import Finding
from bench.measures.cells import Cells, best, interleaved, median, ratios, values

BEST = (*OURS_BEST, *FSO_BEST, *PGQUEUER_BEST, FLOOR)
DEFAULTS = (OURS_DEFAULT, FSO_DEFAULT, PGQUEUER_DEFAULT)
_SLOW_PART = 4
"""Contenders of some hundred messages a second drain a fourth: their rate is steady."""


@dataclass(frozen=True)
class Sizes:
    """How much one run does."""

    rounds: int
    messages: int


def measure(dsn: str, sizes: Sizes, entries: Sequence[Entry] = (*BEST, *DEFAULTS)) -> Cells:
    """Every contender once a round."""

    def run(entry: Entry) -> dict[str, float]:
        count = sizes.messages // _SLOW_PART if entry.slow else sizes.messages
        return ask({"do": "drain", "dsn": dsn, "messages": count}, entry)

    return interleaved("drain", entries, sizes.rounds, run)


def busy(cell: dict[str, float]) -> float:
    """Client CPU as a part of the time in which a core was to be had."""
    return cell["cpu_share"] / max(1e-9, 1.0 - min(cell["waited_share"], 0.99))


def findings(cells: Cells) -> list[Finding]:
    """T1, T4, T8 and what is reported beside them."""
    ours, fso, pgqueuer = (best(cells, entries) for entries in (OURS_BEST, FSO_BEST, PGQUEUER_BEST))
    default = OURS_DEFAULT.name
    shares = [busy(cell) for cell in cells[default] if cell is not None]
    return [
        Finding("T1", f"drain, {ours} / {fso}", _of(ratios(cells, ours, fso)), ">=", 1.5),
        Finding("T1", f"drain, {ours} / {pgqueuer}", _of(ratios(cells, ours, pgqueuer))),
        Finding(
            "T1",
            f"drain, {ours} / FastStream's pipeline alone",
            _of(ratios(cells, ours, FLOOR.name)),
            note="our share of what claims, deletes and `process_message` alone reach",
        ),
        Finding(
            "T1", f"client CPU a message, {ours} / {fso}", _of(ratios(cells, ours, fso, "cpu_us"))
        ),
        Finding(
            "T4",
            "drain with defaults, outlast / faststream-outbox",
            _of(ratios(cells, default, FSO_DEFAULT.name)),
            ">=",
            6.0,
        ),
        Finding(
            "T4",
            "client CPU of one core during the default drain",
            _of(shares),
            ">=",
            0.9,
            note="of the time in which a core was free for it; of all time: "
            f"{median(values(cells, default, 'cpu_share')):.2f}",
        ),
        Finding(
            "T4",
            "drain with defaults, outlast / pgqueuer",
            _of(ratios(cells, default, PGQUEUER_DEFAULT.name)),
            ">=",
            1.5,
            gates=False,
        ),
        Finding(
            "T4",
            f"drain, defaults / {ours}",
            _of(ratios(cells, default, ours)),
            ">=",
            0.5,
            gates=False,
        ),
        Finding(
            "T8",
            f"WAL a message, {ours} / {fso}",
            _of(ratios(cells, ours, fso, "wal_bytes")),
            "<=",
            1.0,
            gates=False,
        ),
    ]


def _of(numbers: list[float]) -> float | None:
    return median(numbers) if numbers else None
