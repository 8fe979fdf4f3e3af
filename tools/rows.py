"""Which test proves which row: docs/reference/rows.md and faults.md, made from test docstrings.

A test proves the rows its docstring begins a line with: `S0-09: …`, `S1-33, S1-34: …`,
`S0-17..S0-26: …`, `F-A01: …`. Rows without a test are listed under [exceptions] in the .toml.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
MISSING = "**missing**"

_ID = r"(?:S\d-\d{2,3}|U-\d\d|F-[A-L]\d\d)"
_TO = r"(?:\.\.|…)"
_ITEM = rf"{_ID}(?:\s*{_TO}\s*(?:{_ID}|\d{{2,3}}))?"
_AND = r"(?:\s*[,;/+&]\s*|\s+and\s+|\s+)"
_LEAD = re.compile(rf"^\s*({_ITEM}(?:{_AND}{_ITEM})*)\s*(?:\([^)]*\)\s*)?[:.—]", re.MULTILINE)
_RANGE = re.compile(rf"({_ID})(?:\s*{_TO}\s*({_ID}|\d{{2,3}}))?")


@dataclass(frozen=True)
class Catalogue:
    """The rows of one table: what each asks for, and which need no test."""

    title: str
    about: str
    groups: dict[str, str]
    rows: dict[str, str]
    exceptions: dict[str, str]


def catalogue(name: str, title: str, about: str) -> Catalogue:
    data = tomllib.loads((ROOT / "tools" / f"{name}.toml").read_text("utf-8"))
    return Catalogue(title, about, data["groups"], data["rows"], data["exceptions"])


def named(docstring: str) -> list[str]:
    """The ids a docstring claims, ranges spelled out."""
    found = []
    for lead in _LEAD.finditer(docstring):
        for first, last in _RANGE.findall(lead.group(1)):
            found += spelled(first, last)
    return list(dict.fromkeys(found))


def spelled(first: str, last: str) -> list[str]:
    if not last:
        return [first]
    stem, _, start = first.rpartition("-")
    end = int(last.rpartition("-")[2])
    return [f"{stem}-{number:02d}" for number in range(int(start), end + 1)]


def proofs(tests: Path) -> dict[str, list[str]]:
    """Each id, and the tests that name it as `path::test`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(tests.rglob("*.py")):
        place = path.relative_to(tests.parent).as_posix()
        for test, docstring in described(ast.parse(path.read_text("utf-8"))):
            for row in named(docstring):
                found[row].append(f"{place}::{test}")
    return found


def described(tree: ast.Module) -> list[tuple[str, str]]:
    """The test functions with a docstring, those in classes with the class's name before."""
    found = []
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for item in inside:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name.startswith(
                "test"
            ):
                found.append((prefix + item.name, ast.get_docstring(item) or ""))
    return found


def table(wanted: Catalogue, proved: dict[str, list[str]]) -> str:
    lines = [f"# {wanted.title}", "", wanted.about, "", "Made by `make reference`; do not edit."]
    for group, name in wanted.groups.items():
        lines += ["", f"## {group} — {name}", "", "| Row | What | Proved by |", "|---|---|---|"]
        for row, what in wanted.rows.items():
            if group_of(row) == group:
                lines.append(f"| {row} | {cell(what)} | {cell(proof(wanted, proved, row))} |")
    return "\n".join(lines) + "\n"


def group_of(row: str) -> str:
    stem, _, rest = row.partition("-")
    return rest[0] if stem == "F" else stem


def proof(wanted: Catalogue, proved: dict[str, list[str]], row: str) -> str:
    if tests := proved.get(row):
        return "<br>".join(f"`{test}`" for test in tests)
    return wanted.exceptions.get(row, MISSING)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


ROWS = catalogue(
    "rows",
    "Rows and the tests that prove them",
    "Every capability that was asked for, and the tests that show it.",
)
FAULTS = catalogue(
    "faults",
    "Faults and the tests that survive them",
    "Every fault and abuse that was thought of, and the tests that commit it.",
)


def pages() -> dict[Path, str]:
    proved = proofs(ROOT / "tests")
    return {
        REFERENCE / "rows.md": table(ROWS, proved),
        REFERENCE / "faults.md": table(FAULTS, proved),
    }


def missing() -> list[str]:
    proved = proofs(ROOT / "tests")
    return [
        row
        for wanted in (ROWS, FAULTS)
        for row in wanted.rows
        if row not in proved and row not in wanted.exceptions
    ]


def unknown() -> list[str]:
    """Ids that a docstring names and no catalogue has: typing errors."""
    known = {*ROWS.rows, *FAULTS.rows}
    return sorted(set(proofs(ROOT / "tests")) - known)


def main() -> int:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    print(f"{len(missing())} rows without a test: {' '.join(missing())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
