"""A question to whoever sits at the terminal. Without a terminal nobody is asked.

In: the question. Out: nothing if it was answered with yes, else the end of the verb: declined is 1,
no terminal and Ctrl-C are 2.
"""

import signal
import sys

from outlast.cli.frame import FAILED, USAGE, Unanswered
from outlast.cli.paper import tell
from outlast.model.query import Query
from outlast.policy.filter_text import render
from outlast.policy.neutral_text import neutral_text


def confirm(question: str, *, yes: bool, told: str | None = None) -> None:
    """Go on only if somebody agrees; `yes` agrees beforehand."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Unanswered("there is no terminal to ask on: say --yes", USAGE)
    if told:
        tell(told)
    # the event loop would answer Ctrl-C by a cancellation that nothing here can see
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(f"{question} [y/N]: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    finally:
        signal.signal(signal.SIGINT, before)
    if not answer:
        tell("")
        raise Unanswered("Aborted.", USAGE)
    if answer.strip().lower() not in {"y", "yes"}:
        raise Unanswered("Aborted.", FAILED)


def scope_of(query: Query) -> str:
    """Which letters a question is about, in its words."""
    if query.is_empty:
        return ""
    word = query.words[0]
    is_alone = len(query.words) == len(word.alternatives) == 1
    if is_alone and word.name == "queue" and not word.negated:
        return neutral_text(f" for subscription '{word.alternatives[0].value}'")
    return neutral_text(f" for the filter '{render(query)}'")
