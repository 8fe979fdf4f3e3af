"""What must not stand in any file: unfinished work, unsafe calls, addresses of machines."""

import ast
import re

import pytest

from .package import modules, name_of, parsed, repository_files, text_of

CODE = {".py", ".toml", ".sql", ".sh", ".mk", ""}

# a bracket in each word, so that this file does not contain what it forbids
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X]|HA[C]K)\b")
REGISTRIES = re.compile(
    r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|index[-_]url|find[-]links|trusted[-]host|/op[t]/"
)
MACHINES = re.compile(r"/wor[k]/|/hom[e]/[a-z]|/roo[t]/|/User[s]/[a-z]")

UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_METHODS = {("yaml", "load"), ("yaml", "unsafe_load"), ("os", "system")}


def unsafe(tree):
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module] if (node.module or "").split(".")[0] in UNSAFE_MODULES else []
        elif isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) if name in UNSAFE_CALLS:
                    found.append(name)
                case ast.Attribute(value=ast.Name(id=owner), attr=name) if (
                    owner,
                    name,
                ) in UNSAFE_METHODS:
                    found.append(f"{owner}.{name}")
    return found


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_no_unsafe_call(path):
    assert not unsafe(parsed(path))


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "eval('1')",
        "exec(text)",
        "yaml.load(stream)",
        "__import__(name)",
    ],
)
def test_the_search_for_unsafe_calls_can_see(code):
    assert unsafe(ast.parse(code))


def lines_with(pattern, files):
    return [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_is_left_unfinished():
    files = [path for path in repository_files() if path.suffix in CODE]
    assert not lines_with(UNFINISHED, files)


def test_no_file_records_the_address_of_a_registry():
    # a page may link to where the package is published
    files = [path for path in repository_files() if path.suffix != ".md"]
    assert not lines_with(REGISTRIES, files)


def test_no_file_names_a_path_of_somebodys_machine():
    assert not lines_with(MACHINES, repository_files())


def test_there_is_no_lock_file():
    locks = {"uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pylock.toml"}
    assert not [path.name for path in repository_files() if path.name in locks]
