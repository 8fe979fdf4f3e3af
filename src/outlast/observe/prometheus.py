"""Events as Prometheus metrics, under the names of FastStream's own.

A registry comes in, counters on it go out. `prometheus_client` is imported when a recorder is
made. Label values come from queue and handler names and exception types, never from messages.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from outlast.model import events
from outlast.observe import BROKER_SYSTEM

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Tags = Mapping[str, Any]
CustomLabels = Mapping[str, str | Callable[[Tags], str]]

SIZE_BUCKETS: Final = (*(2.0**power for power in range(4, 25, 2)), float("inf"))
DURATION_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, float("inf")),
)
AGE_BUCKETS: Final = (1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, float("inf"))

_STATUS: Final[Mapping[str, str]] = {
    events.ACKED: "acked",
    events.NACKED_RETRIED: "nacked",
    events.NACKED_TERMINAL: "nacked",
    events.LEASE_LOST: "error",
    events.DISPATCH_ABANDONED: "error",
    events.SETTLE_UNKNOWN: "error",
    events.DLQ_WRITE_FAILED: "error",
    events.UNSETTLED: "error",
}

OUTBOX_COUNTERS: Final[Mapping[str, tuple[str, str | None, str]]] = {
    # event: (label, its tag, help)
    events.NACKED_TERMINAL: ("terminal", "reason", "Messages that failed for good"),
    events.LEASE_LOST: ("lease_lost", "phase", "Outcomes dropped because the lease was lost"),
    events.DLQ_WRITTEN: ("dlq_written", "failure_reason", "Dead letters written"),
    events.DLQ_WRITE_FAILED: ("dlq_write_failed", "failure_reason", "Dead letters not written"),
    events.SETTLE_UNKNOWN: ("settle_unknown", "phase", "Settles whose outcome stayed unknown"),
    events.UNSETTLED: ("unsettled", None, "Handlers that returned without a verdict"),
    events.RELEASED: ("released", None, "Messages given back unattempted"),
    events.DISPATCH_ABANDONED: ("dispatch_abandoned", None, "Handlers that could not be cancelled"),
    events.DRAIN_TIMEOUT: ("drain_timeout", None, "Stops that ran out of time"),
}


M = TypeVar("M")


class _Metrics:
    """Makes metrics on one registry, or finds those another recorder has made there."""

    def __init__(self, registry: "CollectorRegistry", prefix: str, custom: Sequence[str]) -> None:
        self._registry = registry
        self._prefix = prefix
        self._custom = tuple(custom)

    def make(
        self, kind: type[M], name: str, about: str, labels: Sequence[str], **options: Any
    ) -> M:
        full = f"{self._prefix}_{name}"
        labels = ("app_name", "broker", *labels, *self._custom)
        # private, and what FastStream's middleware does: two brokers may share one registry
        made = getattr(self._registry, "_names_to_collectors", {}).get(full)
        if made is None:
            build: Any = kind
            new: M = build(full, about, labelnames=labels, registry=self._registry, **options)
            return new
        known = tuple(getattr(made, "_labelnames", labels))
        if not isinstance(made, kind) or known != labels:
            raise ValueError(
                f"{full} is on this registry already with the labels {known}, "
                f"not {labels}: use the same custom_labels, or another metrics_prefix"
            )
        return made


class _Bus:
    """The metrics any FastStream broker has."""

    def __init__(self, metrics: _Metrics, size_buckets: Sequence[float] | None) -> None:
        from prometheus_client import Counter, Gauge, Histogram  # noqa: PLC0415 - an extra

        consume, publish = ("handler",), ("destination",)
        self.received: Counter = metrics.make(
            Counter, "received_messages_total", "Messages whose handler started", consume
        )
        self.size: Histogram = metrics.make(
            Histogram,
            "received_messages_size_bytes",
            "Size of received messages",
            consume,
            buckets=tuple(size_buckets or SIZE_BUCKETS),
        )
        self.in_process: Gauge = metrics.make(
            Gauge, "received_messages_in_process", "Messages in a handler", consume
        )
        self.processed: Counter = metrics.make(
            Counter,
            "received_processed_messages_total",
            "Processed messages by status",
            (*consume, "status"),
        )
        self.duration: Histogram = metrics.make(
            Histogram,
            "received_processed_messages_duration_seconds",
            "From the handler's start to its settled end",
            consume,
            buckets=DURATION_BUCKETS,
        )
        self.exceptions: Counter = metrics.make(
            Counter,
            "received_processed_messages_exceptions_total",
            "Exceptions of handlers by type",
            (*consume, "exception_type"),
        )
        self.published: Counter = metrics.make(
            Counter, "published_messages_total", "Published messages", (*publish, "status")
        )
        self.publish_duration: Histogram = metrics.make(
            Histogram,
            "published_messages_duration_seconds",
            "Duration of a publish",
            publish,
            buckets=DURATION_BUCKETS,
        )
        self.publish_exceptions: Counter = metrics.make(
            Counter,
            "published_messages_exceptions_total",
            "Exceptions of publishes by type",
            (*publish, "exception_type"),
        )


class PrometheusRecorder:
    """Give it to a broker as `metrics_recorder`.

    `registry` is where the metrics are made; `metrics_prefix` begins their names; `app_name` is a
    label, the prefix unless given. A value of `custom_labels` is a text or a function of an
    event's tags. With FastStream's Prometheus middleware on the same registry, pass
    `include_bus_metrics=False`: each message would be counted twice.
    """

    def __init__(
        self,
        *,
        registry: "CollectorRegistry",
        app_name: Any = None,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: CustomLabels | None = None,
        include_bus_metrics: bool = True,
    ) -> None:
        try:
            from prometheus_client import Counter, Histogram  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError(
                "PrometheusRecorder needs prometheus_client: pip install 'outlast[prometheus]'"
            ) from error
        self._custom = dict(custom_labels or {})
        # FastStream's EMPTY, which is no str, means "not given" too
        self._app = app_name if isinstance(app_name, str) else metrics_prefix
        metrics = _Metrics(registry, metrics_prefix, tuple(self._custom))
        self._fetches = metrics.make(
            Counter, "outbox_fetch_batches_total", "Claims", ("handler", "non_empty")
        )
        self._outbox = {
            event: (
                metrics.make(
                    Counter,
                    f"outbox_{name}_total",
                    about,
                    ("handler", *([label_of(tag)] if tag else [])),
                ),
                tag,
            )
            for event, (name, tag, about) in OUTBOX_COUNTERS.items()
        }
        self._age: Histogram = metrics.make(
            Histogram,
            "outbox_dead_letter_age_seconds",
            "From a message's making to its terminal failure",
            ("handler",),
            buckets=AGE_BUCKETS,
        )
        self._bus = _Bus(metrics, received_messages_size_buckets) if include_bus_metrics else None

    def __call__(self, name: str, tags: Tags) -> None:
        """Count one event."""
        if name == events.FETCHED:
            self._fetches.labels(*self._consume(tags, _yes_no(tags["count"] > 0))).inc()
        if (counted := self._outbox.get(name)) is not None:
            counter, tag = counted
            counter.labels(*self._consume(tags, *([str(tags[tag])] if tag else []))).inc()
        if name == events.DLQ_WRITTEN and (age := tags.get("age_seconds")) is not None:
            self._age.labels(*self._consume(tags)).observe(age)
        if self._bus is None:
            return
        if name == events.DISPATCHED:
            self._dispatched(self._bus, tags)
        elif name == events.PUBLISHED:
            self._published(self._bus, tags)
        elif name in events.CLOSING:
            self._closed(self._bus, name, tags)

    def _dispatched(self, bus: _Bus, tags: Tags) -> None:
        labels = self._consume(tags)
        bus.received.labels(*labels).inc()
        bus.size.labels(*labels).observe(tags["size_bytes"])
        bus.in_process.labels(*labels).inc()

    def _closed(self, bus: _Bus, name: str, tags: Tags) -> None:
        labels = self._consume(tags)
        if (status := _STATUS.get(name)) is not None:
            bus.processed.labels(*self._consume(tags, status)).inc()
        # without a duration no handler ran, and nothing was counted as in process
        if (duration := tags.get("duration_seconds")) is not None:
            bus.in_process.labels(*labels).dec()
            if status is not None:
                bus.duration.labels(*labels).observe(duration)
        if (exception := tags.get("exception_type")) is not None:
            bus.exceptions.labels(*self._consume(tags, exception)).inc()

    def _published(self, bus: _Bus, tags: Tags) -> None:
        status = tags["status"]
        amount = tags["count"] if status == "success" else 1
        bus.published.labels(*self._publish(tags, status)).inc(amount)
        bus.publish_duration.labels(*self._publish(tags)).observe(tags["duration_seconds"])
        if (exception := tags.get("exception_type")) is not None:
            bus.publish_exceptions.labels(*self._publish(tags, exception)).inc()

    def _consume(self, tags: Tags, *more: str) -> tuple[str, ...]:
        return (self._app, BROKER_SYSTEM, tags["subscriber"], *more, *self._extra(tags))

    def _publish(self, tags: Tags, *more: str) -> tuple[str, ...]:
        return (self._app, BROKER_SYSTEM, tags["queue"], *more, *self._extra(tags))

    def _extra(self, tags: Tags) -> tuple[str, ...]:
        return tuple(value(tags) if callable(value) else value for value in self._custom.values())


def label_of(tag: str) -> str:
    """The label a tag becomes."""
    return "reason" if tag == "failure_reason" else tag


def _yes_no(value: bool) -> str:
    return "true" if value else "false"
