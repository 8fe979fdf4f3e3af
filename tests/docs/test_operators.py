"""What the operators' pages say in words is what the code says: refusals, masked names."""

import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from outlast.cli import outcomes, paper
from outlast.cli.asking import Asked
from outlast.cli.frame import Unanswered, failed
from outlast.cli.questions import confirm
from outlast.model.letter_view import LetterView
from outlast.model.query import LISTED_STATES, STATES, Query
from outlast.model.replay import (
    Admission,
    BulkReplay,
    Denial,
    Gate,
    LeftOut,
    LetterReplay,
    Refusal,
    ReplayFacts,
    WorkerSeen,
)
from outlast.ops import DeskError, NotRecorded
from outlast.ops.context import need_filter
from outlast.ops.refusals import not_found
from outlast.ops.replaying import ReplayOptions
from outlast.ops.tally import ReplayTally
from outlast.policy.gates import ReplayRequest, judge
from outlast.policy.masking import SECRET_NAMES, Masker
from outlast.stores.desk.sending import _without_revision
from tests.docs import pages
from tests.docs.runner import Page

REFUSED = pages.ROOT / "docs" / "operate" / "refused.md"
MASKING = pages.ROOT / "docs" / "operate" / "masking.md"
RUNBOOK = pages.ROOT / "docs" / "operate" / "runbook.md"
NOON = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def said_on(page):
    """The lines of the page's blocks of text."""
    texts = [block.text for block in pages.blocks(page) if block.language == "text"]
    return [line for text in texts for line in text.splitlines()]


def letter(**columns):
    row = {
        "id": 17,
        "original_id": 3,
        "queue": "orders",
        "deliveries_count": 3,
        "created_at": NOON - HOUR,
        "failed_at": NOON - HOUR,
        "failure_reason": "retry_terminal",
        "failure_category": "VALIDATION",
        "consumer_version": "1.4",
        "first_failure_at": NOON - HOUR,
        "last_failure_at": NOON - HOUR,
        "state": "open",
        "state_changed_at": NOON,
        "replay_count": 0,
        "replays_at_reopen": 0,
        "revision": 2,
    }
    return LetterView.of(row | columns)


def worker(version="1.4"):
    return WorkerSeen("worker-1", version, frozenset({"orders"}), NOON - 2 * HOUR, NOON)


def facts(*workers, **known):
    return ReplayFacts(**{"now": NOON, "queue": "orders", "workers": workers} | known)


AUTOMATIC = ReplayRequest(automatic=True)
JUDGED = [
    (letter(failure_category="EXTERNAL", replay_count=3), facts(), ReplayRequest()),
    (letter(failure_category="EXTERNAL", state="escalated"), facts(), ReplayRequest()),
    (letter(), facts(worker()), ReplayRequest()),
    (letter(), facts(worker(), body="refused"), ReplayRequest()),
    (letter(failure_category="POISON"), facts(), ReplayRequest()),
    (letter(), facts(worker("2")), AUTOMATIC),
    (
        letter(failure_category="TIMEOUT", first_failure_at=NOON - 25 * HOUR),
        facts(worker()),
        AUTOMATIC,
    ),
    (letter(failure_category=None), facts(worker()), ReplayRequest()),
    (letter(consumer_version=None), facts(worker()), ReplayRequest()),
    (letter(), facts(workers=None), ReplayRequest()),
    (letter(), facts(), ReplayRequest()),
    (letter(), facts(worker(None)), ReplayRequest()),
    (letter(), facts(worker(), body="unknown"), ReplayRequest()),
    (letter(state="replaying", replayed_as=42), facts(), ReplayRequest()),
    (letter(state="resolved"), facts(), ReplayRequest()),
    (letter(state="resolved", resolution="unconfirmed"), facts(), ReplayRequest()),
    (letter(state="discarded"), facts(), ReplayRequest()),
]


def result_of(answer):
    if isinstance(answer, Admission):
        return LetterReplay(17, "replayed", "orders", warnings=answer.warnings)
    gate = answer.gate if isinstance(answer, Refusal) else None
    outcome = "refused" if gate else "failed"
    return LetterReplay(17, outcome, gate=gate, reason=answer.reason, remedy=answer.remedy)


def said_of_one_letter():
    answers = [judge(*case) for case in JUDGED]
    assert {a.gate for a in answers if isinstance(a, Refusal)} == set(get_args(Gate))
    assert {a.state for a in answers if isinstance(a, Denial)} == set(STATES) - set(LISTED_STATES)
    results = [result_of(answer) for answer in answers]
    gone = not_found(17)
    gone = LetterReplay(17, "failed", reason=str(gone), remedy=gone.remedy)
    results += [_without_revision(letter(), "orders"), gone]
    outcomes.print_replays(BulkReplay(results=tuple(results)))


def said_of_many():
    tally = ReplayTally()
    for gate, count in (("unchanged", 12), ("replay_limit", 3), ("poison", 2)):
        tally.add([LetterReplay(1, "refused", gate=gate, reason="…")] * count)
    left = (
        LeftOut("needs_review", 5, "queue:orders state:needs_review"),
        LeftOut("escalated", 1, "queue:orders state:escalated"),
        LeftOut("POISON", 2, "queue:orders category:POISON state:open"),
    )
    outcomes.print_bulk_replay(tally.result(Query(), left_out=left))


def said_of_everything(monkeypatch):
    refused = (
        lambda: need_filter(Query(), "replay-all", everything=False),
        lambda: ReplayOptions(force=True),
    )
    for ask in refused:
        with pytest.raises(DeskError) as raised:
            ask()
        failed(Asked(), raised.value)
    monkeypatch.setattr("sys.stdin", open("/dev/null", encoding="utf-8"))  # noqa: PTH123
    with pytest.raises(Unanswered) as unanswered:
        confirm("?", yes=False)
    paper.tell(str(unanswered.value))


def test_every_refusal_is_on_its_page_letter_for_letter(capsys, monkeypatch):
    """The page has what the command line prints, and nothing that it does not."""
    said_of_one_letter()
    said_of_many()
    said_of_everything(monkeypatch)
    printed = capsys.readouterr().err.splitlines()
    # the filter below a bulk refusal is that of its letters
    printed = [line for line in printed if not line.startswith("  outlast dlq list 'id:1")]
    on_page = said_on(REFUSED)
    assert [line for line in printed if line not in on_page] == []
    lacking = "table outbox_dlq has no column state: its letters can be looked at, not acted on"
    assert set(on_page) - set(printed) == {lacking}


def test_a_table_that_lacks_columns_is_refused_as_the_page_says(sqlite):
    from sqlalchemy import text

    from outlast.ops import SCOPES, Actor, Desk

    async def body(engine):
        async with engine.begin() as connection:
            for statement in (
                "CREATE TABLE outbox (id INTEGER PRIMARY KEY, queue TEXT, payload BLOB)",
                """CREATE TABLE outbox_dlq (id INTEGER PRIMARY KEY, original_id INTEGER, queue TEXT,
                payload BLOB, headers TEXT, deliveries_count INTEGER, created_at TEXT,
                failed_at TEXT, failure_reason TEXT, last_exception TEXT)""",
            ):
                await connection.execute(text(statement))
        with pytest.raises(NotRecorded) as raised:
            await Desk(engine).replay(Actor("ann", SCOPES), [17])
        said = re.sub(r"column [\w, ]+:", "column state:", str(raised.value))
        assert said in said_on(REFUSED)

    sqlite.run(body)


def test_the_words_of_the_runbook_are_those_of_the_outcomes(capsys):
    """S2-69: what `--wait` says is what the page explains."""
    from outlast.ops.outcomes import Waited

    waited = Waited({1: "succeeded", 2: "failed_again", 3: "waiting"}, ("emails",), {2: "…"})
    outcomes.print_waited(waited, as_json=False)
    captured = capsys.readouterr()
    text = RUNBOOK.read_text("utf-8")
    for line in (captured.out + captured.err).splitlines():
        assert re.sub(r"'\d'", "'1'", line) in text


def test_the_runbook_leads_from_the_alert_to_the_verified_effect(
    tmp_path, monkeypatch, page_postgres
):
    """S2-18 S3-44 S3-46 S4-29 S4-30: look, read, triage, mend, replay, discard, verify.

    Each command of the page runs in its order beside a worker; nothing is dead at the end.
    """
    monkeypatch.chdir(tmp_path)
    Page(RUNBOOK, tmp_path, page_postgres).run()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        ended = connection.execute("SELECT DISTINCT failure_reason, state FROM outbox_dlq")
        states = set(ended.fetchall())
        triage = connection.execute("SELECT triage, owner FROM outbox_dlq WHERE id = 1").fetchone()
        told = connection.execute(
            "SELECT kind FROM outbox_dlq_history WHERE dlq_id = 1 ORDER BY id"
        )
        kinds = [kind for (kind,) in told]
        windows = connection.execute(
            "SELECT detail FROM outbox_dlq_history WHERE dlq_id IS NULL AND kind = 'replayed'"
        ).fetchall()
    assert states == {
        ("retry_terminal", "resolved"),
        ("rejected", "resolved"),
        ("undecodable", "discarded"),
    }
    assert triage == ("consumer bug", "ann")
    assert [k for k in kinds if k in {"triaged", "replayed", "resolved"}] == [
        "triaged",
        "replayed",
        "resolved",
    ]
    (window,) = (json.loads(d) for (d,) in windows if "until:" in d)
    assert "since:" in window["filter"]
    assert "subscriber:Charge" in window["filter"]
    assert window["replayed"] > 0


@pytest.mark.parametrize("cause", ["consumer bug", "invalid format", "external dependency"])
def test_the_runbook_names_each_root_cause(cause):
    assert f"| `{cause}` |" in RUNBOOK.read_text("utf-8")


def test_every_masked_name_is_on_its_page():
    """The list is the one of the code, in alphabetical order."""
    (block,) = [block for block in pages.blocks(MASKING) if block.language == "text"]
    assert block.text.replace("\n", " ").strip() == ", ".join(sorted(SECRET_NAMES))


@pytest.mark.parametrize(
    "line", [line for line in MASKING.read_text("utf-8").splitlines() if "`" in line]
)
def test_what_the_page_calls_masked_is(line):
    masker = Masker()
    for shown in re.findall(
        r"`([^`]*(?:Bearer|Basic|://app|=hunter2|api_key|--token=)[^`]*)`", line
    ):
        if "•••" not in shown:
            assert masker.text(shown).masked, shown
