"""`outlast dlq list`: six columns on any terminal, ids whole, the count; what is empty, unknown."""

import re

import pytest

from tests.doors.dlq_command import Command

HEADERS = ["DLQ ID", "Subscription", "Consumer Group", "Failure Reason", "Failed At", "Retries"]
FAILED_AT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


@pytest.fixture
def command(sqlite, monkeypatch, capsys):
    return Command(sqlite, monkeypatch, capsys)


@pytest.fixture
def anywhere(database, monkeypatch, capsys):
    """The same test on SQLite and on PostgreSQL."""
    return Command(database, monkeypatch, capsys)


def columns(lines):
    """The text of each column, by the rule under the headers; several lines of headers are one."""
    rule = next(number for number, line in enumerate(lines) if line.startswith("─"))
    spans = [found.span() for found in re.finditer("─+", lines[rule])]

    def cells(line):
        return [line[start:end].strip() for start, end in spans]

    heads = [" ".join(filter(None, parts)) for parts in zip(*map(cells, lines[:rule]), strict=True)]
    body = lines[rule + 1 :]
    if "" in body:
        body = body[: body.index("")]
    return heads, [cells(line) for line in body]


def test_an_empty_list_is_a_sentence(anywhere):
    """S2-63: status 0."""
    done = anywhere.run("dlq", "list")
    assert (done.status, done.out) == (0, "No DLQ messages found.\n")


def test_a_list_has_the_columns_and_the_count(anywhere):
    """S2-09 S2-10: the newest first; N is all that match, not the rows shown."""
    ids = anywhere.plant(3)
    anywhere.plant(2, queue="mail")
    done = anywhere.run("dlq", "list", "queue:orders", "--limit", 2)
    lines = done.out.splitlines()
    heads, rows = columns(lines)
    assert heads == HEADERS
    assert all(header in lines[0] for header in HEADERS)
    assert [row[0] for row in rows] == [str(ids[2]), str(ids[1])]
    assert lines[4:] == ["", "3 DLQ message(s) found.", "Showing the newest 2 (--limit, --after)."]
    cursor = done.err.split("--after ")[1].split()[0]
    rest = anywhere.run("--json", "dlq", "list", "queue:orders", "--after", cursor).document
    assert [item["dlq_id"] for item in rest["items"]] == [ids[0]]


@pytest.mark.parametrize("option", ["--subscription", "--queue"])
def test_a_subscription_is_listed_alone_and_once(anywhere, option):
    """S2-11: each entry once."""
    ids = anywhere.plant(3, queue="order")
    anywhere.plant(2, queue="payment")
    _, rows = columns(anywhere.run("dlq", "list", f"{option}=order").out.splitlines())
    assert sorted(row[0] for row in rows) == sorted(map(str, ids))
    assert {row[1] for row in rows} == {"order"}


@pytest.mark.parametrize("width", [200, 120, 100, 80, 79, 60, 20])
@pytest.mark.parametrize("letter", [7, 9_007_199_254_740_993])
def test_ids_and_times_are_whole_on_every_terminal(command, monkeypatch, width, letter):
    """S2-09 S2-12 S2-13: what is not needed to go on gives way, with `…`; nothing else does."""
    command.plant(id=letter, queue="q" * 100, subscriber="s" * 100, error_message="x" * 500)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = command.run("dlq", "list").out.splitlines()
    heads, (row,) = columns(lines)
    assert heads == HEADERS
    assert row[0] == str(letter)
    assert FAILED_AT.fullmatch(row[4])
    assert row[3].endswith("…")
    assert row[5] == "3"
    if width >= 80:
        assert max(map(len, lines)) <= width


def test_at_eighty_columns_no_header_is_broken(command):
    """S2-09: with the ids of the first hundred million letters."""
    command.plant(id=999_999_999, queue="q" * 100)
    lines = command.run("dlq", "list").out.splitlines()
    assert re.fullmatch(r"\s+".join(HEADERS), lines[0])
    assert max(map(len, lines)) <= 80


def test_what_was_cut_is_whole_elsewhere(command):
    """S2-12: `--wide` and `--json` cut nothing."""
    command.plant(queue="q" * 100, error_message="x" * 500)
    assert "x" * 500 not in command.run("dlq", "list").out
    wide = command.run("dlq", "list", "--wide").out
    assert "q" * 100 in wide
    assert "x" * 500 in wide
    (item,) = command.run("dlq", "list", "--json").document["items"]
    assert "x" * 500 in item["failure"]


def test_retries_stand_at_the_right(command):
    """S2-14: units under units."""
    command.plant(attempts_count=3)
    command.plant(attempts_count=12_345_678)
    lines = command.run("dlq", "list").out.splitlines()
    assert lines[2].endswith(" 12345678")
    assert lines[3].endswith("        3")
    assert len(lines[2]) == len(lines[3]) == len(lines[1])


def test_a_time_that_is_missing_is_a_dash():
    """S2-13: no letter of ours lacks it; other times of a column may be missing."""
    from outlast.cli.paper import second

    assert second(None) == "-"


def test_wide_characters_keep_the_columns_straight(command):
    command.plant(queue="注文", subscriber="короткий")
    header, _, row, *_ = command.run("dlq", "list").out.splitlines()
    before = row.partition("короткий")[0]
    assert len(before) + 2 == header.index("Consumer Group")


def test_many_letters_of_few_causes_are_pointed_out(command):
    """From the twenty-first on, beside the list."""
    command.plant(20)
    assert "cause" not in command.run("dlq", "list").err
    command.plant(5)
    done = command.run("dlq", "list")
    assert "1 cause makes up 25 of these: outlast dlq groups" in done.err
    assert "cause" not in done.out


VERBS = [
    ["list"],
    ["inspect", "--all"],
    ["groups"],
    ["stats"],
    ["replay-all", "-y"],
    ["purge", "-y"],
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_an_unknown_subscription_is_told_with_those_there_are(anywhere, verb):
    """S2-61: Protean's sentence, status 1, and the names; a filter's word is only empty."""
    anywhere.plant(queue="payments")
    done = anywhere.run("dlq", *verb, "--subscription=order")
    assert (done.status, done.out) == (1, "")
    assert "Error: No subscription found for stream category 'order'." in done.err
    assert "payments" in done.err
    assert anywhere.run("dlq", *verb, "queue:order").status == 0


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_known_subscription_without_letters_is_no_error(command, verb):
    """S2-61: a message on its way names it."""
    (letter,) = command.plant(queue="order")
    assert command.run("dlq", "replay", letter, "--to", "order").status == 0
    done = command.run("dlq", *verb, "--subscription=order")
    assert done.status == 0, done.err


@pytest.mark.parametrize(
    "verb",
    [
        *VERBS,
        ["inspect", "1"],
        ["replay", "1"],
        ["purge", "1", "-y"],
        ["restore", "1"],
        ["mark", "1", "--open"],
        ["edit", "1", "--header", "a=b"],
        ["history", "1"],
        ["export"],
    ],
    ids=" ".join,
)
def test_an_outbox_without_dead_letters_is_told_by_every_verb(command, monkeypatch, verb):
    """S2-60: Protean's sentence and status."""
    command._do(lambda connection: connection.run_sync(command.dlq.drop))
    verb = [*verb, "queue:x"] if verb in VERBS else verb
    done = command.run("dlq", *verb)
    assert (done.status, done.out) == (1, "")
    assert "Configured broker does not support dead letter queues" in done.err
    named = command.run("dlq", *verb, "--dlq-table", "letters")
    assert named.status == 2
    assert "table letters does not exist" in named.err
