"""Whether a live column holds what we write into it, and gives it back unchanged.

In: the type a column should have and the database's spelling of what it has. Out: yes or no. Wider
than needed is good; whatever cuts, rounds or converts is not.
"""

import re

from sqlalchemy import Dialect
from sqlalchemy.types import TypeEngine

_TEXT = re.compile(r"(?:character varying|varchar|text)(?:\((\d+)\))?$")
_WIDER = {"integer": {"integer", "bigint"}}

# what SQLite's column affinities leave alone; see "Type Affinity" in its manual
_LEAVES_ALONE = {
    "INTEGER": {"INTEGER", "NUMERIC"},
    "TEXT": {"TEXT", "BLOB"},
    "BLOB": {"BLOB", "TEXT", "NUMERIC"},
    "NUMERIC": {"NUMERIC", "TEXT", "BLOB"},
}


def holds(wanted: TypeEngine[object], live: str, dialect: Dialect) -> bool:
    """Whether a column of the live type can take the place of the wanted one."""
    spelled = wanted.compile(dialect=dialect)
    if dialect.name == "sqlite":
        return affinity(live) in _LEAVES_ALONE[affinity(spelled)]
    return _holds_postgres(spelled.lower(), live.lower())


def _holds_postgres(wanted: str, live: str) -> bool:
    wanted_text, live_text = _TEXT.match(wanted), _TEXT.match(live)
    if wanted_text and live_text:
        need, have = wanted_text.group(1), live_text.group(1)
        return have is None or (need is not None and int(have) >= int(need))
    return live in _WIDER.get(wanted, {wanted})


def affinity(declared: str) -> str:
    """The affinity SQLite gives a column for its declared type."""
    name = declared.upper()
    if "INT" in name:
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in name or not name:
        return "BLOB"
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return "REAL"
    return "NUMERIC"
