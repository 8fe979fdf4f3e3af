"""`/metrics`: the numbers of `dlq stats` as Prometheus reads them, from the very same query.

In: the document of stats. Out: text, a stated number of series, labels nobody can break out of.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from outlast.api import replies
from outlast.api.auth import Inspector
from outlast.api.desk import BARE, HEAVY, TheDesk
from outlast.ops.views import stats_json
from outlast.policy.neutral_text import neutral_text

router = APIRouter(tags=["health and metrics"])

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUEUES_MAX = 500
"""Queues and categories with series of their own, the deepest first; the others are summed."""

OTHER, NOT_RECORDED = "other", "not recorded"

Sample = tuple[Mapping[str, str], float]


@router.get("/metrics", dependencies=[BARE, HEAVY], responses=replies.METRICS)
async def metrics(desk: TheDesk, actor: Inspector) -> Response:
    """Depth, oldest age and arrivals by queue and category; the commonest causes."""
    document = stats_json(await desk.stats(actor))
    return Response(text_of(document), media_type=MEDIA_TYPE)


def text_of(stats: Mapping[str, Any]) -> str:
    """The exposition of these numbers."""
    depth: list[Sample] = []
    age: list[Sample] = []
    arrived: list[Sample] = []
    for queue in _with_series(stats["queues"]):
        category = queue["failure_category"] or NOT_RECORDED
        labels = {"queue": queue["queue"], "category": category}
        depth.append((labels, queue["depth"]))
        if queue["oldest_age_seconds"] is not None:
            age.append((labels, queue["oldest_age_seconds"]))
        arrived.append((labels | {"window": "1h"}, queue["arrivals_hour"]))
        arrived.append((labels | {"window": "1d"}, queue["arrivals_day"]))
    causes = [
        ({"fingerprint": cause["fingerprint"] or NOT_RECORDED}, cause["count"])
        for cause in stats["causes"]
    ]
    others = stats["depth"] - sum(count for _, count in causes)
    causes.append(({"fingerprint": OTHER}, others))
    states = [({"state": name}, number) for name, number in sorted(stats["states"].items())]
    families = (
        ("depth", "Dead letters that are listed.", depth),
        ("oldest_age_seconds", "Seconds since the oldest of them failed last.", age),
        ("arrivals", "Letters that failed within the window, gone ones too.", arrived),
        ("causes", "Listed letters by cause: the top 20, and other.", causes),
        ("letters", "Letters by state.", states),
    )
    return "".join(_family(f"outlast_dlq_{name}", about, found) for name, about, found in families)


def _with_series(queues: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The deepest, and one for all the others."""
    deepest = sorted(queues, key=lambda queue: -int(queue["depth"]))
    rest = deepest[QUEUES_MAX:]
    if not rest:
        return deepest
    ages = [age for queue in rest if (age := queue["oldest_age_seconds"]) is not None]
    summed = {
        name: sum(queue[name] for queue in rest)
        for name in ("depth", "arrivals_hour", "arrivals_day")
    }
    named = {
        "queue": OTHER,
        "failure_category": OTHER,
        "oldest_age_seconds": max(ages, default=None),
    }
    return [*deepest[:QUEUES_MAX], named | summed]


def _family(name: str, about: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {value:.15g}")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return neutral_text(text).replace("\\", "\\\\").replace('"', '\\"')
