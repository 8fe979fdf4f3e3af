r"""Text of strangers, made harmless for a terminal, a log line or a spreadsheet cell.

In: any text. Out: the same text, in which nothing moves the cursor, turns the line around, hides
or is a formula. Nothing is lost: what is taken out is spelled, `\x1b`.
"""

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad"  # control characters, the soft hyphen
    "\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"  # direction, nothing, line ends
    "\ufeff\ufff9-\ufffb"
    "\ud800-\udfff"  # halves of characters: no stream encodes them
    "\U000e0000-\U000e007f]"  # invisible tags
)
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_FORMULA = (*"=+-@\t\r\n\x00", *"\uff1d\uff0b\uff0d\uff20")
"""What makes a cell a formula, also in full width."""

_INSIDE = re.compile("([;|\t\n][\\s\"']*)(?=[=+\\-@\uff1d\uff0b\uff0d\uff20])")
"""Where a program that cuts at other places than commas would see a cell begin with one."""


def _spelled(found: re.Match[str]) -> str:
    character = found.group()
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code <= 0xFF:  # noqa: PLR2004
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


def neutral_text(text: str, *, lines: bool = False) -> str:
    """Without control characters and direction overrides. `lines` keeps line feeds and tabs."""
    if lines:
        return _UNSAFE_IN_LINES.sub(_spelled, text.replace("\r\n", "\n"))
    return _UNSAFE.sub(_spelled, text)


def csv_cell(value: object) -> str:
    """A value as the text of a cell that no spreadsheet runs. Quoting is the CSV writer's work."""
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    # programs skip blanks before a formula
    dangerous = text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA)
    text = _INSIDE.sub(r"\1'", neutral_text(text, lines=True))
    return f"'{text}" if dangerous else text
