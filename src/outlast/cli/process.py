"""The process `outlast`: the verbs, and an end without ceremony.

Out: the exit status. Taking an interpreter apart that holds SQLAlchemy takes longer than most verbs
do; what matters is flushed and closed before.
"""

import contextlib
import logging
import os
import sys
import threading

from outlast.cli.app import main


def command() -> None:
    """The command `outlast`, as a process of its own."""
    try:
        main()
    except SystemExit as end:
        # anything else than a number is a sentence that the interpreter would print
        if end.code is not None and not isinstance(end.code, int):
            raise
        _end(end.code or 0)
    _end(0)


def _end(status: int) -> None:
    if threading.active_count() > 1:
        # somebody is still at work: an ordinary end waits for them
        sys.exit(status)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
