"""JSON Patch and JSON Pointer, exact numbers, what an edit is shown as."""

import copy
import json
import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.policy.edit_diff import CHARS_MAX, LINES_MAX, diff
from outlast.policy.exact_json import DEPTH_MAX, ExactFloat, NotJson, Unkept, dumps, loads
from outlast.policy.json_patch import (
    OPERATIONS_MAX,
    PatchError,
    TestFailed,
    apply_patch,
    patch_digest,
    pointer,
    read_patch,
    same,
    tokens_of,
)


def patched(document, *operations, again=False, nodes_max=10_000):
    steps = read_patch(operations)
    return apply_patch(copy.deepcopy(document), steps, nodes_max=nodes_max, again=again)


def step(op, path, **members):
    return {"op": op, "path": path, **members}


@pytest.mark.parametrize(
    ("document", "operation", "expected"),
    [
        ({"a": 1}, step("add", "/b", value=2), {"a": 1, "b": 2}),
        ({"a": 1}, step("add", "/a", value=None), {"a": None}),
        ([1, 3], step("add", "/1", value=2), [1, 2, 3]),
        ([1], step("add", "/1", value=2), [1, 2]),
        ([1], step("add", "/-", value=[2]), [1, [2]]),
        ({"a": 1}, step("add", "", value=[]), []),
        ({"a": {"b": 1}}, step("remove", "/a/b"), {"a": {}}),
        ([1, 2, 3], step("remove", "/1"), [1, 3]),
        ({"a": 1}, step("replace", "/a", value={"x": []}), {"a": {"x": []}}),
        ([1, 2], step("replace", "/0", value=9), [9, 2]),
        ({"a": 1}, step("replace", "", value=None), None),
        ({"a": 1}, {"op": "move", "from": "/a", "path": "/b"}, {"b": 1}),
        ([1, 2, 3], {"op": "move", "from": "/0", "path": "/2"}, [2, 3, 1]),
        ({"a": 1}, {"op": "move", "from": "/a", "path": "/a"}, {"a": 1}),
        ({"a": [1]}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": [1], "b": [1]}),
        ({"a": [1]}, {"op": "copy", "from": "/a", "path": ""}, [1]),
        ({"a": {"b": 1}}, {"op": "copy", "from": "", "path": "/c"}, {"a": {"b": 1}, "c": ...}),
        ({"a": 1}, step("test", "/a", value=1.0), {"a": 1}),
        ({"": 1, "a/b": 2, "m~n": 3}, step("remove", "/"), {"a/b": 2, "m~n": 3}),
        ({"a/b": 2, "m~n": 3, "~1": 4}, step("remove", "/a~1b"), {"m~n": 3, "~1": 4}),
        ({"m~n": 3, "~1": 4}, step("remove", "/m~0n"), {"~1": 4}),
        ({"/": 5, "~1": 4}, step("remove", "/~01"), {"/": 5}),
        ({"0": 1}, step("replace", "/0", value=2), {"0": 2}),
        ({"é": 1}, step("replace", "/é", value=2), {"é": 2}),
        ({"a": 1}, step("add", "/b", value=1, comment="not ours"), {"a": 1, "b": 1}),
    ],
)
def test_each_operation_does_what_the_rfc_says(document, operation, expected):
    """S4-75: JSON Patch whole, with pointers."""
    if isinstance(expected, dict) and expected.get("c") is ...:
        expected = {"a": {"b": 1}, "c": {"a": {"b": 1}}}
    assert patched(document, operation) == expected


@pytest.mark.parametrize(
    ("document", "operation", "said"),
    [
        ({}, step("remove", "/a"), "operation 1 (remove /a): there is nothing at /a"),
        ({}, step("replace", "/a", value=1), "(replace /a): there is nothing at /a"),
        ({}, step("add", "/a/b", value=1), "(add /a/b): there is nothing at /a"),
        ({"a": 1}, step("add", "/a/b", value=1), "/a is neither an object nor an array"),
        ([1], step("add", "/2", value=1), "an array of 1 and has no item '2'"),
        ([1], step("remove", "/-"), "no item '-'"),
        ([1], step("replace", "/01", value=1), "no item '01'"),
        ([1], step("test", "/1", value=1), "no item '1'"),
        ([1], step("remove", "/-1"), "no item '-1'"),
        ([1], step("remove", "/1e0"), "no item '1e0'"),
        ([1], step("remove", "/\u0660"), "no item"),
        ({"a": 1}, step("test", "/a", value=2), "(test /a): the value there is another"),
        ({"a": 1}, step("test", "/a", value="1"), "another"),
        ({"a": 1}, step("test", "/a", value=True), "another"),
        ({"a": [1, 2]}, step("test", "/a", value=[2, 1]), "another"),
        ({"a": "x"}, step("remove", "/a/0"), "there is nothing at /a/0"),
        ({"a": 1}, {"op": "move", "from": "/b", "path": "/c"}, "(move /b to /c): there is nothing"),
        ({"a": 1}, {"op": "copy", "from": "/b", "path": "/c"}, "(copy /b to /c): there is nothing"),
    ],
)
def test_what_cannot_be_done_names_operation_and_place(document, operation, said):
    """An error says which operation and where; the document of the caller is as it was."""
    before = copy.deepcopy(document)
    with pytest.raises(PatchError, match=re.escape(said)):
        patched(document, operation)
    with pytest.raises(PatchError, match=r"^operation 2 "):
        patched(document, step("test", "", value=before), operation)
    assert document == before


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (["add"], "operation 1 is no object"),
        ({}, "op is one of add, remove, replace, move, copy, test"),
        ({"op": ["add"], "path": ""}, "op is one of"),
        ({"op": "append", "path": "/a"}, "got 'append'"),
        ({"op": "add", "value": 1}, "has no 'path'"),
        ({"op": "add", "path": "/a"}, "has no value"),
        ({"op": "move", "path": "/a"}, "has no 'from'"),
        ({"op": "add", "path": "a", "value": 1}, "must begin with '/'"),
        ({"op": "add", "path": "/a~2", "value": 1}, "'~' is written '~0'"),
        ({"op": "add", "path": "/a~", "value": 1}, "'~' is written '~0'"),
        ({"op": "add", "path": 7, "value": 1}, "a pointer is text"),
        ({"op": "add", "path": "/" + "x" * 5000, "value": 1}, "at most"),
        ({"op": "remove", "path": ""}, "cannot be removed"),
        ({"op": "move", "from": "/a", "path": "/a/b"}, "into itself"),
        ({"op": "move", "from": "", "path": "/a"}, "into itself"),
        ({"op": "add", "path": "/a", "value": float("nan")}, "JSON has no nan"),
        ({"op": "add", "path": "/a", "value": {"x": {1, 2}}}, "nothing for a set at /x"),
    ],
)
def test_what_is_no_operation_is_refused_before_anything_happens(operation, said):
    with pytest.raises(PatchError, match=re.escape(said)):
        read_patch([operation])


def test_a_patch_is_bounded():
    """Operations, copies of copies, and depth have limits."""
    with pytest.raises(PatchError, match="at most"):
        read_patch([step("remove", "/a")] * (OPERATIONS_MAX + 1))
    doubling = [{"op": "copy", "from": "", "path": f"/{n}"} for n in range(60)]
    with pytest.raises(PatchError, match="too large"):
        patched({"a": "x" * 100}, *doubling)
    deeper = [{"op": "copy", "from": "/a", "path": "/a" + "/a" * n} for n in range(1, 40)]
    with pytest.raises(PatchError, match=r"nested deeper|too large"):
        patched({"a": {}}, *deeper, nodes_max=10**6)


def test_a_patch_does_not_share_its_values():
    """A value of the patch that is changed by a later operation is not the patch's own."""
    operations = [
        step("add", "/a", value={"n": []}),
        step("add", "/a/n/-", value=1),
        {"op": "copy", "from": "/a", "path": "/b"},
        step("add", "/b/n/-", value=2),
    ]
    for _ in range(2):
        assert patched({}, *operations) == {"a": {"n": [1]}, "b": {"n": [1, 2]}}


def test_a_second_time_removes_nothing_more_and_asks_first():
    """S4-77: what is gone already is gone, a failed test is told apart, a move is not done."""
    assert patched({}, step("remove", "/a/b"), step("remove", "/c"), again=True) == {}
    with pytest.raises(TestFailed):
        patched({"a": 2}, step("test", "/a", value=1), again=True)
    with pytest.raises(PatchError, match="move"):
        patched({"b": 1}, {"op": "move", "from": "/a", "path": "/b"}, again=True)
    with pytest.raises(PatchError, match="remove"):
        patched({}, step("remove", "/a"))


def test_one_patch_has_one_digest():
    """U-17: the digest is that of what the patch does, however it is written."""
    one = patch_digest([step("replace", "/a~1b", value={"x": 1, "y": 2})])
    assert one.startswith("sha256:")
    assert one == patch_digest(
        [{"value": {"y": 2, "x": 1}, "path": "/a~1b", "op": "replace", "comment": "why"}]
    )
    assert one != patch_digest([step("replace", "/a~1b", value={"x": 1, "y": 3})])
    assert one != patch_digest([step("add", "/a~1b", value={"x": 1, "y": 2})])
    assert one != patch_digest([step("replace", "/a/b", value={"x": 1, "y": 2})])


names = st.text(alphabet="ab/~0-é ", max_size=3)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


def between(old, new, path=""):
    """Operations that make one document of the other, removals last."""
    if isinstance(old, dict) and isinstance(new, dict):
        made = []
        for name in new:
            here = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            if name not in old:
                made.append(step("add", here, value=new[name]))
            else:
                made += between(old[name], new[name], here)
        for name in old.keys() - new.keys():
            here = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            made.append(step("remove", here))
        return made
    if isinstance(old, list) and isinstance(new, list):
        made = [
            m
            for n, (a, b) in enumerate(zip(old, new, strict=False))
            for m in between(a, b, f"{path}/{n}")
        ]
        made += [step("add", f"{path}/-", value=item) for item in new[len(old) :]]
        made += [step("remove", f"{path}/{n}") for n in range(len(old) - 1, len(new) - 1, -1)]
        return made
    return [] if same(old, new) else [step("replace", path, value=new)]


@given(values, values)
@settings(max_examples=300, deadline=None)
def test_a_patch_made_from_two_documents_leads_from_one_to_the_other(old, new):
    """S4-75: whatever the two are; and a test of the result holds."""
    after = patched(old, *between(old, new), step("test", "", value=new))
    assert same(after, new)
    assert json.loads(dumps(after)) == json.loads(dumps(new))
    if not same(old, new):
        with pytest.raises(TestFailed):
            patched(old, step("test", "", value=new))


@given(st.lists(st.text(max_size=5), max_size=4))
def test_a_pointer_is_written_and_read_alike(tokens):
    if tokens and len(pointer(tokens)) < 200:
        assert list(tokens_of(pointer(tokens))) == tokens


@given(values)
def test_a_value_comes_back_from_its_text(value):
    text = dumps(value)
    assert dumps(loads(text.encode())) == text
    assert same(loads(text.encode()), value)


@pytest.mark.parametrize(
    "text",
    [
        "1.10",
        "-0",
        "-0.0",
        "0.1e1",
        "1E400",
        "1e-400",
        "12345678901234567890123456789012345678901234567890",
        "9" * 5000,
        "0.1000000000000000055511151231257827",
        '"\\ud83d"',
        '"•é\\u0000"',
        '{"a":[{}],"b":[],"":{"c":null}}',
    ],
)
def test_numbers_and_texts_stay_as_they_were_written(text):
    """S4-75: exact numbers survive an edit of something else."""
    assert dumps(loads(text.encode())).encode() == text.encode()
    body = f'{{"keep":[{text}],"change":1}}'.encode()
    after = patched(loads(body), step("replace", "/change", value=2))
    assert dumps(after) == f'{{"keep":[{text}],"change":2}}'


def test_a_float_of_a_body_is_a_float_to_code():
    """Arithmetic gives plain floats; a copy is still written as it was read."""
    price = loads(b"1.10")
    assert isinstance(price, ExactFloat)
    assert price * 2 == 2.2
    assert dumps([copy.deepcopy(price), copy.copy(price), price + 0, Decimal("2.50")]) == (
        "[1.10,1.10,1.1,2.50]"
    )


@pytest.mark.parametrize(
    "body", [b"\xff", b"", b"{", b"NaN", b"[1,]", b"\xef\xbb\xbf{}", b"{}x", b"[Infinity]", b"01"]
)
def test_what_is_no_json_is_told_apart(body):
    with pytest.raises(NotJson):
        loads(body)


@pytest.mark.parametrize("body", [b'{"a":1,"a":2}', b'[{"x":{"a":1,"b":2,"a":1}}]', b"[" * 100_000])
def test_json_that_cannot_be_kept_is_refused(body):
    """A name twice would lose one of the two; bottomless nesting would end the process."""
    with pytest.raises(Unkept):
        loads(body)


def test_depth_is_bounded_when_written():
    deep = json.loads("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    assert len(dumps(deep)) == 2 * DEPTH_MAX
    round_about: list[object] = []
    round_about.append(round_about)
    for value in ([deep], round_about):
        with pytest.raises(Unkept, match="deeper"):
            dumps(value)


@pytest.mark.parametrize(
    "value", [float("inf"), Decimal("NaN"), {1: 2}, {"a": b"x"}, object(), {3}]
)
def test_what_json_has_nothing_for_is_refused(value):
    with pytest.raises(Unkept):
        dumps(value)


@pytest.mark.parametrize(
    ("left", "right", "alike"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (False, 0, False),
        (None, False, False),
        ("1", 1, False),
        (loads(b"1.10"), loads(b"1.1"), True),
        (loads(b"1e400"), loads(b"2e400"), False),
        (loads(b"1e400"), loads(b"10e399"), True),
        (loads(b"1e99999999999999999999"), loads(b"1E99999999999999999999"), True),
        (loads(b"0.1"), 0.1, True),
        (loads(b"9" * 5000), loads(b"9" * 4999 + b"8"), False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1], {"0": 1}, False),
    ],
)
def test_values_are_the_same_as_json_says(left, right, alike):
    assert same(left, right) is alike


def test_a_diff_shows_what_changes_and_nothing_else():
    """S4-75: unified, with a little around it."""
    lines = [f'"n{n}": {n}' for n in range(100)]
    after = [*lines[:50], '"n50": 0', *lines[51:]]
    assert diff("body", "\n".join(lines), "\n".join(after)) == (
        "--- body before",
        "+++ body after",
        "@@ -48,7 +48,7 @@",
        *(f" {line}" for line in lines[47:50]),
        '-"n50": 50',
        '+"n50": 0',
        *(f" {line}" for line in lines[51:54]),
    )
    assert diff("body", "a", "a") == ()


def test_a_diff_is_bounded():
    """Lines, characters and work: the worst texts, alike in every other line, end at once."""
    before = "\n".join("x" if n % 2 else str(n) for n in range(100_000))
    after = "\n".join("x" if n % 2 else str(-n) for n in range(1, 100_001))
    shown = diff("body", before, after)
    assert len(shown) <= LINES_MAX + 1
    assert any(line.startswith("-") for line in shown[2:])
    assert any(line.startswith("+") for line in shown[2:])
    same_lines = "\n".join(["x"] * 399)
    assert len(diff("body", same_lines + "\ny", "z\n" + same_lines)) <= LINES_MAX + 1
    long = "a" * 100_000
    shown = diff("body", f"{long}old{long}", f"{long}new{long}")
    assert all(len(line) <= CHARS_MAX + 3 for line in shown)
    assert "old" in shown[3]
    assert "new" in shown[4]
