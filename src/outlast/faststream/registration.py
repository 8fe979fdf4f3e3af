"""What a subscriber is registered with: checked, resolved, and warned about on the user's line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from faststream import AckPolicy

from outlast.engine.options import SubscriptionOptions
from outlast.faststream.callers import warn
from outlast.policy.names import check_queue
from outlast.policy.retry import NoRetry, default_strategy

_DELIVERIES_FOR_A_CRASH_BESIDE = 3


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A checked registration."""

    options: SubscriptionOptions
    ack_policy: AckPolicy
    propagate_inbound_headers: bool


def register(
    queues: str | Sequence[str],
    *,
    ack_policy: AckPolicy | None,
    retry_strategy: Any,
    propagate_inbound_headers: bool,
    **knobs: Any,
) -> Registration:
    """The registration, or the error that says what is wrong with it."""
    if ack_policy is AckPolicy.ACK_FIRST:
        raise ValueError(
            "AckPolicy.ACK_FIRST is not supported: the row would be deleted before the handler "
            "runs, and a crash would lose the message",
        )
    if not isinstance(queues, (str, list, tuple)):
        check_queue(queues)
    options = SubscriptionOptions(
        queues=queues,
        retry_strategy=default_strategy() if retry_strategy is None else retry_strategy,
        **knobs,
    )
    _warn_about_policy(ack_policy, retry_strategy)
    _warn_about_knobs(options, retry_strategy)
    return Registration(
        options=options,
        ack_policy=ack_policy or AckPolicy.NACK_ON_ERROR,
        propagate_inbound_headers=propagate_inbound_headers,
    )


def _warn_about_policy(ack_policy: AckPolicy | None, retry_strategy: Any) -> None:
    never = isinstance(retry_strategy, NoRetry)
    if ack_policy is AckPolicy.REJECT_ON_ERROR and retry_strategy is not None and not never:
        warn(
            "AckPolicy.REJECT_ON_ERROR rejects on the first handler error: "
            f"retry_strategy={type(retry_strategy).__name__} is never asked for it",
        )
    if ack_policy is AckPolicy.NACK_ON_ERROR and never:
        warn(
            "AckPolicy.NACK_ON_ERROR with retry_strategy=NoRetry() ends a message at its first "
            "failure; AckPolicy.REJECT_ON_ERROR says so by itself",
        )
    if ack_policy is AckPolicy.ACK:
        warn(
            "AckPolicy.ACK acknowledges failing messages too: they are deleted, neither retried "
            "nor kept as dead letters",
        )


def _warn_about_knobs(options: SubscriptionOptions, retry_strategy: Any) -> None:
    if options.max_deliveries is not None and isinstance(retry_strategy, NoRetry):
        warn(
            f"max_deliveries is set but no retry_strategy uses it: with NoRetry() a failure is "
            f"final, and max_deliveries={options.max_deliveries} counts crashes only",
        )
    if (
        options.max_deliveries is not None
        and options.max_deliveries < _DELIVERIES_FOR_A_CRASH_BESIDE
        and options.max_workers > 1
    ):
        warn(
            f"max_deliveries={options.max_deliveries} with max_workers={options.max_workers}: "
            "one crash of the process may end a healthy message that ran beside the cause; "
            f"{_DELIVERIES_FOR_A_CRASH_BESIDE} or more is safe",
        )
    if options.lease_ttl_seconds <= options.max_fetch_interval:
        warn(
            f"lease_ttl_seconds={options.lease_ttl_seconds} <= max_fetch_interval="
            f"{options.max_fetch_interval}: an idle worker may look less often than leases expire",
        )


def warn_about_duplicates(queues: Sequence[str], served: Iterable[str]) -> None:
    """A second subscriber on the same broker for one of its queues."""
    both = sorted(set(queues) & set(served))
    if both:
        warn(
            f"Duplicate subscriber for {', '.join(map(repr, both))}: two subscribers of one queue "
            "share its messages, each message goes to one of them",
        )


def warn_about_competitors(subscribers: Iterable[Sequence[str]]) -> None:
    """Queues that are served twice through routers, found at start."""
    seen: set[str] = set()
    twice: set[str] = set()
    for queues in subscribers:
        twice |= seen & set(queues)
        seen |= set(queues)
    if twice:
        warn(
            f"several subscribers serve {', '.join(map(repr, sorted(twice)))} and compete for the "
            "same rows: each message goes to one of them",
        )
