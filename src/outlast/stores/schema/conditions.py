"""Whether two SQL conditions say the same, though a database rewrites what it was given.

In: the text of partial-index predicates and CHECK constraints. Out: yes or no. Nothing is run in
the user's database: a text that is not made of known words is simply not recognised.
"""

import re
import sqlite3
from contextlib import closing

_CASTS = re.compile(
    r"::\s*(?:character varying|timestamp with(?:out)? time zone|\w+)(?:\(\d+\))?(?:\[\])?"
)
_ANY = re.compile(r"=\s*any\s*\(*\s*array\s*\[(.*?)\]", re.IGNORECASE)
_ANY_OF_TWO = re.compile(r"=\s*any\s*\(array\[([012, ]+)\]\)", re.IGNORECASE)
_NOISE = re.compile(r"[\s()\"]+")

_LEASE_WORDS = re.compile(
    r"(?:\s+|[()=,]|<>|!=|\b(?:acquired_token|acquired_at|is|not|null|and|or|in|distinct|from|true|"
    r"false|num_nulls|num_nonnulls|[012])\b)+",
    re.IGNORECASE,
)


def same_predicate(live: str, wanted: str) -> bool:
    """Whether a partial index covers the rows it should."""
    return _plain(live) == _plain(wanted)


def _plain(condition: str) -> str:
    without_casts = _CASTS.sub("", condition)
    as_list = _ANY.sub(r" in \1", without_casts)
    return _NOISE.sub("", as_list).lower()


def enforces_lease(check: str) -> bool:
    """Whether a CHECK holds exactly when token and time of a lease are both set or both absent.

    Tried on the four cases, because there are many ways to write it.
    """
    condition = _ANY_OF_TWO.sub(r" in (\1)", _CASTS.sub("", check).replace('"', ""))
    if not _LEASE_WORDS.fullmatch(condition):
        return False
    with closing(sqlite3.connect(":memory:")) as scratch:
        scratch.create_function("num_nulls", -1, lambda *given: given.count(None))
        scratch.create_function("num_nonnulls", -1, lambda *given: len(given) - given.count(None))
        try:
            # the text holds nothing but the words above
            rows = scratch.execute(
                f"SELECT ({condition}) IS NOT 0, (acquired_token IS NULL) = (acquired_at IS NULL) "  # noqa: S608
                "FROM (SELECT NULL AS acquired_token UNION ALL SELECT 1), "
                "(SELECT NULL AS acquired_at UNION ALL SELECT 1)",
            ).fetchall()
        except sqlite3.Error:
            return False
    return all(allowed == wanted for allowed, wanted in rows)
