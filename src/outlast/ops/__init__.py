"""The desk: every operation on dead letters, with access, redaction, limits and audit inside.

In: an actor and a question or an order. Out: values that every door shows alike. Command line, REST
and pages call this and nothing beneath it.
"""

from outlast.ops.actor import SCOPES, Actor, Scope
from outlast.ops.desk import Desk
from outlast.ops.options import DeskOptions
from outlast.ops.refusals import (
    BadRequest,
    DeskError,
    EditConflict,
    EditRefused,
    LetterNotFound,
    NotAllowed,
    NotRecorded,
)

__all__ = [
    "SCOPES",
    "Actor",
    "BadRequest",
    "Desk",
    "DeskError",
    "DeskOptions",
    "EditConflict",
    "EditRefused",
    "LetterNotFound",
    "NotAllowed",
    "NotRecorded",
    "Scope",
]
