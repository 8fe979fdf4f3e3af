"""The generated pages say what the code and the tests say now."""

import re

import pytest

from tools import cli_reference, metrics_reference, rest_reference, rows, settings_reference

from .package import ROOT

PAGES = rows.pages()


def spans(group, *both):
    return [f"{group}-{number:02d}" for first, last in both for number in range(first, last + 1)]


REQUIRED_ROWS = [
    *(f"S0-{number:02d}" for number in range(1, 60)),
    *(f"S1-{number:02d}" for number in range(1, 51)),
    *("S2-01", "S2-03", "S2-04", "U-20"),
    *spans("S2", (9, 30), (38, 39), (60, 66), (69, 69)),
    *spans("S3", (16, 20), (23, 26), (33, 36), (44, 46), (48, 48)),
    *spans("S4", (7, 12), (29, 36), (66, 66), (75, 77), (84, 104), (107, 110)),
    *spans("U", (3, 4), (6, 7), (9, 9), (13, 13), (15, 17)),
]
CASES = {
    "A": 11,
    "B": 17,
    "C": 9,
    "D": 11,
    "E": 6,
    "F": 16,
    "G": 13,
    "H": 12,
    "I": 12,
    "J": 8,
    "K": 21,
    "L": 7,
}
REQUIRED_CASES = [f"F-{group}{n:02d}" for group, last in CASES.items() for n in range(1, last + 1)]


def ids(page):
    return re.findall(r"^\| ((?:S\d|U|F)-\w+) \|", page.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_is_as_generated(page):
    assert page.read_text("utf-8") == PAGES[page], "run `make reference`"


def test_each_row_appears_exactly_once():
    assert sorted(ids(rows.REFERENCE / "rows.md")) == sorted(REQUIRED_ROWS)


def test_each_fault_appears_exactly_once():
    assert sorted(ids(rows.REFERENCE / "faults.md")) == sorted(REQUIRED_CASES)


def test_no_row_is_missing():
    missing = rows.missing()
    assert not missing, f"no test names {' '.join(missing)}"


def test_no_test_claims_a_row_that_does_not_exist():
    assert not rows.unknown()


def test_every_proof_is_a_test_that_exists():
    for page in PAGES:
        for place in re.findall(r"`(tests/[^`]+)`", page.read_text("utf-8")):
            path, _, name = place.partition("::")
            assert f"def {name.rpartition('::')[2]}(" in (ROOT / path).read_text("utf-8"), place


@pytest.mark.parametrize("catalogue", [rows.ROWS, rows.FAULTS], ids=lambda c: c.title)
def test_an_exception_says_planned_or_not_applicable(catalogue):
    assert set(catalogue.exceptions) <= set(catalogue.rows)
    for row, reason in catalogue.exceptions.items():
        assert re.match(r"planned(: \w|$)|not applicable: \w", reason), row


def test_the_page_of_the_command_line_is_as_generated():
    assert cli_reference.PAGE.read_text("utf-8") == cli_reference.page(), "run `make reference`"


def test_the_metrics_page_is_as_generated():
    assert metrics_reference.PAGE.read_text("utf-8") == metrics_reference.page(), (
        "run `make reference`"
    )


def test_the_page_of_the_rest_api_is_as_generated():
    assert rest_reference.PAGE.read_text("utf-8") == rest_reference.page(), "run `make reference`"


def test_the_settings_page_is_as_generated():
    assert settings_reference.PAGE.read_text("utf-8") == settings_reference.page(), (
        "run `make reference`"
    )


@pytest.mark.parametrize(
    ("docstring", "claimed"),
    [
        ("S0-09: one thing", ["S0-09"]),
        ("S1-33, S1-34 and S1-35: three", ["S1-33", "S1-34", "S1-35"]),
        ("S0-17..S0-19: columns", ["S0-17", "S0-18", "S0-19"]),
        ("S0-17..19: columns", ["S0-17", "S0-18", "S0-19"]),
        ("F-A01 (SQLite): a rollback", ["F-A01"]),
        ("S0-09, F-A01: two kinds\n\nU-20: and a third.", ["S0-09", "F-A01", "U-20"]),
        ("What S0-09 leaves out: nothing", []),
        ("Nothing is claimed here.", []),
    ],
)
def test_what_a_docstring_claims(docstring, claimed):
    assert rows.named(docstring) == claimed
