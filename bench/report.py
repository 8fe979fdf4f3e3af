"""The tables on the terminal and the file that is kept."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gates import Finding
from bench.measures.cells import Cells, median, values

RESULTS = Path(__file__).resolve().parent / "results"


def spread(numbers: Sequence[float], digits: int = 0) -> str:
    """Median, then the least and the most."""
    if not numbers:
        return "failed"
    low, mid, high = min(numbers), statistics.median(numbers), max(numbers)
    return f"{mid:,.{digits}f} [{low:,.{digits}f} … {high:,.{digits}f}]"


def rounds_table(
    title: str, cells: Cells, columns: dict[str, tuple[str, int]], *, every: str
) -> Table:
    """Median and spread of each column; every round of one of them."""
    table = Table(title=title, title_justify="left")
    table.add_column("contender")
    for heading, _ in columns.values():
        table.add_column(heading, justify="right")
    table.add_column(f"every round: {columns[every][0]}", justify="right")
    digits = columns[every][1]
    for name, rounds in cells.items():
        row = [spread(values(cells, name, key), places) for key, (_, places) in columns.items()]
        shown = " ".join("-" if c is None else f"{c[every]:,.{digits}f}" for c in rounds)
        table.add_row(name, *row, shown)
    return table


def ratio_table(title: str, cells: Cells, against: Sequence[str], key: str = "rate") -> Table:
    """Each contender's median as a multiple of the medians of these."""
    table = Table(title=title, title_justify="left")
    table.add_column("contender")
    bases = {name: median(values(cells, name, key)) for name in against}
    for name in bases:
        table.add_column(f"/ {name}", justify="right")
    for name in cells:
        own = median(values(cells, name, key))
        table.add_row(name, *(f"{own / base:.2f}" if base else "-" for base in bases.values()))
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    """Every line with its verdict."""
    table = Table(title="Findings", title_justify="left")
    for heading in ("", "what", "value", "target", "verdict", "note"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for finding in findings:
        limit = "" if finding.relation is None else f"{finding.relation} {finding.threshold:g}"
        value = "not measured" if finding.value is None else f"{finding.value:,.2f}"
        table.add_row(finding.id, finding.what, value, limit, _verdict(finding), finding.note)
    return table


def _verdict(finding: Finding) -> str:
    if finding.holds is None:
        return "reported"
    words = "holds" if finding.holds else "[bold red]short[/]"
    return words if finding.gates else f"{words}, no gate yet"


def show(tables: Sequence[Table]) -> None:
    """Wide enough that no figure is cut."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    for table in tables:
        console.print(table)


def keep(name: str, record: dict[str, Any]) -> Path:
    """Write the record of a run."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return path
