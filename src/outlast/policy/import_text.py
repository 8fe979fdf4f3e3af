"""A text cut into documents: one object, several, one for each line, or an array of them.

In: text. Out: one document after the other, with its number and line, or what is wrong there. What
follows a line that is no JSON is still read.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from outlast.policy.exact_json import read_json_at
from outlast.policy.import_values import sentence


class Found(NamedTuple):
    """A document of a text: its number from 1, the line it begins on, its value or the problem."""

    number: int
    line: int
    value: Any
    problem: str | None = None


def read_documents(text: str) -> Iterator[Found]:
    """One object, several, one for each line, or an array of them."""
    place = 1 if text.startswith("\ufeff") else 0
    place = _skip(text, place)
    in_array = text[place : place + 1] == "["
    if in_array:
        place = _skip(text, place + 1)
    number, line, counted_to = 0, 1, 0
    while place < len(text) and not (in_array and text[place] == "]"):
        number += 1
        line += text.count("\n", counted_to, place)
        counted_to = place
        try:
            value, place = read_json_at(text, place)
        except ValueError as error:
            yield Found(number, line, None, f"line {line} is no JSON: {sentence(error)}")
            following = text.find("\n{", place)
            if in_array or following < 0:
                return
            place = following + 1
            continue
        yield Found(number, line, value)
        place = _skip(text, place)
        if in_array and text[place : place + 1] == ",":
            place = _skip(text, place + 1)
        elif in_array and text[place : place + 1] != "]":
            yield Found(number + 1, line, None, f"the array ends at document {number} without a ]")
            return
    if in_array and text[place + 1 :].strip():
        yield Found(number + 1, line, None, "something follows the array")


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place
