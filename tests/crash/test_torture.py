"""The torture, short: workers killed at each stage, backends terminated on each line."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.scene import Scene
from tests.crash.torture import Torture, every_stage, interleaved


def test_quiet(scene: Callable[..., Scene]) -> None:
    """S1-S8: without a fault nothing is delivered twice."""
    report = Torture(scene=scene(), messages=400, workers=2).run()
    assert report.is_clean, report
    assert report.committed >= 400
    assert report.duplicates == 0, report
    assert report.rejected_settles == 0, report


def test_killed_at_each_stage(scene: Callable[..., Scene]) -> None:
    """F-C01: after the claim, in the handler, after it, during settle, after settle."""
    stages = every_stage()
    report = Torture(
        scene=scene(lease=1.5), messages=600, workers=3, stages=stages, pace=0.02
    ).run()
    print(report)
    assert report.is_clean, report
    assert {f"kill {stage}" for stage in stages} == set(report.faults)


def test_killed_from_outside(scene: Callable[..., Scene]) -> None:
    """F-C01: at no chosen instant, with nothing between the engine and its store."""
    faults = interleaved("kill worker", "kill worker", "stop worker", "kill producer", count=8)
    report = Torture(
        scene=scene(lease=1.5, hooked=False), messages=600, workers=3, nemesis=faults, pace=0.02
    ).run()
    print(report)
    assert report.is_clean, report
    assert report.faults.total() == 8
