"""Settles and extensions, each one statement; and the letters' one. In: groups. Out: answers."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from outlast.model.dead_letter import Letter
from outlast.model.delivery import ALL_SETTLED, Answer, Pair, RetryEntry
from outlast.stores.postgres.statements import LETTER_PARAMETERS
from outlast.stores.postgres.wire import Wire

_LETTER_VALUES = [attrgetter(path) for _, _, path in LETTER_PARAMETERS]


async def pairs(
    wire: Wire, sql: str, skipping: str, group: Sequence[Pair], timeout: float, *, skip: bool
) -> Answer:
    """Ack, extend, release: all they need is the pairs."""
    return await settle(wire, skipping if skip else sql, group, (), timeout, skip=skip)


async def postponed(
    wire: Wire,
    sql: str,
    skipping: str,
    group: Sequence[Pair],
    seconds: float,
    timeout: float,
    *,
    skip: bool,
) -> Answer:
    """One delay for all of them."""
    return await settle(wire, skipping if skip else sql, group, (seconds,), timeout, skip=skip)


async def retries(
    wire: Wire,
    sql: str,
    skipping: str,
    entries: Sequence[RetryEntry],
    timeout: float,
    *,
    skip: bool,
) -> Answer:
    """Retries carry their delay and counters."""
    # together by token, as the statement wants them
    entries = sorted(entries, key=lambda entry: entry.token.int)
    group = [(entry.id, entry.token) for entry in entries]
    values = (
        [entry.delay_seconds for entry in entries],
        [entry.attempt.count for entry in entries],
        [entry.attempt.first_at for entry in entries],
        [entry.attempt.last_at for entry in entries],
    )
    return await settle(wire, skipping if skip else sql, group, values, timeout, skip=skip)


async def letters(
    wire: Wire,
    sql: str,
    skipping: str,
    group: Sequence[Letter],
    timeout: float,
    *,
    skip: bool,
) -> Answer:
    """Dead letters carry what the worker knows; the statement copies the rest."""
    values = [[read(letter) for letter in group] for read in _LETTER_VALUES]
    owned = [(letter.id, letter.token) for letter in group]
    return await settle(wire, skipping if skip else sql, owned, values, timeout, skip=skip)


async def settle(
    wire: Wire,
    sql: str,
    group: Sequence[Pair],
    values: Sequence[Any],
    timeout: float,
    *,
    skip: bool,
) -> Answer:
    """One statement for a group. What it answers depends on the form: see `ANSWER`."""
    ids = [pair[0] for pair in group]
    tokens = [pair[1] for pair in group]
    rows = await wire.fetch(sql, (ids, tokens, *values), timeout)
    if skip:
        return Answer(
            lost=tuple((i, k) for i, k, settled, held in rows if not settled and not held),
            held=tuple((i, k) for i, k, _, held in rows if held),
        )
    count, settled_ids, settled_tokens = rows[0]
    if count == len(group):
        return ALL_SETTLED
    settled = set(zip(settled_ids or (), settled_tokens or (), strict=True))
    return Answer(lost=tuple(pair for pair in group if pair not in settled))
