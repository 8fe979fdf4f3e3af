"""Values of strangers as words of a filter: quoted, then read as everything else is.

In: names of words and values as they came. Out: a query, or the refusal of the filter itself.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from outlast.model.query import Query
from outlast.policy.filter_scan import quoted
from outlast.policy.filter_text import parse

Words = list[tuple[str, str]]


def query_of(words: Iterable[tuple[str, str]]) -> Query:
    """The query of these words; the same word again is OR."""
    text = " ".join(f"{name}:{quoted(value)}" for name, value in words)
    return parse(text, now=datetime.now(UTC))
