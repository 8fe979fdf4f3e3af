"""House sizes and shapes: files, functions, module docstrings, module names."""

import ast

import pytest

from .package import PACKAGE, ROOT, modules, name_of, parsed

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
DOCSTRING_LINES_MAX = 6
CATCH_ALL = {"utils", "util", "common", "base", "helpers", "helper", "manager", "misc", "core"}

# the tree of errors is drawn where it is defined
LONG_DOCSTRINGS = {"src/outlast/model/errors.py"}

TOOLS = sorted((ROOT / "tools").glob("*.py"))


def long_functions(tree):
    return [
        f"{node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]


@pytest.mark.parametrize("path", [*modules(), *TOOLS], ids=name_of)
def test_no_file_or_function_swallows_its_neighbours(path):
    assert len(path.read_text("utf-8").splitlines()) <= FILE_LINES_MAX
    assert not long_functions(parsed(path))


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_every_module_says_what_it_is_for(path):
    docstring = ast.get_docstring(parsed(path))
    assert docstring, "a module begins with a docstring"
    if name_of(path) not in LONG_DOCSTRINGS:
        assert len(docstring.splitlines()) <= DOCSTRING_LINES_MAX


def test_no_module_is_a_catch_all():
    assert not [name_of(path) for path in modules() if path.stem.strip("_") in CATCH_ALL]


def test_no_room_is_empty():
    for room in PACKAGE.iterdir():
        if room.is_dir() and room.name != "__pycache__":
            assert list(room.rglob("*.py")), name_of(room)


def test_the_measure_of_functions_can_see():
    body = "\n".join("    pass" for _ in range(FUNCTION_LINES_MAX))
    assert long_functions(ast.parse(f"async def long():\n{body}"))
    assert not long_functions(ast.parse("def short():\n    pass"))
