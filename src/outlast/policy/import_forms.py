"""What may come in: the documents of an export, and the two envelopes other systems write.

In: text. Out: one letter's columns for each document, or why it is refused. Everything of a
document is a stranger's until it is checked here: types, lengths, names, headers, times, digest.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outlast.model import headers as envelope
from outlast.policy.describe import bounded_bytes
from outlast.policy.exact_json import write_json
from outlast.policy.export_forms import ENVELOPE_VERSION, digest_of
from outlast.policy.header_values import check_size, check_text, user_headers
from outlast.policy.import_values import (
    NotImportable,
    category_of,
    kind_of,
    member,
    name_of,
    number_of,
    origin_of,
    sentence,
    shown,
    text_of,
    time_of,
)
from outlast.policy.names import check_name, check_queue

REVEAL = "export again with --reveal"

_COUNT_MAX = 2**31 - 1
_ID_MAX = 2**63 - 1
_NAMES = {
    **dict.fromkeys(("timer_id", "message_id", "event_type", "subscriber", "fingerprint"), 255),
    **dict.fromkeys(("consumer_instance", "consumer_version", "owner", "error_type"), 255),
    **dict.fromkeys(("policy_version", "triage"), 64),
}
_COUNTS = ("http_status", "attempts_count", "total_deliveries")
_TIMES = ("first_failure_at", "last_failure_at")
_ERROR = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,254}): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ImportLetter:
    """`values` are columns. `came_from`: what the letter was where it was exported."""

    values: Mapping[str, Any]
    digest: str
    came_from: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def payload(self) -> bytes:
        found: bytes = self.values["payload"]
        return found


def read_letter(document: Any, now: datetime) -> ImportLetter:
    """The letter of a document, or a `NotImportable`."""
    if not isinstance(document, dict):
        raise NotImportable(f"it is no object but {kind_of(document)}")
    if document.get("masked") not in (None, False):
        raise NotImportable("it is masked: its secrets are not in it", REVEAL)
    try:
        head = document.get("dlq_envelope")
        if isinstance(head, dict) and "version" in head:
            return _ours(document, head, now)
        if isinstance(head, dict):
            body = member(document, "original_body", object)
            return _foreign(document, head, body, document.get("original_headers"), now)
        message, told = document.get("original_message"), document.get("dlq_metadata")
        if isinstance(message, dict) and isinstance(told, dict):
            body = member(message, "body", object)
            return _foreign(document, told, body, message.get("headers"), now)
    except NotImportable:
        raise
    except (TypeError, ValueError) as error:
        raise NotImportable(sentence(error)) from None
    raise NotImportable(
        "it is no exported dead letter: it has no dlq_envelope, and no original_message with "
        "dlq_metadata"
    )


def _ours(document: dict[str, Any], head: dict[str, Any], now: datetime) -> ImportLetter:
    version = head["version"]
    if type(version) is not int or version != ENVELOPE_VERSION:
        raise NotImportable(
            f"its envelope has version {shown(version)}; this program reads {ENVELOPE_VERSION}",
            "import it with the version of outlast that wrote it, or a newer one",
        )
    if document.get("masked") is not False:
        raise NotImportable("it does not say that nothing is masked", REVEAL)
    given = member(document, "letter", dict)
    queue = check_queue(given.get("queue"))
    if head.get("original_queue", queue) != queue:
        raise NotImportable("original_queue and letter.queue are not the same")
    digest = member(document, "digest", str)
    payload = _payload(document, digest)
    values: dict[str, Any] = {
        "queue": queue,
        "payload": payload,
        "headers": _headers(document.get("original_headers")),
        "original_id": number_of(given, "original_id", _ID_MAX, needed=True),
        "deliveries_count": number_of(given, "deliveries_count", _ID_MAX, needed=True),
        "failure_reason": name_of("failure_reason", given.get("failure_reason"), 64, needed=True),
        "failure_category": category_of(given.get("failure_category")),
        "created_at": time_of(given, "created_at", now, needed=True),
        "failed_at": time_of(given, "failed_at", now, needed=True),
        "last_exception": text_of(given, "last_exception", in_bytes=False),
        "error_message": text_of(given, "error_message"),
        "stack_trace": text_of(head, "stack_trace"),
        "origin": origin_of(given.get("origin")),
        "replay_count": number_of(given, "replay_count", _COUNT_MAX) or 0,
        "replays_at_reopen": number_of(given, "replays_at_reopen", _COUNT_MAX) or 0,
    }
    values |= {name: name_of(name, given.get(name), most) for name, most in _NAMES.items()}
    values |= {name: number_of(given, name, _COUNT_MAX) for name in _COUNTS}
    values |= {name: time_of(given, name, now) for name in _TIMES}
    if values["replays_at_reopen"] > values["replay_count"]:
        raise NotImportable("replays_at_reopen is more than replay_count")
    notes: tuple[str, ...] = ()
    edits = number_of(given, "revision", _COUNT_MAX) or 0
    if edits:
        notes = (f"it had {edits} edits, which no export holds: the original came back",)
    came_from = {
        "dlq_id": number_of(given, "dlq_id", _ID_MAX),
        "state": name_of("state", given.get("state"), 32),
    }
    return ImportLetter(values, digest_of(payload), came_from, notes)


def _foreign(
    document: dict[str, Any], told: dict[str, Any], body: Any, headers: Any, now: datetime
) -> ImportLetter:
    """An envelope of somebody else: what it does not say stays unsaid."""
    payload = _bytes_of(body)
    if "digest" in document:
        _check_digest(payload, member(document, "digest", str))
    queue = check_queue(told.get("original_queue"))
    first = time_of(told, "first_failure_at", now)
    last = time_of(told, "last_failure_at", now) or time_of(told, "failure_timestamp", now)
    last = last or first
    if last is None:
        raise NotImportable("it does not say when it failed: failure_timestamp is missing")
    stored = _headers(headers)
    said = told.get("failure_reason")
    error = None if said is None else bounded_bytes(member(told, "failure_reason", str))
    parts = _ERROR.fullmatch(error or "")
    retries = number_of(told, "retry_count", _COUNT_MAX)
    values = {
        **dict.fromkeys(_NAMES),
        **dict.fromkeys(_COUNTS),
        "queue": queue,
        "payload": payload,
        "headers": stored,
        "original_id": 0,
        "message_id": _foreign_id(told, stored, queue, last, payload),
        "event_type": (stored or {}).get(envelope.EVENT_TYPE),
        "deliveries_count": retries or 0,
        "attempts_count": retries,
        "failure_reason": "unknown",
        "failure_category": category_of(told.get("failure_category")),
        "created_at": first or last,
        "failed_at": last,
        "first_failure_at": first,
        "last_failure_at": last,
        "last_exception": None,
        "error_type": parts[1] if parts else None,
        "error_message": parts[2] if parts else error,
        "stack_trace": text_of(told, "stack_trace"),
        "origin": _foreign_origin(told, queue),
        "replay_count": 0,
        "replays_at_reopen": 0,
    }
    for name in ("consumer_instance", "consumer_version"):
        values[name] = name_of(name, told.get(name), 255)
    return ImportLetter(values, digest_of(payload), {"envelope": "foreign"})


def _foreign_id(
    told: Mapping[str, Any],
    headers: Mapping[str, Any] | None,
    queue: str,
    failed_at: datetime,
    payload: bytes,
) -> str:
    given = told.get("message_id") or (headers or {}).get(envelope.MESSAGE_ID)
    if given is not None:
        found = name_of("message_id", given, 255)
        assert found is not None, "it is given"
        return found
    # the same document must be known again, and no other message may have its id
    mark = hashlib.sha256(f"{queue}\n{failed_at.isoformat()}\n".encode() + payload)
    return f"imported-{mark.hexdigest()[:32]}"


def _foreign_origin(told: Mapping[str, Any], queue: str) -> str | None:
    names = ("topic", "partition", "offset")
    given = {name: told.get(f"original_{name}") for name in names}
    found = {name: value for name, value in given.items() if value is not None}
    for value in found.values():
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise NotImportable(f"original topic, partition or offset is {shown(value)}")
    return None if found in ({}, {"topic": queue}) else origin_of(write_json(found))


def _payload(document: dict[str, Any], digest: str) -> bytes:
    if "payload_base64" in document:
        payload = _decoded(member(document, "payload_base64", str))
        _check_digest(payload, digest)
        return payload
    message = document.get("original_message")
    given = [document.get("original_body"), message.get("body") if isinstance(message, dict) else 0]
    for body in given:
        try:
            payload = _bytes_of(body)
            _check_digest(payload, digest)
        except ValueError:
            continue
        return payload
    raise NotImportable("the body in it is not, byte for byte, what was stored", REVEAL)


def _bytes_of(body: Any) -> bytes:
    """The bytes of a body in a document: text as it is, bytes in base64, else JSON."""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, dict) and body.keys() == {"base64"} and isinstance(body["base64"], str):
        return _decoded(body["base64"])
    return write_json(body).encode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise NotImportable("its base64 cannot be read") from None


def _check_digest(payload: bytes, digest: str) -> None:
    if digest_of(payload) != f"sha256:{digest.lower().removeprefix('sha256:')}":
        raise NotImportable("its bytes do not have the digest it names: it was changed", REVEAL)


def _headers(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise NotImportable(f"its headers are no object but {kind_of(given)}")
    reserved = {n: v for n, v in given.items() if n.lower().startswith(envelope.RESERVED_PREFIX)}
    found = user_headers({n: v for n, v in given.items() if n not in reserved})
    for name, value in reserved.items():
        check_text(f"header name {name!r}", name)
        # the link belongs to a letter of the database it was exported from
        if name != envelope.REPLAY:
            found[name] = user_headers({"reserved": value})["reserved"]
    for name in (envelope.MESSAGE_ID, envelope.EVENT_TYPE):
        if name in found:
            check_name(f"header {name!r}", found[name])
    check_size(found)
    return {name: found[name] for name in given if name in found}
