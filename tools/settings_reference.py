"""docs/reference/settings.md, made from the schema of the settings and the options of the verbs."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from outlast.cli.app import app
from outlast.config import ENV_PREFIX, FILE_NAME, OTHER_VARIABLES, Settings

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "settings.md"

ABOUT = f"""\
# Settings

Made by `make reference` from `outlast.config`; do not edit.

A setting has one name. Where it is given twice, the nearest place wins: an option on the command
line, else the environment, else the file, else the default. What is empty in the environment or on
the command line counts as not given.

The file is `{FILE_NAME}` in the current folder, or the one that `--config` or `OUTLAST_CONFIG`
names. It is TOML with the keys at its top:

```toml
dsn = "postgresql://desk@db.example.org/shop"
require_reason = true
keep_discarded = "14d"
secret_names = ["customer code"]
```

A key that does not exist is refused, and so is a variable whose name is nearly one of these. A
list is written as a list in the file; in the environment its items stand apart by blanks. Give the
file to its owner alone (`chmod 600`) if there is a password in it.

"""


def options() -> dict[str, list[str]]:
    """For each option of the command line, the verbs that have it."""
    found: dict[str, list[str]] = {}

    def walk(command: Any, words: list[str]) -> None:
        for parameter in command.params:
            for option in parameter.opts:
                found.setdefault(option, []).append(" ".join(words))
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, [*words, name])

    walk(typer.main.get_command(app), [])
    return found


def default_of(value: Any) -> str:
    if value is None or value in ("", ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rows() -> Iterator[str]:
    given = options()
    for name, field in Settings.model_fields.items():
        assert isinstance(field.json_schema_extra, dict)
        option = f"--{name.replace('_', '-')}"
        cells = (
            f"`{name}`",
            str(field.json_schema_extra["allowed"]),
            default_of(field.default),
            f"`{option}`" if option in given else "",
            f"`{ENV_PREFIX}{name.upper()}`",
            str(field.description),
        )
        yield f"| {' | '.join(cells)} |"


def page() -> str:
    lines = [
        "| Key | Takes | Default | Option | Variable | What it does |",
        "|---|---|---|---|---|---|",
        *rows(),
        "",
        "## Other variables",
        "",
        "| Variable | What it does |",
        "|---|---|",
        *(f"| `{name}` | {about} |" for name, about in OTHER_VARIABLES.items()),
    ]
    return ABOUT + "\n".join(lines) + "\n"


def main() -> int:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
