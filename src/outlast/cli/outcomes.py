"""What became of an action, as lines: done on stdout, everything else on stderr.

In: results of the desk. Out: lines only; the exit status belongs to the result.
"""

from collections import Counter

from outlast.cli.paper import say, tell
from outlast.model.replay import BulkReplay, LetterReplay
from outlast.ops.outcomes import Waited
from outlast.ops.tally import BulkChange

LINES_MAX = 20
"""Letters of a large run that are told one by one."""

_WAITED = {
    "succeeded": "succeeded",
    "failed_again": "failed again",
    "waiting": "is still waiting",
}


def print_replays(done: BulkReplay) -> None:
    """Named letters: a line for each."""
    for result in done.results:
        if result.outcome == "replayed":
            say(f"Replayed message '{result.dlq_id}' to stream '{result.queue}'.")
        elif result.outcome == "would_replay":
            say(f"Would replay message '{result.dlq_id}' to stream '{result.queue}'.")
            for line in result.diff:
                say(line)
        else:
            _tell_refused(result)
        for warning in result.warnings:
            tell(f"warning for message '{result.dlq_id}': {warning}")


def _tell_refused(result: LetterReplay) -> None:
    reason = result.reason or ""
    if result.outcome == "skipped":
        tell(f"Skipped message '{result.dlq_id}': {reason}")
    elif reason.endswith("not found."):
        tell(reason)
    else:
        gate = f" [{result.gate}]" if result.gate else ""
        tell(f"Failed to replay message '{result.dlq_id}'.{gate} {reason}")
    if result.remedy:
        tell(f"  {result.remedy}")


def print_bulk_replay(done: BulkReplay) -> None:
    """A run by filter: a line for each queue, and one for each kind of refusal."""
    word = "Would replay" if done.dry_run else "Replayed"
    for queue, number in sorted(done.by_queue.items()):
        say(f"{word} {number} message(s) to stream '{queue}'.")
    for result in [result for result in done.results if result.diff][:LINES_MAX]:
        say(f"Message '{result.dlq_id}' would change:")
        for line in result.diff:
            say(line)
    warned = Counter(warning for result in done.results for warning in result.warnings)
    for warning, number in warned.most_common(LINES_MAX):
        tell(f"warning for {number}: {warning}")
    for kind in done.refused:
        tell(f"{kind.count} refused [{kind.gate}]: {kind.reason}")
        tell(f"  outlast dlq list '{kind.filter}'")
    for left in done.left_out:
        tell(f"{left.count} left out, {left.kind}: outlast dlq list '{left.filter}'")
    if done.skipped:
        tell(f"{done.skipped} skipped: somebody else took them meanwhile")
    if done.failed:
        tell(f"{done.failed} failed:")
    bad = [result for result in done.results if result.outcome == "failed"]
    for result in bad[:LINES_MAX]:
        _tell_refused(result)


def print_waited(waited: Waited, *, as_json: bool) -> None:
    """What became of what was sent. With `--json` the document tells the outcomes."""
    for letter_id, outcome in waited.outcomes.items():
        note = waited.notes.get(letter_id)
        line = f"Message '{letter_id}' {_WAITED[outcome]}{f': {note}' if note else '.'}"
        if outcome == "succeeded" and not as_json:
            say(line)
        elif outcome != "succeeded":
            tell(line)
    for queue in waited.unserved or ():
        tell(f"no live worker serves the queue '{queue}'")


def print_change(done: BulkChange) -> None:
    """Purge, restore, mark."""
    word = f"Would have {done.verb}" if done.dry_run else done.verb.capitalize()
    end = " from DLQ" if done.verb == "purged" else ""
    if done.done or not done.failed:
        say(f"{word} {done.done} message(s){end}.")
    if done.skipped:
        why = (result.reason for result in done.results if result.outcome == "skipped")
        tell(f"{done.skipped} skipped: {next(why, None) or 'somebody else took them meanwhile'}")
    bad = [result for result in done.results if result.outcome == "failed"]
    for result in bad[:LINES_MAX]:
        reason = result.reason or ""
        is_told = reason.endswith("not found.")
        tell(reason if is_told else f"Message '{result.dlq_id}' is not {done.verb}: {reason}")
        if result.remedy:
            tell(f"  {result.remedy}")
    if done.failed > LINES_MAX:
        tell(f"{done.failed} failed in all (--json tells each)")
