"""The ledger: what processes did, outside the database, one appended line each.

A line is one `write` to a file opened with O_APPEND, so a process killed at any instant leaves
whole lines only; a checksum proves it. Times are CLOCK_MONOTONIC, one clock for all processes.
"""

import json
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Ledger:
    """One file that any number of processes append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._pid = os.getpid()

    def write(self, event: str, /, **facts: Any) -> None:
        facts |= {"e": event, "pid": self._pid, "at": time.monotonic()}
        text = json.dumps(facts, separators=(",", ":")).encode()
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        written = os.write(self._file, line)
        assert written == len(line), "the ledger's disk is full"

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Every line, checked."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            crc, _, text = line.rstrip(b"\n").partition(b" ")
            if int(crc, 16) != zlib.crc32(text):
                raise ValueError(f"{path.name}:{number} is damaged: {line[:80]!r}")
            yield json.loads(text)
