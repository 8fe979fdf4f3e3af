"""What an edit changes, line by line, for people.

In: two texts, masked already. Out: a unified diff of bounded lines, each of bounded length. Its
work is bounded too: long stretches that differ are shown as taken out and put in, unmatched.
"""

import difflib
from collections.abc import Iterator, Sequence

LINES_MAX = 200
"""Lines of one diff."""

CHARS_MAX = 400
"""Characters of one line."""

_CONTEXT = 3
_MATCHED_MAX = 400
_BEFORE_CHANGE = 60


def diff(title: str, before: str, after: str) -> tuple[str, ...]:
    """Nothing for equal texts. `title` is what of the message this is."""
    if before == after:
        return ()
    old, new = before.split("\n"), after.split("\n")
    head, tail = _alike_at_the_ends(old, new)
    start = max(0, head - _CONTEXT)
    old_part, new_part = old[start : len(old) - tail], new[start : len(new) - tail]
    following = old[len(old) - tail :][:_CONTEXT]
    shown = [f"--- {title} before", f"+++ {title} after"]
    if max(len(old_part), len(new_part)) <= _MATCHED_MAX:
        lines = difflib.unified_diff(old_part + following, new_part + following, n=_CONTEXT)
        hunks = [line.rstrip("\n") for line in list(lines)[2:]]
        shown += [_moved(line, start) if line.startswith("@@ ") else line for line in hunks]
    else:
        same = head - start
        shown += [f"@@ -{head + 1},{len(old_part) - same} +{head + 1},{len(new_part) - same} @@"]
        shown += [f" {line}" for line in old_part[:same]]
        shown += _halves(old_part[same:], new_part[same:])
    shown = list(_shortened(shown))
    if len(shown) > LINES_MAX:
        more = len(shown) - LINES_MAX
        shown = [*shown[:LINES_MAX], f"… and {more} more lines"]
    return tuple(shown)


def _alike_at_the_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    least = min(len(old), len(new))
    head = 0
    while head < least and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < least - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def _halves(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Some of what goes and some of what comes, so that neither hides the other."""
    half = LINES_MAX // 2 - _CONTEXT
    shown: list[str] = []
    for sign, lines in (("-", old), ("+", new)):
        shown += [f"{sign}{line}" for line in lines[:half]]
        if len(lines) > half:
            shown.append(f"… and {len(lines) - half} more lines")
    return shown


def _moved(hunk: str, by: int) -> str:
    """The head of a hunk whose first line stands further down in the text."""
    _, old, new, _ = hunk.split(" ")
    places = []
    for sign, place in (("-", old), ("+", new)):
        first, _, count = place[1:].partition(",")
        places.append(f"{sign}{int(first) + by}" + (f",{count}" if count else ""))
    return f"@@ {places[0]} {places[1]} @@"


def _shortened(lines: Sequence[str]) -> Iterator[str]:
    """Long lines, cut so that what differs between a pair of them is seen."""
    for place, line in enumerate(lines):
        if len(line) <= CHARS_MAX:
            yield line
            continue
        beside = [lines[near] for near in (place - 1, place + 1) if 0 <= near < len(lines)]
        begin = max(1, max(_common(line[1:], other[1:]) for other in beside) + 1 - _BEFORE_CHANGE)
        begin = 1 if begin >= len(line) - 1 else begin
        cut = line[begin : begin + CHARS_MAX]
        left = "…" if begin > 1 else ""
        yield f"{line[0]}{left}{cut}" + ("…" if begin + CHARS_MAX < len(line) else "")


def _common(left: str, right: str) -> int:
    """How many characters two texts begin alike with."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
