"""The command line: `outlast <verb>`. What a verb needs is imported when the verb runs."""

from outlast.cli.app import main

__all__ = ["main"]
