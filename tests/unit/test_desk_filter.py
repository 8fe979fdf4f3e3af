"""The filter: what each word means, what is refused and where, and that its text is faithful."""

import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast.model.query import (
    LISTED_STATES,
    STATES,
    Condition,
    FilterError,
    Name,
    Query,
    Word,
)
from outlast.policy.filter_text import (
    FILTER_CHARS_MAX,
    PATH_STEPS_MAX,
    STEP_CHARS_MAX,
    VALUE_CHARS_MAX,
    WORDS_MAX,
    parse,
    pointer,
    render,
    with_options,
)
from outlast.policy.filter_values import COUNT_MAX, ID_MAX
from outlast.policy.versions import matching_versions, version_key

NOW = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)
HOSTILE = settings(deadline=None, max_examples=200)


def read(text):
    return parse(text, now=NOW)


def only(text):
    (word,) = read(text).words
    return word


def plain(text):
    (condition,) = only(text).alternatives
    return condition


def refusal(text):
    with pytest.raises(FilterError) as caught:
        read(text)
    return caught.value


def test_the_example_of_the_guide():
    query = read('queue:orders category:EXTERNAL error:"timed out" since:2h state:open')
    assert query.words == (
        Word("queue", (Condition("=", "orders"),)),
        Word("category", (Condition("=", "EXTERNAL"),)),
        Word("error", (Condition("=", "timed out"),)),
        Word("since", (Condition(">=", NOW - timedelta(hours=2)),)),
        Word("state", (Condition("=", "open"),)),
    )


@pytest.mark.parametrize(
    "name",
    ["queue", "subscriber", "message", "event", "reason", "triage", "owner", "error", "group"],
)
def test_plain_words_take_any_text(name):
    assert only(f"{name}:x-1") == Word(name, (Condition("=", "x-1"),))
    assert only(f"{name.upper()}:x").name == name


@pytest.mark.parametrize("synonym", ["stream", "subscription", "queue"])
def test_three_names_of_a_queue_are_one_word(synonym):
    assert only(f"{synonym}:a queue:b") == Word("queue", (Condition("=", "a"), Condition("=", "b")))


def test_the_same_word_again_is_another_alternative_and_other_words_are_anded():
    query = read("queue:a owner:o queue:b queue:a -queue:c -queue:d")
    assert query.words == (
        Word("queue", (Condition("=", "a"), Condition("=", "b"))),
        Word("owner", (Condition("=", "o"),)),
        Word("queue", (Condition("=", "c"), Condition("=", "d")), negated=True),
    )


def test_categories_are_upper_case_as_they_are_stored():
    assert plain("category:External").value == "EXTERNAL"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('error:"timed out"', "timed out"),
        (r"error:timed\ out", "timed out"),
        (r'error:"say \"no\" \\ now"', 'say "no" \\ now'),
        (r"error:C:\temp\new", r"C:\temp\new"),
        ("error:it's", "it's"),
        ("error:<html>", "<html>"),
        ('error:a" b "c', "a b c"),
        ("error:a:b::c", "a:b::c"),
        ('queue:">5"', ">5"),
        (r"message:\"", '"'),
        ("message:-1", "-1"),
    ],
)
def test_quotes_and_escapes(text, value):
    assert plain(text) == Condition("=", value)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("15m", NOW - timedelta(minutes=15)),
        ("2h", NOW - timedelta(hours=2)),
        ("3d", NOW - timedelta(days=3)),
        ("1w", NOW - timedelta(weeks=1)),
        ("1d12h", NOW - timedelta(hours=36)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T10:30", datetime(2026, 11, 1, 10, 30, tzinfo=UTC)),
        ("2026-11-01T10:30:01.5Z", datetime(2026, 11, 1, 10, 30, 1, 500_000, tzinfo=UTC)),
        ("2026-11-01T10:30:00+02:00", datetime(2026, 11, 1, 8, 30, tzinfo=UTC)),
        ("2026-11-01t10:30z", datetime(2026, 11, 1, 10, 30, tzinfo=UTC)),
        ('"2026-11-01 10:30 UTC"', datetime(2026, 11, 1, 10, 30, tzinfo=UTC)),
        ('"2026-11-01 10:30:00 -0130"', datetime(2026, 11, 1, 12, 0, tzinfo=UTC)),
    ],
)
def test_times_and_spans(text, instant):
    assert plain(f"since:{text}") == Condition(">=", instant)
    assert plain(f"until:{text}") == Condition("<", instant)
    assert plain(f"since:{text}").value.tzinfo is UTC


def test_a_span_is_an_instant_from_then_on():
    """The same query an hour later still means the same hours."""
    once = parse("since:2h", now=NOW)
    assert render(once) == "since:2026-11-19T10:00:00Z"
    assert parse(render(once), now=NOW + timedelta(hours=1)) == once


def test_now_may_be_in_any_zone_but_must_have_one():
    elsewhere = NOW.astimezone(timezone(timedelta(hours=9)))
    assert parse("since:1h", now=elsewhere) == read("since:1h")
    with pytest.raises(ValueError, match="timezone-aware") as caught:
        parse("since:1h", now=datetime(2026, 1, 1))
    assert not isinstance(caught.value, FilterError)


@pytest.mark.parametrize(
    ("text", "operator", "value"),
    [
        ("replays:2", "=", 2),
        ("replays:=2", "=", 2),
        ("replays:>=2", ">=", 2),
        ("replays:>0", ">", 0),
        ("replays:<=7", "<=", 7),
        ("replays:<007", "<", 7),
        ("version:>=1.4.0", ">=", "1.4.0"),
        ("version:<2.0rc1", "<", "2.0rc1"),
        ("version:=1.4", "=", "1.4"),
        ("version:3f2a9c", "=", "3f2a9c"),
        ('version:">=odd"', "=", ">=odd"),
        ("id:17", "=", 17),
        (f"id:{ID_MAX}", "=", ID_MAX),
    ],
)
def test_numbers_versions_and_operators(text, operator, value):
    assert plain(text) == Condition(operator, value)


def test_headers_and_paths_into_the_body():
    assert only("header.X-Tenant:acme").path == ("X-Tenant",)
    assert only("header.a.b:x").path == ("a.b",)
    assert only(r"header.with\:colon:x").path == ("with:colon",)
    assert only("body.order.lines.0.sku:x").path == ("order", "lines", "0", "sku")
    assert only(r'body.a\.b."c d":x').path == ("a.b", "c d")
    assert plain('body.note:""').value == ""
    assert read("header.a:1 header.b:2").words[1].path == ("b",)


def test_states():
    assert read("").states == read("queue:a").states == LISTED_STATES
    assert read("state:any").states == STATES
    assert read("state:resolved state:open").states == ("open", "resolved")
    assert read("-state:escalated").states == ("open", "needs_review")
    assert read("state:any -state:resolved -state:discarded").states == (
        *LISTED_STATES,
        "replaying",
    )
    assert read("state:needs-review").states == ("needs_review",)
    assert read("state:open").names_states
    assert not read("-state:open").names_states


def test_an_empty_filter_is_empty():
    assert read("").is_empty
    assert read(" \t\n ").is_empty
    assert not read("state:any").is_empty


@pytest.mark.parametrize(
    ("text", "position", "nearest", "told"),
    [
        ("queue:a qeue:x", 8, "queue:", 'did you mean "queue:"'),
        ("  subscribr:x", 2, "subscriber:", "subscribr"),
        ("headers.x:1", 0, "header.", "headers.x"),
        ("zzzzzz:1", 0, None, "there are queue:, "),
        ("queue.a:x", 0, "queue:", "takes no path"),
        ("timeout", 0, "error:", "did you mean error:timeout?"),
        ("17", 0, "id:", "did you mean id:17?"),
        ("queue", 0, "queue:", "needs a colon"),
        ("queue:a AND owner:b", 8, None, "words are ANDed"),
        ("--queue:a", 0, "queue:", '"-queue:"'),
        ("queue:", 6, None, "needs a value"),
        ('queue:""', 6, None, "needs a value"),
        ("header:x", 0, None, "header.tenant:"),
        ("header.:x", 0, None, "needs a name"),
        ("body:x", 0, None, "body.order.id:"),
        ("body.a..b:x", 0, None, "needs a name"),
        ('owner:a error:"timed out', 14, None, "a quote is not closed"),
        (r'error:"a\"', 6, None, "a quote is not closed"),
        ("queue:>=5", 6, None, "takes no operator"),
        ("body.price:>5", 11, None, "takes no operator"),
        ("id:<5", 3, None, "takes no operator"),
        ("replays:=>2", 8, None, '"=>" is no operator'),
        ("replays:~2", 8, None, "is no operator"),
        ("replays:>=", 10, None, "a value is missing"),
        ("replays:two", 8, None, "is not a number"),
        ("replays:>=-1", 10, None, "is not a number"),
        (f"replays:{COUNT_MAX + 1}", 8, None, "is not a number"),
        (f"id:{ID_MAX + 1}", 3, None, "is not a number"),
        ("id:\u0663", 3, None, "is not a number"),
        ("version:>=3f2a9c", 10, None, "has no order"),
        ("state:opne", 6, "open", 'did you mean "open"'),
        ("since:2026-02-30", 6, None, "impossible time"),
        ("since:2026-11-19T25:00", 6, None, "impossible time"),
        ("since:0001-01-01T00:00+14:00", 6, None, "impossible time"),
        ("since:yesterday", 6, None, "is no time"),
        ("since:2x", 6, None, "is no time"),
        ("since:20261119", 6, None, "is no time"),
        ("since:-2h", 6, None, "is no time"),
        ("until:99999w", 6, None, "is longer than"),
        ("until:" + "999999999w" * 50, 6, None, "is longer than"),
        ("queue:a\x00b", 7, None, "cannot contain"),
        ("queue:\ud800", 6, None, "cannot contain"),
        ("x" * (FILTER_CHARS_MAX + 1), FILTER_CHARS_MAX, None, "are read"),
        ("error:" + "x" * (VALUE_CHARS_MAX + 1), 6, None, "are read"),
        ("id:1 " * WORDS_MAX + "id:2", 5 * WORDS_MAX, None, "101 words"),
        ("body" + ".a" * (PATH_STEPS_MAX + 1) + ":x", 0, None, "a path of at most"),
        ("header." + "a" * (STEP_CHARS_MAX + 1) + ":x", 0, None, "a path of at most"),
    ],
)
def test_what_is_refused_and_where(text, position, nearest, told):
    error = refusal(text)
    assert (error.position, error.nearest) == (position, nearest)
    assert told in str(error)
    assert "\x00" not in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("-state:any", "no state is left"),
        ("state:open -state:open", "no state is left"),
        ("replays:>=2 replays:<5", "write replays:>=2 -replays:>=5"),
        ("replays:<=5 replays:>2", "write replays:>2 -replays:>5"),
        ("replays:>=2 replays:<2", "takes everything"),
        ("replays:>2 replays:<3", "takes everything"),
        ("replays:>=6 replays:<=5", "takes everything"),
        ("version:>=1.9 version:<1.9", "takes everything"),
        ("version:>=1.9 version:<1.10", "takes everything"),
        ("-replays:>=2 -replays:<5", "leave nothing"),
    ],
)
def test_words_that_contradict_each_other_are_refused(text, told):
    """A range written as OR would act on everything."""
    assert told in str(refusal(text))


@pytest.mark.parametrize(
    "text",
    [
        "replays:<2 replays:>5",
        "replays:<2 replays:>2",
        "replays:<5 replays:>=6",
        "version:<2 version:>2",
        "replays:>=2 replays:0",
        "replays:>=2 -replays:>=5",
        "version:>=1.9 version:<1.2",
    ],
)
def test_alternatives_that_leave_something_out_are_fine(text):
    assert render(read(text)) == text


def test_the_limits_themselves_are_accepted():
    assert len(plain("error:" + "x" * VALUE_CHARS_MAX).value) == VALUE_CHARS_MAX
    assert len(read("".join(f"id:{n} " for n in range(WORDS_MAX))).terms()) == WORDS_MAX
    assert len(only("body" + ".a" * PATH_STEPS_MAX + ":x").path) == PATH_STEPS_MAX


def test_the_pointer_stands_under_the_place():
    text = "queue:orders qeue:x"
    line, mark = pointer(text, refusal(text)).split("\n")
    assert line == text
    assert mark.index("^") == text.index("qeue")


def test_the_pointer_is_harmless_and_short():
    text = "owner:" + "\x1b[31m" * 50 + " qeue:x"
    shown = pointer(text, refusal(text))
    assert "\x1b" not in shown
    line, mark = shown.split("\n")
    assert line[mark.index("^") :].startswith("qeue")
    assert len(line) < 200
    assert pointer("", FilterError("an option")) == ""


def test_options_are_sugar_for_words():
    query = with_options(
        read("queue:a"),
        now=NOW,
        queue=["b"],
        subscription=["c d"],
        subscriber=["handle"],
        category=["timeout"],
        state=["any"],
        since="2h",
        until="2026-11-19",
    )
    assert query == read(
        'queue:a queue:b queue:"c d" subscriber:handle category:TIMEOUT state:any '
        "since:2h until:2026-11-19"
    )
    assert with_options(read("queue:a"), now=NOW) == read("queue:a")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"since": "soon"}, "since:"),
        ({"state": ["opne"]}, "did you mean"),
        ({"queue": [""]}, "--queue needs a value"),
        ({"queue": ["x" * (VALUE_CHARS_MAX + 1)]}, "are read"),
        ({"queue": ["a\x00"]}, "cannot contain"),
        ({"queue": [str(n) for n in range(WORDS_MAX + 1)]}, "101 words"),
    ],
)
def test_options_are_checked_like_words(options, told):
    with pytest.raises(FilterError, match=told) as caught:
        with_options(Query(), now=NOW, **options)
    assert caught.value.position is None


def test_an_option_is_never_read_as_syntax():
    query = with_options(Query(), now=NOW, queue=['a" owner:b', ">=5", "-x:y"])
    assert [c.value for c in query.words[0].alternatives] == ['a" owner:b', ">=5", "-x:y"]
    assert parse(render(query), now=NOW) == query


TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\x00"),
        st.sampled_from('"\\:.-<>=!~ \t\xa0\u2028'),
    ),
    min_size=1,
    max_size=30,
)
INSTANTS = st.datetimes(
    datetime(1, 1, 2),
    datetime(9999, 12, 30),
    timezones=st.just(UTC),
)


def term(name, path, condition):
    return st.tuples(st.just(name), path, st.booleans(), condition)


def equal(values):
    return values.map(lambda value: Condition("=", value))


def compared(values):
    return st.builds(Condition, st.sampled_from(["=", ">=", ">", "<=", "<"]), values)


NO_PATH = st.just(())
TERMS = st.one_of(
    *(
        term(name, NO_PATH, equal(TEXT))
        for name in get_args(Name)
        if name in {"queue", "subscriber", "message", "event", "reason", "triage", "owner"}
        or name in {"error", "group", "version"}
    ),
    term("category", NO_PATH, equal(TEXT.map(str.upper).filter(lambda t: t.upper() == t))),
    term("id", NO_PATH, equal(st.integers(0, ID_MAX))),
    term("replays", NO_PATH, compared(st.integers(0, COUNT_MAX))),
    term(
        "version", NO_PATH, compared(st.from_regex(r"[0-9]\.[0-9]{1,2}(rc[0-9])?", fullmatch=True))
    ),
    term("state", NO_PATH, equal(st.sampled_from(STATES))),
    term("since", NO_PATH, INSTANTS.map(lambda at: Condition(">=", at))),
    term("until", NO_PATH, INSTANTS.map(lambda at: Condition("<", at))),
    term("header", TEXT.map(lambda name: (name,)), equal(st.just("") | TEXT)),
    term("body", st.lists(TEXT, min_size=1, max_size=4).map(tuple), equal(st.just("") | TEXT)),
)


@HOSTILE
@given(st.lists(TERMS, max_size=6))
def test_every_query_can_be_written_and_read_again(terms):
    query = Query.gather(terms)
    text = render(query)
    try:
        again = parse(text, now=NOW)
    except FilterError as error:
        # combined by chance into what no filter may ask
        told = str(error)
        assert "everything" in told or "nothing" in told or "no state is left" in told
    else:
        assert again == query
        assert render(again) == text


FRAGMENTS = st.one_of(
    st.sampled_from(
        [
            *(f"{n}:" for n in get_args(Name)),
            "header.",
            "body.",
            "-",
            '"',
            "\\",
            ">=",
            "<",
            ":",
            ".",
        ]
    ),
    st.sampled_from(["2h", "2026-11-19", "open", "any", " ", "  ", "1.2", "7", "\x00", "\ud800"]),
    st.text(max_size=8),
)


@HOSTILE
@given(st.lists(FRAGMENTS, max_size=25).map("".join))
@example('error:"' + '\\"' * 4000)
@example("-" * 8000)
@example("body" + "." * 8000 + ":x")
@example(":" * 8000)
@example("a:" * 4000)
@example("\\" * 8001)
@example(" ".join(["header.x:1"] * 600))
def test_hostile_text_gets_an_answer_or_a_filter_error(text):
    try:
        query = parse(text, now=NOW)
    except FilterError as error:
        assert error.position is None or 0 <= error.position <= len(text)
        shown = f"{error}{pointer(text, error).replace(chr(10), '')}{error.piece}"
        assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cs", "Zl"}
        assert not any(c in shown for c in "\u202a\u202e\u2066\u200f")
    else:
        assert parse(render(query), now=NOW + timedelta(days=1)) == query


def test_queries_are_values():
    assert hash(read("queue:a since:2h")) == hash(read("queue:a since:2h"))
    with pytest.raises(AttributeError):
        read("queue:a").words = ()


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("1.9", "1.10"),
        ("1", "1.0.1"),
        ("2.0.dev1", "2.0a1"),
        ("2.0a1", "2.0b1"),
        ("2.0-beta.2", "2.0rc1"),
        ("2.0rc1", "2.0"),
        ("2.0", "2.0.post1"),
        ("v1.2", "v1.3"),
        ("2026.1.2", "2026.11.1"),
    ],
)
def test_the_order_of_versions(older, newer):
    assert version_key(older) < version_key(newer)


@pytest.mark.parametrize("text", ["3f2a9c", "latest", "", "1..2", "1.x", "1." * 200, "9" * 300])
def test_what_has_no_order(text):
    assert version_key(text) is None


def test_equal_versions():
    assert version_key("1.0") == version_key("v1") == version_key("1.0.0+build.7")


def test_distinct_versions_are_compared_here_and_bound_as_a_list():
    distinct = ["1.9", "1.10", "2.0", "3f2a9c"]
    wanted = only("version:>=1.10 version:3f2a9c").alternatives
    assert matching_versions(wanted, distinct) == ("1.10", "2.0", "3f2a9c")
    assert matching_versions(only("version:<1.10").alternatives, distinct) == ("1.9",)
    assert matching_versions(only("version:<=1.10").alternatives, distinct) == ("1.9", "1.10")
    assert matching_versions(only("version:>1.10").alternatives, distinct) == ("2.0",)
