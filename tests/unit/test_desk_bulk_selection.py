"""What a replay by filter takes by itself, and what it leaves out and tells."""

from datetime import UTC, datetime

import pytest

from outlast.policy.bulk_selection import bulk_selection
from outlast.policy.filter_text import parse, render

NOW = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)


def selection(text, **options):
    taken, left_out = bulk_selection(parse(text, now=NOW), **options)
    return render(taken), {kind: render(query) for kind, query in left_out}


@pytest.mark.parametrize(
    ("text", "taken", "left_out"),
    [
        (
            "queue:a",
            "queue:a state:open -category:POISON",
            {
                "needs_review": "queue:a state:needs_review",
                "escalated": "queue:a state:escalated",
                "POISON": "queue:a category:POISON state:open",
            },
        ),
        (
            "-state:escalated",
            "-state:escalated state:open -category:POISON",
            {
                "needs_review": "-state:escalated state:needs_review",
                "POISON": "-state:escalated category:POISON state:open",
            },
        ),
        ("state:needs_review", "state:needs_review", {}),
        ("state:open category:POISON", "state:open category:POISON", {}),
        (
            "category:EXTERNAL",
            "category:EXTERNAL state:open -category:POISON",
            {
                "needs_review": "category:EXTERNAL state:needs_review",
                "escalated": "category:EXTERNAL state:escalated",
            },
        ),
        (
            "category:POISON category:AUTH -state:escalated",
            "category:POISON category:AUTH -state:escalated state:open -category:POISON",
            {
                "needs_review": "category:POISON category:AUTH -state:escalated state:needs_review",
                "POISON": "-state:escalated category:POISON state:open",
            },
        ),
        (
            "-state:open",
            "-state:open state:open -category:POISON",
            {
                "needs_review": "-state:open state:needs_review",
                "escalated": "-state:open state:escalated",
            },
        ),
    ],
)
def test_what_is_taken_and_what_is_told(text, taken, left_out):
    found, told = selection(text)
    assert set(found.split()) == set(taken.split())
    assert told == left_out


def test_poison_can_be_included():
    taken, told = selection("queue:a", include_poison=True)
    assert taken == "queue:a state:open"
    assert set(told) == {"needs_review", "escalated"}


def test_a_selection_is_a_filter_like_any_other():
    taken, told = selection('queue:"a b" since:2h')
    for text in (taken, *told.values()):
        assert render(parse(text, now=NOW)) == text
