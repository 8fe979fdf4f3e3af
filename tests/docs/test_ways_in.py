"""The page on how messages become dead letters knows every way there is."""

from typing import get_args

from outlast.message import DLQFailureReason
from outlast.model import outcome
from tests.docs import pages

PAGE = pages.ROOT / "docs" / "guides" / "dead-letters.md"


def section(page, title):
    text = page.read_text("utf-8").partition(f"\n## {title}\n")[2]
    return text.partition("\n## ")[0]


def reasons_told():
    rows = [
        line
        for line in section(PAGE, "Reasons").splitlines()
        if line.startswith("| `") and "failure_reason" not in line
    ]
    return {row.split("|")[1].strip(" `"): row.split("|")[2].strip() for row in rows}


def test_every_way_into_the_dead_letters_is_on_the_page():
    """S2-66: the outbox's reasons, all of them and no other, each with when it comes."""
    told = reasons_told()
    known = {
        *(outcome.MAX_DELIVERIES, outcome.RETRY_TERMINAL),
        *(outcome.REJECTED, outcome.UNDECODABLE),
    }
    assert told.keys() == known == set(get_args(DLQFailureReason))
    assert all(told.values())
    assert "(retries.md)" in told["retry_terminal"]
    assert "never becomes one" in section(PAGE, "Reasons")


def test_the_pages_of_operators_lead_there():
    """S2-66: whoever works on dead letters finds how they came to be."""
    operators = (pages.ROOT / "docs" / "operate" / "dead-letters.md").read_text("utf-8")
    assert "../guides/dead-letters.md#reasons" in operators
    for reason in get_args(DLQFailureReason):
        assert f"\n| `{reason}` | " in operators
