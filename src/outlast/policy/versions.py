"""The order of versions: `1.10` is newer than `1.9`, `2.0rc1` older than `2.0`.

In: version texts. Out: keys that compare, or None for what has no order, such as a commit hash.
"""

import re
from collections.abc import Iterable

from outlast.model.query import Condition

VERSION_CHARS_MAX = 255

VersionKey = tuple[tuple[int, ...], int, int]

_NUMBER = r"[0-9]{1,18}"
_VERSION = re.compile(
    rf"v?({_NUMBER}(?:\.{_NUMBER})*)(?:[-._]?(dev|alpha|a|beta|b|rc|c|pre|post)[-._]?({_NUMBER})?)?"
    r"(?:\+[0-9a-z.-]*)?",
    re.IGNORECASE,
)
_STAGES = {"dev": 0, "alpha": 1, "a": 1, "beta": 2, "b": 2, "rc": 3, "c": 3, "pre": 3, "post": 5}
_FINAL = 4


def version_key(text: str) -> VersionKey | None:
    """What a version is compared by; build metadata after `+` does not count."""
    if len(text) > VERSION_CHARS_MAX:
        return None
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        return None
    numbers = [int(number) for number in found.group(1).split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    stage = found.group(2)
    return (
        tuple(numbers),
        _FINAL if stage is None else _STAGES[stage.lower()],
        int(found.group(3) or 0),
    )


def _compares(condition: Condition, version: str) -> bool:
    if condition.operator == "=":
        return version == condition.value
    wanted, have = version_key(str(condition.value)), version_key(version)
    if wanted is None or have is None:
        return False
    match condition.operator:
        case ">=":
            return have >= wanted
        case ">":
            return have > wanted
        case "<=":
            return have <= wanted
        case _:
            return have < wanted


def matching_versions(conditions: Iterable[Condition], distinct: Iterable[str]) -> tuple[str, ...]:
    """Those of the versions that occur which one of the conditions takes: a list to bind."""
    wanted = tuple(conditions)
    return tuple(v for v in distinct if any(_compares(condition, v) for condition in wanted))
