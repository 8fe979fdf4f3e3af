"""The development requirements as pip understands them, one per line, from pyproject.toml.

`pip install --group` needs pip 25.1; this reads the same group for any pip.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def requirements() -> list[str]:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    name = data["project"]["name"]
    return [
        # the project itself is installed from here, editable, with the extras the group asks for
        f"--editable .{line.removeprefix(name)}" if line.startswith(f"{name}[") else line
        for line in data["dependency-groups"]["dev"]
    ]


if __name__ == "__main__":
    print("\n".join(requirements()))
