"""One dead letter as it is shown, and the results of a replay."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import MetaData

from outlast.model.letter_view import LETTER_FIELDS, LetterView
from outlast.model.replay import BulkReplay, LeftOut, LetterReplay, RefusedKind
from outlast.tables import make_dlq_table
from outlast.tables.dead_letters import REQUIRED_COLUMNS

CREATED = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)


def after(minutes):
    return CREATED + timedelta(minutes=minutes)


PEER = {
    "id": 1,
    "original_id": 7,
    "queue": "orders",
    "payload": b"{}",
    "headers": None,
    "deliveries_count": 3,
    "created_at": CREATED,
    "failed_at": after(5),
    "failure_reason": "retry_terminal",
    "last_exception": "KeyError('isbn')",
}
FULL = PEER | {
    "error_type": "KeyError",
    "error_message": "'isbn'",
    "attempts_count": 3,
    "first_failure_at": after(1),
    "last_failure_at": after(90),
    "state": "open",
    "state_changed_at": after(95),
    "replay_count": 5,
    "replays_at_reopen": 3,
}


def view(**columns):
    return LetterView.of(FULL | columns)


def test_the_fields_are_the_columns():
    assert set(LETTER_FIELDS) == set(make_dlq_table(MetaData()).c.keys())


def test_a_row_of_the_peer_is_shown_as_it_is():
    assert set(PEER) == set(REQUIRED_COLUMNS)
    letter = LetterView.of(PEER | {"a_column_of_somebody": 1})
    missing = [name for name in LETTER_FIELDS if name not in PEER]
    assert {getattr(letter, name) for name in missing} == {None}
    assert letter.latest_failure_at == after(5)
    assert letter.is_listed
    for unknown in ("bouncing_for", "retry_count", "workers_died", "replays_since_reopen"):
        assert getattr(letter, unknown) is None
    assert letter.failure == "retry_terminal: KeyError('isbn')"
    assert letter.keymate == ("FAILED", after(5), None)


def test_a_row_without_its_payload():
    assert LetterView.of({k: v for k, v in PEER.items() if k != "payload"}).payload is None


def test_times_as_people_see_them():
    letter = view()
    assert letter.latest_failure_at == after(90)
    assert letter.bouncing_for == timedelta(minutes=89)
    assert letter.time_to_terminal_failure == timedelta(minutes=5)


def test_durations_are_never_negative():
    letter = view(first_failure_at=after(91), failed_at=after(-1))
    assert letter.bouncing_for == letter.time_to_terminal_failure == timedelta(0)


def test_counts():
    assert view().retry_count == 3
    assert view().workers_died == 0
    assert view().replays_since_reopen == 2
    assert view(replays_at_reopen=None).replays_since_reopen == 5
    assert view(deliveries_count=5).workers_died == 2
    killed = view(failure_reason="max_deliveries", deliveries_count=4, attempts_count=0)
    assert killed.workers_died == 3


@pytest.mark.parametrize(
    ("state", "is_listed"),
    [
        *((state, True) for state in ("open", "needs_review", "escalated", None)),
        *((state, False) for state in ("replaying", "resolved", "discarded")),
    ],
)
def test_what_is_listed(state, is_listed):
    assert view(state=state).is_listed is is_listed


@pytest.mark.parametrize(
    ("columns", "error", "failure"),
    [
        ({}, "KeyError: 'isbn'", "retry_terminal: KeyError: 'isbn'"),
        ({"error_message": None}, "KeyError", "retry_terminal: KeyError"),
        ({"error_type": None}, "'isbn'", "retry_terminal: 'isbn'"),
        (
            {"error_type": None, "error_message": None, "last_exception": None},
            None,
            "retry_terminal",
        ),
    ],
)
def test_the_failure_in_words(columns, error, failure):
    assert (view(**columns).error, view(**columns).failure) == (error, failure)


@pytest.mark.parametrize(
    ("columns", "status", "at", "resolution"),
    [
        ({"state": "open"}, "FAILED", 90, None),
        ({"state": "needs_review"}, "FAILED", 90, None),
        ({"state": "escalated"}, "FAILED", 90, None),
        ({"state": "replaying"}, "FAILED", 90, None),
        ({"state": "resolved", "resolution": "delivered"}, "PROCESSED", 95, "delivered"),
        ({"state": "resolved"}, "PROCESSED", 95, None),
        ({"state": "resolved", "resolution": "unconfirmed"}, "FAILED", 95, "unconfirmed"),
        ({"state": "resolved", "resolution": "superseded by 9"}, "FAILED", 95, "superseded by 9"),
        ({"state": "discarded"}, "FAILED", 95, "discarded"),
        ({"state": "discarded", "resolution": "obsolete"}, "FAILED", 95, "obsolete"),
    ],
)
def test_the_three_words_of_keymate(columns, status, at, resolution):
    assert view(**columns).keymate == (status, after(at), resolution)


def test_the_name_protean_knows():
    assert view().dlq_stream == "orders:dlq"


def test_the_document_of_a_bulk_replay():
    result = BulkReplay(
        replayed=2,
        skipped=1,
        failed=0,
        refused=(RefusedKind("unchanged", 3, "category:VALIDATION", "nothing has changed"),),
        left_out=(LeftOut("POISON", 4, "category:POISON"),),
        results=(
            LetterReplay(1, "replayed", queue="orders", row_id=8, warnings=("unknown",)),
            LetterReplay(2, "refused", gate="unchanged", reason="r", remedy="m"),
        ),
        by_queue={"orders": 2},
        more=True,
        cursor="c",
    )
    assert json.loads(json.dumps(result.as_json())) == {
        "replayed": 2,
        "skipped": 1,
        "failed": 0,
        "refused": [
            {
                "gate": "unchanged",
                "count": 3,
                "filter": "category:VALIDATION",
                "reason": "nothing has changed",
            }
        ],
        "left_out": [{"kind": "POISON", "count": 4, "filter": "category:POISON"}],
        "results": [
            {
                "dlq_id": 1,
                "outcome": "replayed",
                "queue": "orders",
                "row_id": 8,
                "warnings": ["unknown"],
            },
            {"dlq_id": 2, "outcome": "refused", "gate": "unchanged", "reason": "r", "remedy": "m"},
        ],
        "by_queue": {"orders": 2},
        "more": True,
        "cursor": "c",
    }


def test_the_smallest_document():
    empty = {"replayed": 0, "skipped": 0, "refused": [], "failed": 0, "results": []}
    assert BulkReplay().as_json() == empty
    assert BulkReplay(dry_run=True).as_json() == empty | {"dry_run": True}


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (BulkReplay(), 0),
        (BulkReplay(skipped=3, left_out=(LeftOut("POISON", 2, "f"),)), 0),
        (BulkReplay(failed=1), 1),
        (BulkReplay(failed=1, refused=(RefusedKind("poison", 1, "f", "r"),)), 3),
        (BulkReplay(refused=(RefusedKind("poison", 0, "f", "r"),)), 0),
        (BulkReplay(results=(LetterReplay(1, "replayed", waited="failed_again"),)), 1),
        (BulkReplay(results=(LetterReplay(1, "replayed", waited="succeeded"),)), 0),
    ],
)
def test_the_exit_code_of_many(result, code):
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("outcome", "waited", "code"),
    [
        ("replayed", None, 0),
        ("would_replay", None, 0),
        ("skipped", None, 0),
        ("refused", None, 3),
        ("failed", None, 1),
        ("replayed", "succeeded", 0),
        ("replayed", "failed_again", 1),
        ("replayed", "waiting", 1),
    ],
)
def test_the_exit_code_of_one(outcome, waited, code):
    assert LetterReplay(1, outcome, waited=waited).exit_code == code
