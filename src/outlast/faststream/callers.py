"""Warnings that name the user's own line: the first frame outside this package and FastStream."""

import sys
import warnings

_OURS = ("outlast", "faststream")


def stack_level() -> int:
    """What `warnings.warn` needs, called from the function that calls this one."""
    level = 1
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way to look at callers
    while frame.f_back is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _OURS:
            break
        frame = frame.f_back
        level += 1
    return level


def warn(message: str) -> None:
    """A UserWarning at the first frame that is neither ours nor FastStream's."""
    warnings.warn(message, UserWarning, stacklevel=stack_level())
