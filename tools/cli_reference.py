"""docs/reference/cli.md, made from the command itself: verbs, options, defaults, exit statuses."""

import os
import sys
from pathlib import Path

import typer

from outlast.cli.app import app
from outlast.cli.asking import ASKED, MENDING, WANTED

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"

ABOUT = """\
# The command line

Made by `make reference` from the command itself; do not edit. How to work with it:
[dead letters, for operators](../operate/dead-letters.md).

## Exit statuses

| Status | |
|---|---|
| 0 | done, also when there was nothing to do |
| 1 | not found, refused by the data, failed, stopped by Ctrl-C, or declined at a question |
| 2 | usage or environment: a bad option or filter, no such database, a missing right, no terminal \
for a question, Ctrl-C at one |
| 3 | refused by a gate |

Results go to stdout, everything else to stderr. `NO_COLOR` is heeded. Without a terminal nobody is
asked: say `--yes`. An error is a sentence with the next step; `OUTLAST_TRACEBACK=1` shows the
traceback of an unexpected one.

## Completion

`outlast --install-completion` sets up bash, zsh, fish or PowerShell, whichever it is called in;
`outlast --show-completion` prints the script instead.
"""

FILTER = """\
`FILTER` is one text in single quotes, such as `'queue:orders error:timeout since:2h'`. Words are
ANDed, the same word again is OR, `-word:` negates. The words: `queue:` (also `stream:`,
`subscription:`), `subscriber:`, `id:`, `message:`, `event:`, `category:`, `reason:`, `triage:`,
`owner:`, `state:`, `error:`, `group:`, `version:`, `since:`, `until:`, `replays:`, `header.NAME:`,
`body.a.b:`. These options stand for words:
"""

_LINKS = {"words": "a [filter](#filter)", "patch": "a [change](#changing-a-message)"}

_FILTER_FORMS = {
    "outlast dlq inspect": "ID | --all [FILTER]",
    "outlast dlq purge": "FILTER | ID... | --all",
    "outlast dlq replay-all": "FILTER | --all",
}


def main() -> int:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), "utf-8")
    return 0


def page() -> str:
    root = typer.main.get_command(app)
    verbs = list(_verbs(root, "outlast"))
    shared = {name: param for name, param in _params(verbs) if name in {*ASKED, *WANTED, *MENDING}}
    parts = [
        ABOUT,
        "## Options of every verb\n\nBefore or after the verb; the nearest one counts.\n",
        _table([shared[name] for name in ASKED]),
        f"## Filter\n\n{FILTER}",
        _table([shared[name] for name in WANTED if name != "words"]),
        "## Changing a message\n\nOf `dlq edit`, `dlq replay` and `dlq replay-all`:\n",
        _table([shared[name] for name in MENDING]),
        "## Verbs\n",
        *(_section(path, command) for path, command in verbs),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _verbs(command, path):
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in sorted(command.commands):
        yield from _verbs(command.commands[name], f"{path} {name}")


def _params(verbs):
    for _, command in verbs:
        for param in command.params:
            yield param.name, param


def _section(path, command):
    own = [p for p in command.params if p.name not in {*ASKED, *WANTED, *MENDING}]
    options = [p for p in own if p.param_type_name == "option"]
    arguments = [_argument(p) for p in own if p.param_type_name == "argument"]
    names = {p.name for p in command.params}
    if "words" in names:
        arguments.append(_FILTER_FORMS.get(path, "[FILTER]"))
    takes = [link for name, link in _LINKS.items() if name in names]
    lines = [f"### `{path}`", ""]
    if arguments:
        lines += [f"`{path} {' '.join(arguments)}`", ""]
    lines += [_prose(command.help), ""]
    if takes:
        lines += [f"Takes {' and '.join(takes)}.", ""]
    if options:
        lines += [_table(options)]
    return "\n".join(lines)


def _argument(param):
    shown = (param.metavar or param.name.upper()) + ("..." if param.nargs != 1 else "")
    return shown if param.required else f"[{shown}]"


def _prose(text):
    return "\n".join(line.strip() for line in (text or "").strip().splitlines())


def _table(params):
    lines = ["| Option | | Default |", "|---|---|---|"]
    rows = [f"| {_spelled(p)} | {_cell(p.help or '')} | {_default(p)} |" for p in params]
    return "\n".join([*lines, *rows]).replace("|  |", "| |") + "\n"


def _spelled(param):
    value = "" if param.is_flag else f" {_cell(_metavar(param))}"
    names = [*param.opts, *param.secondary_opts]
    return ", ".join(f"`{name}{value}`" for name in sorted(names, key=len, reverse=True))


def _metavar(param):
    shown = param.show_default if isinstance(param.show_default, str) else param.default
    return param.metavar or ("N" if str(shown).isdecimal() else "TEXT")


def _default(param):
    if isinstance(param.show_default, str):
        return _cell(param.show_default)
    if param.required:
        return "needed"
    return "" if param.default in {None, False, ()} or param.multiple else f"`{param.default}`"


def _cell(text):
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    sys.exit(main())
