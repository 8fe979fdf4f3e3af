"""The repository as the house tests see it: its files, and the modules of the package parsed."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "outlast"

_NOT_OURS = {
    ".git",
    ".venv",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    ".import_linter_cache",
    "build",
    "dist",
    "node_modules",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def repository_files() -> list[Path]:
    """The files a checkout has, without those that tools leave behind. Needs no git."""
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not _NOT_OURS.intersection(path.relative_to(ROOT).parts)
    )


def text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def imported(tree: ast.AST) -> list[str]:
    """The names of the modules a tree imports, wherever the statement stands."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append(node.module)
    return found
