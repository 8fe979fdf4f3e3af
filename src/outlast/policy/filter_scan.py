"""A filter's text cut into pieces `name:value`, in one pass. Knows quotes and escapes, no words.

In: text. Out: pieces with their places. A backslash frees a quote, a backslash or a blank, in a
name also `:`, `.` and `-`; before anything else it is a backslash.
"""

from dataclasses import dataclass, field

from outlast.model.query import FilterError
from outlast.policy.neutral_text import neutral_text

FILTER_CHARS_MAX = 8192
_SHOWN_CHARS_MAX = 60
_FREED_IN_NAMES = '"\\:.-'
_FREED = '"\\'


@dataclass(slots=True)
class Piece:
    """One word as written. `steps` is the name, cut at its dots; `value` None without a colon."""

    position: int
    negated: bool = False
    steps: list[str] = field(default_factory=lambda: [""])
    value: str | None = None
    value_position: int = 0
    is_literal: bool = False
    """The value begins inside quotes: no operator is meant."""
    was_quoted: bool = False

    def add(self, characters: str) -> None:
        if self.value is None:
            self.steps[-1] += characters
        else:
            self.value += characters


def shown(text: str) -> str:
    """A piece of a stranger's text as it may stand in a message."""
    cut = text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…"
    return neutral_text(cut)


def check_storable(text: str, position: int | None) -> None:
    """Refuse what no database can be asked for."""
    for place, character in enumerate(text):
        if character == "\x00" or "\ud800" <= character <= "\udfff":
            raise FilterError(
                f"a filter cannot contain the character {shown(character)}",
                position=None if position is None else position + place,
                piece=shown(character),
            )


def scan(text: str) -> list[Piece]:
    """The pieces of a filter, or a `FilterError`."""
    if len(text) > FILTER_CHARS_MAX:
        raise FilterError(
            f"the filter has {len(text)} characters; {FILTER_CHARS_MAX} are read",
            position=FILTER_CHARS_MAX,
        )
    check_storable(text, 0)
    pieces: list[Piece] = []
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        piece = Piece(position)
        if text[position] == "-":
            piece.negated = True
            position += 1
        position = _read(text, position, piece)
        pieces.append(piece)
    return pieces


def _read(text: str, position: int, piece: Piece) -> int:
    """Read one piece; answers the place after it."""
    while position < len(text):
        character = text[position]
        if character.isspace():
            break
        if character == '"':
            position = _read_quoted(text, position, piece)
            continue
        freed = _freed(text, position, piece)
        if freed:
            _mark_literal(piece)
            piece.add(freed)
            position += 2
            continue
        if piece.value is None and character == ":":
            piece.value, piece.value_position = "", position + 1
        elif piece.value is None and character == ".":
            piece.steps.append("")
        else:
            piece.add(character)
        position += 1
    return position


def _freed(text: str, position: int, piece: Piece) -> str:
    """The character a backslash at this place frees, or nothing."""
    following = text[position + 1 : position + 2]
    if text[position] != "\\" or not following:
        return ""
    freed = _FREED_IN_NAMES if piece.value is None else _FREED
    return following if following in freed or following.isspace() else ""


def _mark_literal(piece: Piece) -> None:
    if piece.value == "":
        piece.is_literal = True


def _read_quoted(text: str, start: int, piece: Piece) -> int:
    _mark_literal(piece)
    piece.was_quoted = piece.was_quoted or piece.value is not None
    parts: list[str] = []
    position = start + 1
    while position < len(text):
        character = text[position]
        if character == '"':
            piece.add("".join(parts))
            return position + 1
        if character == "\\" and text[position + 1 : position + 2] in {'"', "\\"}:
            position += 1
            character = text[position]
        parts.append(character)
        position += 1
    raise FilterError(
        'a quote is not closed: put a " after the value, or write \\" for a quote in it',
        position=start,
        piece=shown(text[start:]),
    )


def quoted(value: str) -> str:
    """A value as it must be written so that `scan` reads it again."""
    plain = value and value[0] not in "<>=!~" and not any(c.isspace() or c in _FREED for c in value)
    return value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def escaped(step: str, *, dots: bool = True) -> str:
    """A step of a name as it must be written so that `scan` reads it again."""
    return "".join(
        f"\\{c}" if c in '"\\:' or (dots and c == ".") or c.isspace() else c for c in step
    )
