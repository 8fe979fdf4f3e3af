"""Positive controls: planted bugs, each of which the audit must catch."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.scene import Scene
from tests.crash.torture import Torture

CONTROLS: dict[str, tuple[str, dict[str, Any]]] = {
    "ack_ignores_token": (
        "stale settle",
        {"nemesis": ["stop worker"], "handler_seconds": 0.15, "messages": 120},
    ),
    "bury_in_two_transactions": ("double dead", {}),
    "bury_forgets": ("lost", {"workers": 1}),
    "claims_early": ("early", {"workers": 1}),
    "acks_at_claim": ("lost", {"stages": ["handling"], "workers": 1}),
    "steals_leases": ("overlapping leases", {"handler_seconds": 0.15}),
    "ack_on_cancel": ("lost", {"nemesis": ["term worker"], "handler_seconds": 0.3}),
}


@pytest.mark.parametrize("mutant", CONTROLS)
def test_planted_in_a_worker(mutant: str, sqlite_scene: Callable[..., Scene]) -> None:
    """S1, S4, S5, S6, S8, S15: the class of error that this bug is."""
    expected, how = CONTROLS[mutant]
    scene = sqlite_scene(lease=1.0, grace=0.1)
    report = Torture(**{"scene": scene, "messages": 60, "workers": 2, "mutant": mutant} | how).run()
    assert expected in report.found, report


def test_planted_in_a_producer(sqlite_scene: Callable[..., Scene]) -> None:
    """S2: a message published outside its transaction, which is delivered without its domain."""
    scene = sqlite_scene()
    report = Torture(
        scene=scene, messages=20, workers=1, producers=1, producer_mutant="publish_outside"
    ).run()
    assert "phantom" in report.found, report
