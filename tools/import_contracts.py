"""Check the import contracts of pyproject.toml; say something only when one is broken."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lint(root: Path = ROOT, *options: str) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the package in `root`/src, under the contracts of `root`."""
    script = "from importlinter.cli import lint_imports_command as main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, "--no-logo", "--no-cache", *options],
        cwd=root,
        env={"PYTHONPATH": str(root / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    result = lint()
    if result.returncode:
        print(result.stdout, result.stderr, sep="\n", file=sys.stderr)
    sys.exit(result.returncode)
