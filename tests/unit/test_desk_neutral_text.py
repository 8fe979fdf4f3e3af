"""Text of strangers on terminals, in logs and in spreadsheets."""

import csv
import io
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.policy.neutral_text import csv_cell, neutral_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, Ünïcode, 漢字, 🎉", None),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\rb\nc\td", "a\\rb\\nc\\td"),
        ("\x9b31m", "\\x9b31m"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("\u2066a\u2069", "\\u2066a\\u2069"),
        ("\u2028", "\\u2028"),
        ("\ufeff\u200b", "\\ufeff\\u200b"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\x00\x7f", "\\x00\\x7f"),
    ],
)
def test_what_is_spelled(text, shown):
    assert neutral_text(text) == (text if shown is None else shown)


def test_lines_keep_line_feeds_and_tabs_only():
    assert neutral_text("a\r\nb\tc\rd\n\x1b", lines=True) == "a\nb\tc\\rd\n\\x1b"


@settings(deadline=None)
@given(st.text(st.characters()), st.booleans())
def test_nothing_is_left_that_moves_a_cursor(text, lines):
    shown = neutral_text(text, lines=lines)
    kept = "\n\t" if lines else ""
    bad = [
        c for c in shown if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} and c not in kept
    ]
    assert not bad
    assert not set(shown) & set(
        "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2069"
    )
    assert neutral_text(shown, lines=lines) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\\r=1"),
        ("\n=1", "'\n'=1"),
        ("\x00=1", "'\\x00=1"),
        ("   =1", "'   =1"),
        ("\u00a0=1", "'\u00a0=1"),
        ("\uff1d1", "'\uff1d1"),
        ("\uff0d1", "'\uff0d1"),
        ("a=1", "a=1"),
        ('say "hi", ok; x=y', 'say "hi", ok; x=y'),
        ('say "hi", ok; =x', 'say "hi", ok; \'=x'),
        ("a|+1", "a|'+1"),
        ('a;"=1"', 'a;"\'=1"'),
        ("", ""),
        (None, ""),
        (-5, "-5"),
        (-0.5, "-0.5"),
        (True, "True"),
    ],
)
def test_cells(value, cell):
    assert csv_cell(value) == cell


@settings(deadline=None)
@given(
    st.lists(
        st.text(st.characters()) | st.text(st.sampled_from("=+-@;|,\t\n\r \"'a")),
        min_size=1,
        max_size=4,
    )
)
def test_no_cell_of_a_written_file_is_a_formula(values):
    """F-K12: wherever a program cuts: at commas, semicolons, tabs, bars."""
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerow([csv_cell(value) for value in values])
    (row,) = csv.reader(io.StringIO(out.getvalue(), newline=""))
    assert len(row) == len(values)
    for delimiter in ",;\t|":
        # a program of another country cuts at semicolons, and then our quotes hold nothing
        for cut in csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=delimiter):
            for cell in cut:
                assert not cell.lstrip().startswith(
                    ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
                )
