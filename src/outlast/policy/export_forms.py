"""The forms of an exported letter: the document, the row of a table.

In: a letter as it may be shown. Out: JSON values and CSV lines. `dlq_envelope` and `dlq_metadata`
speak to people and other tools; `letter` holds our columns, which an import reads.
"""

import base64
import csv
import hashlib
import io
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from outlast.model import headers as envelope
from outlast.model.letter_view import LETTER_FIELDS, LetterView
from outlast.policy.exact_json import read_json, write_json
from outlast.policy.neutral_text import csv_cell

ENVELOPE_VERSION = 1

NO_JSON = object()
"""The body of a message whose bytes are no JSON."""

APART = frozenset({"payload", "headers", "stack_trace"})
"""Columns that a document holds elsewhere than in `letter`."""

_CSV = (
    *("dlq_id", "message_id", "queue", "subscriber", "event_type", "state", "failure_reason"),
    *("failure_category", "error", "retry_count", "deliveries_count", "replay_count"),
    *("created_at", "first_failure_at", "last_failure_at", "consumer_instance"),
    *("consumer_version", "owner", "triage", "fingerprint", "stack_trace", "headers", "body"),
    *("body_is", "digest", "masked"),
)


@dataclass(frozen=True, slots=True)
class ExportedLetter:
    """`letter` without its bytes, texts and headers as they may be shown. `body` is the JSON value,
    `text` the body as text, None of bytes that are none; `payload` what is stored.
    """

    letter: LetterView
    payload: bytes = field(repr=False)
    body: Any
    text: str | None
    masked: bool
    revealed: bool


def body_of(payload: bytes) -> Any:
    """The JSON value of a body, or `NO_JSON`."""
    try:
        return read_json(payload)
    except ValueError:
        return NO_JSON


def digest_of(payload: bytes) -> str:
    """What tells stored bytes apart."""
    return "sha256:" + hashlib.sha256(payload).hexdigest()


def in_base64(payload: bytes) -> dict[str, str]:
    """Bytes that are no text, in a document."""
    return {"base64": base64.b64encode(payload).decode()}


def message_id_of(letter: LetterView) -> str:
    """The id that lives as long as the message."""
    return letter.message_id or envelope.message_id(letter.headers, letter.original_id)


def document(exported: ExportedLetter) -> dict[str, Any]:
    """One document per letter."""
    letter = exported.letter
    shown = exported.payload if exported.text is None else exported.text.encode()
    body = in_base64(shown) if exported.body is NO_JSON else exported.body
    text = in_base64(shown) if exported.text is None else exported.text
    found: dict[str, Any] = {
        "dlq_envelope": _envelope(letter),
        "original_headers": letter.headers,
        "original_body": body,
        "original_message": {"body": text, "headers": letter.headers},
        "dlq_metadata": _only_known(
            {
                "original_queue": letter.queue,
                "failure_reason": letter.error or letter.failure_reason,
                "failure_timestamp": _iso(letter.latest_failure_at),
                "retry_count": letter.retry_count,
                "stack_trace": letter.stack_trace,
            }
        ),
        "letter": _columns(letter),
        "digest": digest_of(exported.payload),
        "masked": exported.masked,
    }
    if exported.revealed:
        found["payload_base64"] = base64.b64encode(exported.payload).decode()
    return found


def _envelope(letter: LetterView) -> dict[str, Any]:
    came_from = _origin(letter)
    fields: dict[str, Any] = {
        "message_id": message_id_of(letter),
        "original_topic": came_from.get("topic", letter.queue),
        "original_queue": letter.queue,
        "failure_reason": letter.error or letter.failure_reason,
        "failure_category": letter.failure_category,
        "stack_trace": letter.stack_trace,
        "retry_count": letter.retry_count,
        "first_failure_at": _iso(letter.first_failure_at),
        "last_failure_at": _iso(letter.latest_failure_at),
        "consumer_instance": letter.consumer_instance,
        "consumer_version": letter.consumer_version,
    }
    # only a source with partitions has these: of another they are not missing
    places = {f"original_{name}": came_from.get(name) for name in ("partition", "offset")}
    lacking = sorted(name for name, value in fields.items() if value is None)
    found = {"version": ENVELOPE_VERSION, **_only_known(fields | places)}
    return found | ({"not_recorded": lacking} if lacking else {})


def _origin(letter: LetterView) -> dict[str, Any]:
    try:
        found = read_json(letter.origin or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _columns(letter: LetterView) -> dict[str, Any]:
    found: dict[str, Any] = {"dlq_id": letter.id}
    for name in LETTER_FIELDS:
        if name == "id" or name in APART:
            continue
        value = getattr(letter, name)
        found[name] = _iso(value) if isinstance(value, datetime) else value
    return _only_known(found)


def _only_known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def csv_head(*, revealed: bool) -> str:
    """The names of the columns."""
    return _line([*_CSV, *(["payload_base64"] if revealed else [])])


def csv_line(exported: ExportedLetter) -> str:
    """One letter; no spreadsheet runs any of it."""
    letter = exported.letter
    shown = document(exported)
    body, body_is = exported.text, "text" if exported.body is NO_JSON else "json"
    if body is None:
        body, body_is = shown["original_message"]["body"]["base64"], "base64"
    columns = shown["letter"] | {
        "message_id": message_id_of(letter),
        "error": letter.error,
        "retry_count": letter.retry_count,
        "last_failure_at": shown["dlq_envelope"]["last_failure_at"],
        "stack_trace": letter.stack_trace,
        "headers": None if letter.headers is None else write_json(letter.headers),
        "body": body,
        "body_is": body_is,
        "digest": shown["digest"],
        "masked": "yes" if exported.masked else "no",
    }
    cells = [columns.get(name) for name in _CSV]
    return _line([*cells, *([shown["payload_base64"]] if exported.revealed else [])])


def _line(cells: list[Any]) -> str:
    made = io.StringIO()
    # every cell in quotes: programs that cut at semicolons then cut at none of ours
    csv.writer(made, quoting=csv.QUOTE_ALL).writerow([csv_cell(cell) for cell in cells])
    return made.getvalue()
