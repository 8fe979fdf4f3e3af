"""Pages of Markdown as the tests see them: fenced blocks, links, anchors.

A block may follow a line `<!-- not run: reason -->`; only then it is left out.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})[ \t]*(\S*)[^`]*$")
_NOT_RUN = re.compile(r"^<!-- not run: (?P<reason>\S.*?) -->$")
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is the number of its first line of content."""

    language: str
    text: str
    line: int
    not_run: str | None = None


def pages() -> list[Path]:
    """The pages a reader meets."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks(page: Path) -> list[Block]:
    """The fenced blocks in order. One that is never closed is an error."""
    found: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        indent, ticks, language = len(fence[1]), fence[2], fence[3]
        mark = _NOT_RUN.match(lines[number - 1].strip()) if number else None
        begin = end = number + 1
        while end < len(lines) and lines[end].strip() != ticks:
            end += 1
        if end == len(lines):
            raise ValueError(f"{name_of(page)}:{begin}: the block is never closed")
        content = [line[min(indent, len(line) - len(line.lstrip())) :] for line in lines[begin:end]]
        reason = mark["reason"] if mark else None
        found.append(Block(language, "\n".join(content) + "\n", begin + 1, reason))
        number = end + 1
    return found


def prose(page: Path) -> list[str]:
    """The lines outside of blocks, without what stands in backticks."""
    inside: str | None = None
    lines: list[str] = []
    for line in page.read_text("utf-8").splitlines():
        fence = _FENCE.match(line)
        if inside is None and fence is not None:
            inside = fence[2]
        elif inside is not None:
            if line.strip() == inside:
                inside = None
        else:
            lines.append(line)
    return lines


def links(page: Path) -> list[str]:
    return _LINK.findall("\n".join(_CODE.sub("``", line) for line in prose(page)))


def anchors(page: Path) -> set[str]:
    """The fragments of a page, as GitHub makes them from headings."""
    seen: dict[str, int] = {}
    made: set[str] = set()
    for line in prose(page):
        heading = _HEADING.match(line)
        if heading is None:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        made.add(slug if not count else f"{slug}-{count}")
    return made
