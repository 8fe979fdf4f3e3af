"""What reaches a terminal: sentences, tables and documents, all of it harmless.

In: text of anybody. Out: lines on stdout (results) and stderr (everything else) without control
characters. With `--json` stdout gets one document and nothing else.
"""

import errno
import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

from outlast.policy.neutral_text import neutral_text

NOT_RECORDED = "not recorded"
_ELLIPSIS = "…"


def say(text: str = "", *, lines: bool = False) -> None:
    """A line of the result."""
    sys.stdout.write(neutral_text(text, lines=lines) + "\n")


def tell(text: str, *, lines: bool = False) -> None:
    """A line beside the result."""
    sys.stdout.flush()
    sys.stderr.write(neutral_text(text, lines=lines) + "\n")
    sys.stderr.flush()


def is_of_output(error: OSError) -> bool:
    """Whether stdout or its file could not take what was written."""
    return error.errno in {errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EIO, errno.EFBIG}


def tell_unwritten(error: OSError) -> None:
    """Say so, unless the reader has just seen enough; nothing is flushed again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:
        tell(f"the output cannot be written: {error.strerror}")


def print_document(laid_out: str) -> None:
    """JSON; what is not printable is written with escapes, so that it stays JSON."""
    if not laid_out.isprintable():
        laid_out = "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in laid_out)
    sys.stdout.write(laid_out + "\n")


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def when(instant: datetime | None) -> str:
    """An instant for people: UTC, to the second."""
    return NOT_RECORDED if instant is None else f"{second(instant)} UTC"


def second(instant: datetime | None) -> str:
    """An instant of a column, UTC."""
    return "-" if instant is None else instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def span(seconds: float | None) -> str:
    """A length of time for people, in its two largest units."""
    if seconds is None:
        return NOT_RECORDED
    left, parts = round(seconds), []
    for name, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number}{name}")
    return " ".join(parts[:2]) or f"{seconds:.3g}s"


def print_grid(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    cut: Sequence[int],
    right: Sequence[int] = (),
    wide: bool = False,
) -> None:
    """A table. `cut` are the columns that may be cut to fit, the first to give way first.

    What is not in `cut` is never cut; headers that have no room are written on several lines.
    """
    shown = [[neutral_text(cell) for cell in row] for row in rows]
    heads = [[header] for header in headers]
    widths = [
        max([_width(header), *(_width(row[column]) for row in shown)])
        for column, header in enumerate(headers)
    ]
    gap = "  "
    if not wide:
        room = shutil.get_terminal_size().columns
        over = sum(widths) + len(gap) * (len(widths) - 1) - room
        over = _narrowed(widths, cut, headers, over)
        if over > 0:
            gap, over = " ", over - (len(widths) - 1)
        if over > 0:
            for column in cut:
                heads[column] = headers[column].split()
            _narrowed(widths, cut, [max(head, key=_width) for head in heads], over)
    tall = max(map(len, heads))
    lines = [[head[line] if line < len(head) else "" for head in heads] for line in range(tall)]
    for row in (*lines, ["─" * width for width in widths], *shown):
        cells = [
            _fitted(cell, width, right=column in right)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        sys.stdout.write(gap.join(cells).rstrip() + "\n")


def _narrowed(widths: list[int], columns: Sequence[int], least: Sequence[str], over: int) -> int:
    """Take what is over from these columns, none below its text of `least`; what is left over."""
    for column in columns:
        spared = max(0, min(over, widths[column] - _width(least[column])))
        widths[column] -= spared
        over -= spared
    return over


def _width(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _fitted(text: str, width: int, *, right: bool = False) -> str:
    if _width(text) <= width:
        blanks = " " * (width - _width(text))
        return blanks + text if right else text + blanks
    kept, used = "", 0
    for character in text:
        if used + _columns(character) > width - 1:
            break
        kept, used = kept + character, used + _columns(character)
    return kept + _ELLIPSIS + " " * (width - 1 - used)
