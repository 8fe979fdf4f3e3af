"""The ledger of the demo: it balances when it should, and each planted bug is found."""

from collections import Counter

import pytest

from outlast.demo.ledger import Stock, balance
from outlast.demo.record import Record


def stock(**changes):
    """Five messages: two delivered, one dead, two waiting; two more were rolled back."""
    parts = {
        "committed": {"a", "b", "c", "d", "e"},
        "rolled_back": {"x", "y"},
        # c was tried twice and died, d has failed once and waits for its retry
        "begun": Counter({"a": 1, "b": 1, "c": 2, "d": 1}),
        "finished": Counter({"a": 1, "b": 1}),
        "dead": Counter({"c": 1}),
        "waiting": Counter({"d": 1, "e": 1}),
    }
    return Stock(**parts | changes)


def test_a_sound_stock_balances():
    found = balance(stock())
    assert found.holds
    assert (found.committed, found.accounted) == (5, 5)
    assert (found.delivered, found.dead, found.waiting) == (2, 1, 2)
    assert (found.rolled_back, found.rolled_back_seen, found.delivered_again) == (2, 0, 0)


def test_a_message_that_was_delivered_twice_is_told_and_allowed():
    again = Counter({"a": 3, "b": 1})
    found = balance(stock(begun=again, finished=again))
    assert found.holds
    assert found.delivered_again == 2


def test_an_empty_ledger_balances():
    assert balance(Stock(committed=set())).holds


PLANTS = {
    "a waiting message is lost": ({"waiting": Counter({"d": 1})}, "neither delivered", "e"),
    "a dead letter is lost": ({"dead": Counter()}, "neither delivered", "c"),
    "a delivery is lost": ({"finished": Counter({"a": 1})}, "neither delivered", "b"),
    "a phantom is delivered": (
        {
            "begun": Counter({"a": 1, "b": 1, "z": 1}),
            "finished": Counter({"a": 1, "b": 1, "z": 1}),
        },
        "never committed",
        "z",
    ),
    "a phantom is begun": ({"begun": Counter({"a": 1, "b": 1, "z": 1})}, "never committed", "z"),
    "a phantom waits": ({"waiting": Counter("dez")}, "never committed", "z"),
    "a rolled-back message is begun": ({"begun": Counter("abx")}, "rolled back, but seen", "x"),
    "a rolled-back message waits": ({"waiting": Counter("dex")}, "rolled back, but seen", "x"),
    "a rolled-back message is dead": ({"dead": Counter("cx")}, "rolled back, but seen", "x"),
    "a rolled-back order is there": (
        {"committed": set("abcdex"), "waiting": Counter("dex")},
        "rolled back, but seen",
        "x",
    ),
    "two dead letters": ({"dead": Counter({"c": 2})}, "more than one dead letter", "c"),
    "two rows": ({"waiting": Counter({"d": 2, "e": 1})}, "more than one row", "d"),
    "delivered and dead": ({"dead": Counter("ca")}, "a dead letter too", "a"),
    "delivered and waiting": ({"waiting": Counter("dea")}, "and still waiting", "a"),
    "dead and waiting": ({"waiting": Counter("dec")}, "and still waiting", "c"),
    "a loss and a double that hide each other": (
        {"dead": Counter({"c": 2}), "waiting": Counter({"d": 1})},
        "neither delivered",
        "e",
    ),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_imbalance_is_found_and_named(plant):
    changes, sentence, culprit = PLANTS[plant]
    found = balance(stock(**changes))
    assert not found.holds
    assert any(sentence in text and culprit in text.split(": ")[1] for text in found.findings)


def test_many_findings_stay_one_short_sentence():
    (finding,) = balance(Stock(committed={f"m{n}" for n in range(100)})).findings
    assert finding.endswith("m0, m1, m10 and 97 more")


def test_a_handler_that_raises_has_begun_and_not_finished():
    record = Record()
    with pytest.raises(ValueError), record.handling("m"):
        raise ValueError
    with record.handling("m"):
        pass
    assert (record.begun["m"], record.finished["m"]) == (2, 1)
