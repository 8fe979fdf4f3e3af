"""JSON Patch (RFC 6902) with JSON Pointer (RFC 6901), on values with exact numbers.

In: operations and a document of its own, which may be changed in place. Out: the new document, or
an error that names the number of the operation and the place. Work and growth are bounded.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple, cast, get_args

from outlast.model.edit import EditError
from outlast.policy.exact_json import DEPTH_MAX, ExactFloat, Unkept, dumps

OPERATIONS_MAX = 1000
POINTER_CHARS_MAX = 4000

Kind = Literal["add", "remove", "replace", "move", "copy", "test"]

_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_BAD_ESCAPE = re.compile(r"~(?![01])")
_SHOWN_CHARS = 200


class PatchError(EditError):
    """An operation that cannot be carried out: which one, and where."""


class TestFailed(PatchError):  # noqa: N818 - a word of the RFC
    """The document is not what a `test` says."""

    __test__ = False


class Operation(NamedTuple):
    """One operation, read. `number` counts from 1."""

    number: int
    kind: Kind
    path: tuple[str, ...]
    source: tuple[str, ...] = ()
    value: Any = None

    def refused(self, why: str, remedy: str | None = None) -> PatchError:
        """An error that says which operation it was."""
        kind = TestFailed if self.kind == "test" else PatchError
        return kind(f"operation {self.number} ({self._name}): {why}", remedy)

    @property
    def _name(self) -> str:
        source = f" {pointer(self.source)} to" if self.kind in {"move", "copy"} else ""
        return f"{self.kind}{source} {pointer(self.path)}"


def read_patch(operations: Sequence[Mapping[str, Any]]) -> tuple[Operation, ...]:
    """The operations, or what is wrong with the first that is none."""
    if len(operations) > OPERATIONS_MAX:
        raise PatchError(f"a patch has at most {OPERATIONS_MAX} operations, not {len(operations)}")
    return tuple(_operation(number, given) for number, given in enumerate(operations, 1))


def patch_digest(operations: Sequence[Mapping[str, Any]]) -> str:
    """The SHA-256 of the patch in one spelling: whoever wrote it how, the same patch is the same.

    Members that the RFC ignores do not count.
    """
    plain = []
    for operation in read_patch(operations):
        shown: dict[str, Any] = {"op": operation.kind, "path": operation.path}
        if operation.kind in {"move", "copy"}:
            shown["from"] = operation.source
        elif operation.kind != "remove":
            shown["value"] = operation.value
        plain.append(shown)
    return "sha256:" + hashlib.sha256(dumps(plain, sort_names=True).encode()).hexdigest()


def apply_patch(
    document: Any, operations: Sequence[Operation], *, nodes_max: int, again: bool = False
) -> Any:
    """The new document. `again`: a second time, when what is to be removed may be gone already."""
    room = _Room(nodes_max)
    for operation in operations:
        try:
            document = _apply(document, operation, room)
        except _Nothing as nothing:
            if not (again and operation.kind == "remove"):
                raise operation.refused(str(nothing)) from None
        except Unkept as error:
            raise operation.refused(str(error)) from None
    return document


def pointer(tokens: Sequence[str]) -> str:
    """The pointer as it is written, at most so much of it; `the whole body` for the empty one."""
    if not tokens:
        return "the whole body"
    text = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def tokens_of(text: object) -> tuple[str, ...]:
    """The parts of a pointer."""
    if not isinstance(text, str):
        raise TypeError(f"a pointer is text, got {type(text).__name__}")
    if len(text) > POINTER_CHARS_MAX:
        raise ValueError(f"a pointer has at most {POINTER_CHARS_MAX} characters")
    if text and not text.startswith("/"):
        raise ValueError(f"the pointer {text[:_SHOWN_CHARS]!r} must begin with '/'")
    if _BAD_ESCAPE.search(text):
        raise ValueError(f"in the pointer {text[:_SHOWN_CHARS]!r} '~' is written '~0'")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def same(left: Any, right: Any) -> bool:
    """Equal as JSON values: numbers by their value, `1` and `1.0` alike, `true` and `1` not."""
    if _is_number(left) and _is_number(right):
        return _number(left) == _number(right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        names = left.keys()
        return names == right.keys() and all(same(left[name], right[name]) for name in names)
    return type(left) is type(right) and bool(left == right)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _number(value: Any) -> Decimal | str:
    written = value.written if isinstance(value, ExactFloat) else str(value)
    try:
        return Decimal(written)
    except InvalidOperation:  # no computer counts that far: the same only if written the same
        return str(written).lower()


def _operation(number: int, given: Mapping[str, Any]) -> Operation:
    if not isinstance(given, Mapping):
        raise PatchError(f"operation {number} is no object")
    kind = given.get("op")
    if not isinstance(kind, str) or kind not in get_args(Kind):
        known = ", ".join(get_args(Kind))
        raise PatchError(f"operation {number}: op is one of {known}, got {str(kind)[:40]!r}")
    found = Operation(number, cast("Kind", kind), _member(number, given, "path"))
    if found.kind in {"move", "copy"}:
        found = found._replace(source=_member(number, given, "from"))
    elif found.kind != "remove":
        if "value" not in given:
            raise found.refused("it has no value")
        try:
            dumps(given["value"])
        except Unkept as error:
            raise found.refused(str(error)) from None
        found = found._replace(value=given["value"])
    if found.kind == "move" and found.path[: len(found.source)] == found.source != found.path:
        raise found.refused("nothing can be moved into itself")
    if found.kind == "remove" and not found.path:
        raise found.refused("the whole body cannot be removed", "replace it")
    return found


def _member(number: int, given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    if name not in given:
        raise PatchError(f"operation {number} has no {name!r}")
    try:
        return tokens_of(given[name])
    except (TypeError, ValueError) as error:
        raise PatchError(f"operation {number}: {error}") from None


class _Nothing(Exception):  # noqa: N818
    """There is nothing at a place that an operation needs."""


class _Room:
    """How much a patch may copy: copies of copies double with each operation."""

    def __init__(self, nodes_max: int) -> None:
        self._left = nodes_max

    def copy(self, value: Any, level: int = 0) -> Any:
        """A value of its own."""
        self._left -= 1 + (len(value) if isinstance(value, str) else 0)
        if self._left < 0:
            raise Unkept("the body would become too large")
        if level > DEPTH_MAX:
            raise Unkept(f"the body would be nested deeper than {DEPTH_MAX} levels")
        if isinstance(value, Mapping):
            self._left -= sum(map(len, value))
            return {name: self.copy(item, level + 1) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item, level + 1) for item in value]
        return value


def _apply(document: Any, operation: Operation, room: _Room) -> Any:
    path = operation.path
    match operation.kind:
        case "test":
            if not same(_at(document, path), operation.value):
                raise operation.refused("the value there is another")
        case "add":
            document = _add(document, path, room.copy(operation.value))
        case "replace":
            document = _replace(document, path, room.copy(operation.value))
        case "remove":
            _take(document, path)
        case "copy":
            document = _add(document, path, room.copy(_at(document, operation.source)))
        case "move":
            value = _at(document, operation.source)
            if operation.source != path:
                _take(document, operation.source)
                document = _add(document, path, value)
    return document


def _at(document: Any, tokens: Sequence[str]) -> Any:
    value = document
    for depth, token in enumerate(tokens):
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list):
            value = value[_index(value, tokens[: depth + 1], len(value) - 1)]
        else:
            raise _Nothing(f"there is nothing at {pointer(tokens[: depth + 1])}")
    return value


def _index(items: list[Any], tokens: Sequence[str], most: int) -> int:
    found = tokens[-1]
    if _INDEX.fullmatch(found) is None or int(found) > most:
        where = pointer(tokens[:-1])
        raise _Nothing(f"{where} is an array of {len(items)} and has no item {found[:40]!r}")
    return int(found)


def _add(document: Any, path: Sequence[str], value: Any) -> Any:
    if not path:
        return value
    holder = _at(document, path[:-1])
    if isinstance(holder, dict):
        holder[path[-1]] = value
    elif isinstance(holder, list):
        end = len(holder)
        holder.insert(end if path[-1] == "-" else _index(holder, path, end), value)
    else:
        raise _Nothing(f"{pointer(path[:-1])} is neither an object nor an array")
    return document


def _replace(document: Any, path: Sequence[str], value: Any) -> Any:
    _at(document, path)
    if not path:
        return value
    holder = _at(document, path[:-1])
    holder[_key(holder, path)] = value
    return document


def _take(document: Any, path: Sequence[str]) -> None:
    _at(document, path)
    holder = _at(document, path[:-1])
    del holder[_key(holder, path)]


def _key(holder: Any, path: Sequence[str]) -> str | int:
    return path[-1] if isinstance(holder, dict) else _index(holder, path, len(holder) - 1)
