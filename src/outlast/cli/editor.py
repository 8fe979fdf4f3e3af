"""$EDITOR on a payload: a text goes into a file only its owner can read, and comes back.

In: the text and its ending. Out: what was saved. A draft that could not be used is kept, and its
place told; in every other case nothing of the payload stays on the disk.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from outlast.cli.frame import USAGE, Unanswered

FALLBACK = "vi"
_TEXT_BYTES_MAX = 64 * 1024 * 1024


class EditedFile:
    """A file under an editor. Use it as a context; `keep` leaves it where it is."""

    def __init__(self, text: str, suffix: str) -> None:
        # a folder of its own: what an editor writes beside the file is as private and goes too
        self._folder = Path(tempfile.mkdtemp(prefix="outlast-"))
        self.path = self._folder / f"payload{suffix}"
        self._text = text if text.endswith("\n") else f"{text}\n"
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(self._text.encode())
        self._is_kept = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:
            shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self) -> str:
        """Where the text can be found again."""
        self._is_kept = True
        return str(self.path)

    def edited(self) -> bytes | None:
        """What was saved, without the line end that editors add; None: nothing was changed."""
        _open_editor(self.path)
        try:
            with self.path.open("rb") as file:
                saved = file.read(_TEXT_BYTES_MAX + 1)
        except OSError as error:
            raise Unanswered(f"the edited file is gone: {error.strerror}", USAGE) from None
        if len(saved) > _TEXT_BYTES_MAX:
            raise Unanswered(f"what was saved is larger than {_TEXT_BYTES_MAX:,} bytes", USAGE)
        if saved == self._text.encode():
            return None
        return saved.removesuffix(b"\n").removesuffix(b"\r")


def _open_editor(path: Path) -> None:
    said = os.environ.get("VISUAL") or os.environ.get("EDITOR") or FALLBACK
    try:
        command = shlex.split(said)
        # an answer that is piped away must not take the editor's screen with it
        screen = None if sys.stdout.isatty() else sys.stderr
        process = subprocess.Popen([*command, str(path)], stdout=screen)  # noqa: S603 - as was said
    except (OSError, ValueError, IndexError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Unanswered(f"the editor {said!r} cannot be started: {why}", USAGE) from None
    # Ctrl-C is the editor's while it runs
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    if status:
        raise Unanswered(f"the editor {said!r} failed ({status}): nothing is changed", USAGE)
