"""The gates of a replay, the states of a letter, and which verb takes which state."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from outlast.model.letter_view import LetterView
from outlast.model.query import LISTED_STATES, STATES
from outlast.model.replay import Admission, Denial, Refusal, ReplayFacts, WorkerSeen
from outlast.policy.gates import LIFETIME, REPLAYS_MAX, ReplayRequest, judge, live_workers
from outlast.policy.letter_states import Transition, Verb, states_for, transition

FAILED = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)
NOW = FAILED + timedelta(hours=1)
SECOND = timedelta(seconds=1)


def letter(**columns):
    row = {
        "id": 17,
        "original_id": 3,
        "queue": "orders",
        "deliveries_count": 3,
        "created_at": FAILED - timedelta(minutes=5),
        "failed_at": FAILED,
        "failure_reason": "retry_terminal",
        "failure_category": "VALIDATION",
        "consumer_version": "1.4",
        "first_failure_at": FAILED - timedelta(minutes=4),
        "last_failure_at": FAILED,
        "state": "open",
        "state_changed_at": FAILED,
        "replay_count": 0,
        "replays_at_reopen": 0,
    }
    return LetterView.of(row | columns)


def worker(version="1.4", *, started=FAILED - timedelta(hours=1), seen=NOW, queues=("orders",)):
    return WorkerSeen(f"host-{version}", version, frozenset(queues), started, seen)


def facts(*workers, **known):
    return ReplayFacts(**{"now": NOW, "queue": "orders", "workers": workers} | known)


def gate(letter_, facts_, **request):
    answer = judge(letter_, facts_, ReplayRequest(**request))
    assert isinstance(answer, Refusal), answer
    assert answer.reason
    assert answer.remedy
    return answer.gate


def admitted(letter_, facts_, **request):
    answer = judge(letter_, facts_, ReplayRequest(**request))
    assert isinstance(answer, Admission), answer
    return answer


def test_an_ordinary_letter_goes():
    assert admitted(letter(failure_category="EXTERNAL"), facts(worker())) == Admission()


@pytest.mark.parametrize(
    ("count", "at_reopen", "is_shut"),
    [(2, 0, False), (3, 0, True), (9, 0, True), (5, 3, False), (6, 3, True), (3, None, True)],
)
def test_replays_are_counted_since_the_last_reopen(count, at_reopen, is_shut):
    shut = letter(failure_category="EXTERNAL", replay_count=count, replays_at_reopen=at_reopen)
    answer = judge(shut, facts(), ReplayRequest())
    if is_shut:
        assert (answer.gate, answer.escalates) == ("replay_limit", True)
        assert f"{count - (at_reopen or 0)} times" in answer.reason
    else:
        assert answer == Admission()


def test_the_replay_limit_is_an_option():
    tried = letter(failure_category="EXTERNAL", replay_count=REPLAYS_MAX)
    assert admitted(tried, facts(), replays_max=REPLAYS_MAX + 1)
    assert gate(tried, facts(), replays_max=1) == "replay_limit"


def test_an_escalated_letter_needs_force_or_a_mark():
    answer = judge(letter(state="escalated"), facts(worker("2")), ReplayRequest())
    assert (answer.gate, answer.escalates) == ("replay_limit", False)
    assert "mark 17 --open" in answer.remedy
    assert "--force --reason" in answer.remedy
    assert [
        r.gate for r in admitted(letter(state="escalated"), facts(worker("2")), force=True).forced
    ] == ["replay_limit"]


def test_a_letter_without_a_replay_count_is_not_limited():
    assert admitted(letter(failure_category="EXTERNAL", replay_count=None), facts(worker()))


@pytest.mark.parametrize("category", ["VALIDATION", "AUTH", "UNKNOWN"])
@pytest.mark.parametrize("body", ["not_asked", "refused"])
def test_nothing_changed(category, body):
    assert gate(letter(failure_category=category), facts(worker(), body=body)) == "unchanged"


@pytest.mark.parametrize("category", ["EXTERNAL", "TIMEOUT", "SHOP_CLOSED"])
def test_what_may_pass_by_itself_needs_no_change(category):
    assert admitted(letter(failure_category=category), facts(worker())) == Admission()


@pytest.mark.parametrize(
    ("known", "workers"),
    [
        ({"sent_revision_at": FAILED + SECOND}, [worker()]),
        ({"changes_now": True}, [worker()]),
        ({"body": "accepted"}, [worker()]),
        ({}, [worker("1.5")]),
        ({}, [worker(started=FAILED + SECOND)]),
        ({}, [worker(None), worker("1.4", started=FAILED + SECOND)]),
    ],
)
def test_what_opens_the_gate_without_a_word(known, workers):
    assert admitted(letter(), facts(*workers, **known)) == Admission()


@pytest.mark.parametrize(
    ("columns", "known", "workers", "told"),
    [
        ({"failure_category": None}, {}, [worker()], "the failure category is not recorded"),
        ({"consumer_version": None}, {}, [worker()], "the version that failed is not recorded"),
        ({}, {"workers": None}, [], "which versions run is not recorded"),
        ({}, {}, [], "no live worker serves queue 'orders'"),
        ({}, {}, [worker(seen=NOW - timedelta(seconds=30.1))], "no live worker"),
        ({}, {}, [worker(queues=["other"])], "no live worker"),
        ({}, {"queue": "repair"}, [worker()], "no live worker serves queue 'repair'"),
        ({}, {}, [worker(None), worker("2")], "host-None does not tell its version"),
        ({}, {"body": "unknown"}, [worker()], "no handler of queue 'orders'"),
    ],
)
def test_anything_unknown_opens_the_gate_and_is_told(columns, known, workers, told):
    answer = admitted(letter(**columns), facts(*workers, **known))
    (warning,) = answer.warnings
    assert told in warning
    assert answer.forced == ()


def test_the_edges_of_unchanged():
    same_instant = worker(started=FAILED, seen=NOW - timedelta(seconds=30))
    assert gate(letter(), facts(same_instant)) == "unchanged"
    assert gate(letter(), facts(worker(), sent_revision_at=FAILED)) == "unchanged"
    assert gate(letter(), facts(worker(None), worker("2"), worker())) == "unchanged"


def test_without_a_last_failure_the_archive_time_counts():
    old = letter(last_failure_at=None, failed_at=FAILED)
    assert gate(old, facts(worker(started=FAILED))) == "unchanged"
    assert admitted(old, facts(worker(started=FAILED + SECOND)))


def test_live_workers():
    here, gone = worker(), worker("2", seen=NOW - timedelta(seconds=31))
    assert live_workers(facts(here, gone)) == (here,)
    assert live_workers(facts(workers=None)) is None


def test_poison_goes_only_when_it_is_included():
    poison = letter(failure_category="POISON")
    assert gate(poison, facts()) == "poison"
    assert admitted(poison, facts(), include_poison=True) == Admission()
    assert admitted(poison, facts(), force=True).forced[0].gate == "poison"


def test_force_passes_three_gates_and_says_which():
    bad = letter(replay_count=3)
    answer = admitted(bad, facts(worker()), force=True)
    assert [refusal.gate for refusal in answer.forced] == ["replay_limit", "unchanged"]
    assert admitted(letter(failure_category="EXTERNAL"), facts(), force=True).forced == ()


def test_force_does_not_pass_the_data():
    assert isinstance(judge(letter(state="resolved"), facts(), ReplayRequest(force=True)), Denial)


@pytest.mark.parametrize(
    ("category", "age", "is_shut"),
    [
        ("EXTERNAL", LIFETIME, False),
        ("TIMEOUT", LIFETIME, False),
        ("EXTERNAL", LIFETIME + SECOND, True),
        ("VALIDATION", SECOND, True),
        ("UNKNOWN", SECOND, True),
        ("POISON", SECOND, True),
        (None, SECOND, True),
    ],
)
def test_a_rule_replays_young_transient_letters_only(category, age, is_shut):
    found = letter(failure_category=category, first_failure_at=NOW - age)
    request = ReplayRequest(automatic=True, force=True, include_poison=True)
    answer = judge(found, facts(worker("2")), request)
    if is_shut:
        assert answer.gate == "lifetime"
    else:
        assert answer == Admission()


def test_a_rule_cannot_force_the_replay_limit():
    tried = letter(failure_category="EXTERNAL", replay_count=3)
    assert gate(tried, facts(), automatic=True, force=True) == "replay_limit"


def test_a_rule_and_a_person_see_the_same_first_gate():
    for automatic in (False, True):
        tried = letter(failure_category="EXTERNAL", replay_count=3)
        assert gate(tried, facts(), automatic=automatic) == "replay_limit"


@pytest.mark.parametrize(
    ("columns", "told", "remedy"),
    [
        (
            {"state": "resolved", "resolution": "delivered"},
            "already replayed at 2026-11-19 12:00:00 UTC (delivered)",
            "mark 17 --open",
        ),
        ({"state": "resolved", "state_changed_at": None}, "already replayed", "--open"),
        ({"state": "replaying", "replayed_as": 99}, "is being replayed", "outbox cancel 99"),
        ({"state": "discarded"}, "was purged at 2026-11-19", "restore 17"),
        ({"state": None}, "records no state", "outlast db print"),
        ({"state": "strange"}, "is strange and cannot be replayed", "only letters that are open"),
    ],
)
def test_what_the_data_refuses(columns, told, remedy):
    answer = judge(letter(**columns), facts(), ReplayRequest())
    assert isinstance(answer, Denial)
    assert told in answer.reason
    assert remedy in answer.remedy


LISTED = set(LISTED_STATES)
MOVES = {
    "replay": (LISTED, "replaying"),
    "discard": (LISTED | {"resolved"}, "discarded"),
    "erase": (LISTED | {"resolved", "discarded"}, None),
    "restore": ({"discarded"}, "open"),
    "edit": (LISTED, "same"),
    "open": (LISTED | {"resolved"}, "open"),
    "review": (LISTED, "needs_review"),
    "escalate": (LISTED, "escalated"),
    "resolve": ({"replaying"}, "resolved"),
    "return": ({"replaying"}, "open"),
    "recall": ({"replaying"}, "open"),
    "annotate": (set(STATES), "same"),
}


def test_every_verb_is_in_the_table():
    assert set(MOVES) == set(get_args(Verb))


@pytest.mark.parametrize("verb", MOVES)
@pytest.mark.parametrize("state", STATES)
def test_verbs_and_states(verb, state):
    accepts, after = MOVES[verb]
    answer = transition(verb, letter(state=state))
    assert (state in states_for(verb)) == (state in accepts)
    if state not in accepts:
        assert isinstance(answer, Denial)
        assert answer.state == state
        assert answer.reason
        assert answer.remedy
        return
    assert isinstance(answer, Transition)
    assert answer.after == (state if after == "same" else after)
    assert answer.changes_state == (answer.after != state)
    assert answer.clears_purge == (answer.after in LISTED and after != "same")
    assert answer.lifts_limit == (verb == "open")


def test_what_is_replaying_is_left_alone_by_every_verb_of_an_operator():
    """All but those that end the replay, and marks that change neither state, bytes nor place."""
    takes = {verb for verb in get_args(Verb) if "replaying" in states_for(verb)}
    assert takes == {"resolve", "return", "recall", "annotate"}
