"""docs/reference/metrics.md, made from the vocabulary of events and the two recorders."""

import sys
from pathlib import Path

from outlast.model import events
from outlast.observe import logs, opentelemetry, prometheus

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "metrics.md"

ABOUT = """\
# Events and metrics

Made by `make reference` from `outlast.model.events`; do not edit.

A recorder is a function `(name, tags)`; give it to the broker as `metrics_recorder`. It is called
on the event loop, so it must not block. What it raises is logged at DEBUG
("metrics recorder raised") and changes nothing. `outlast.metrics.prometheus.PrometheusRecorder` and
`outlast.metrics.opentelemetry.OpenTelemetryRecorder` are ready made.

"""

BUS_PROMETHEUS = """\
Each name begins with `metrics_prefix` (default `faststream`). Labels of what is consumed:
`app_name`, `broker` (`outbox`), `handler`, the custom ones; of what is published: `app_name`,
`broker`, `destination`, the custom ones.

| Metric | Kind | More labels |
|---|---|---|
| `<prefix>_received_messages_total` | counter | |
| `<prefix>_received_messages_size_bytes` | histogram | |
| `<prefix>_received_messages_in_process` | gauge | |
| `<prefix>_received_processed_messages_total` | counter | `status`: `acked`, `nacked`, `error` |
| `<prefix>_received_processed_messages_duration_seconds` | histogram | |
| `<prefix>_received_processed_messages_exceptions_total` | counter | `exception_type` |
| `<prefix>_published_messages_total` | counter | `status`: `success`, `error` |
| `<prefix>_published_messages_duration_seconds` | histogram | |
| `<prefix>_published_messages_exceptions_total` | counter | `exception_type` |

With `include_bus_metrics=False` these are left out, and only the following remain.

"""

BUS_OPENTELEMETRY = """\
Histogram `messaging.outbox.dead_letter_age` in seconds: from a message's making to its terminal
failure. Histograms `messaging.process.duration` and `messaging.publish.duration` in seconds; with
`include_messages_counters=True` also the counters `messaging.process.messages` and
`messaging.publish.messages`. With `include_bus_metrics=False` the latter are left out.

Attributes: `messaging.system` (`outbox`), `messaging.destination.name` (the queue),
`messaging.operation` (`receive`, `process`, `publish`), `error.type` if there was an exception,
`messaging.outbox.handler`, `messaging.outbox.status`, and by event
`messaging.outbox.terminal_reason`, `messaging.outbox.lease_phase`, `messaging.outbox.dlq_reason`.

"""


def code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def vocabulary() -> list[str]:
    lines = [
        "## Events",
        "",
        "Each `dispatched` is closed by exactly one of the events marked *closes*. A tag that may",
        "be absent is never empty.",
        "",
        "| Event | Told when | Tags | Sometimes | |",
        "|---|---|---|---|---|",
    ]
    for event in events.VOCABULARY.values():
        closes = "*closes*" if event.name in events.CLOSING else ""
        lines.append(
            f"| `{event.name}` | {event.when} | {code(event.tags)} "
            f"| {code(event.sometimes)} | {closes} |"
        )
    return [*lines, ""]


def prometheus_counters() -> list[str]:
    lines = ["| Metric | Counts | More labels |", "|---|---|---|"]
    lines.append(
        "| `<prefix>_outbox_fetch_batches_total` | Claims | `non_empty`: `true`, `false` |"
    )
    for name, tag, about in prometheus.OUTBOX_COUNTERS.values():
        label = f"`{prometheus.label_of(tag)}`" if tag else ""
        lines.append(f"| `<prefix>_outbox_{name}_total` | {about} | {label} |")
    lines.append(
        "| `<prefix>_outbox_dead_letter_age_seconds` | a histogram: from a message's making to its "
        "terminal failure | |"
    )
    return [*lines, ""]


def opentelemetry_counters() -> list[str]:
    lines = ["| Counter | Counts |", "|---|---|"]
    for name, about in opentelemetry.OUTBOX_COUNTERS.values():
        lines.append(f"| `messaging.outbox.{name}` | {about} |")
    return [*lines, ""]


def log_lines() -> list[str]:
    return [
        "## Logs",
        "",
        "These events are also log lines, with `event` and the tags as `extra`. Control characters",
        f"are escaped. Of one event and queue at most {logs.LINES_MAX} lines are written in",
        f"{logs.WINDOW_SECONDS:g} seconds; the rest is counted and told in one line.",
        "",
        "`lease_lost`, `settle_unknown`, `dispatch_abandoned`, `unsettled` and `drain_timeout` are",
        "warnings. `dlq_write_failed` is for debugging here: the engine has written an error with",
        "the database's own words, which name table and column.",
    ]


def page() -> str:
    parts = [
        *vocabulary(),
        "## Prometheus",
        "",
        BUS_PROMETHEUS.rstrip(),
        "",
        *prometheus_counters(),
        "## OpenTelemetry",
        "",
        BUS_OPENTELEMETRY.rstrip(),
        "",
        *opentelemetry_counters(),
        *log_lines(),
    ]
    return ABOUT + "\n".join(parts) + "\n"


def main() -> int:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
