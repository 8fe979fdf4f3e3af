"""The torture, short: workers killed at each stage, backends terminated on each line."""

from collections.abc import Callable

from tests.crash.hooks import LINES, STAGES
from tests.crash.scene import Scene
from tests.crash.torture import Torture, interleaved


def test_quiet(scene: Callable[..., Scene]) -> None:
    """S1-S8: without a fault nothing is delivered twice."""
    report = Torture(scene=scene(), messages=200, workers=2).run()
    assert report.is_clean, report
    assert report.committed >= 200
    assert report.duplicates == 0, report
    assert report.rejected_settles == 0, report


def test_killed_at_each_stage(scene: Callable[..., Scene]) -> None:
    """F-C01: after the claim, in the handler, after it, during settle, after settle."""
    report = Torture(
        scene=scene(lease=1.5), messages=600, workers=3, stages=STAGES, pace=0.05
    ).run()
    print(report)
    assert report.is_clean, report
    assert set(report.faults) == {f"kill {stage}" for stage in STAGES}


def test_killed_from_outside(scene: Callable[..., Scene]) -> None:
    """F-C01, F-B03: at no chosen instant, with nothing between the engine and its store."""
    faults = interleaved(
        "kill worker", "stop worker", "kill producer", "term worker", "kill worker", count=6
    )
    report = Torture(
        scene=scene(lease=1.5, hooked=False),
        messages=400,
        workers=3,
        handler_seconds=0.03,
        nemesis=faults,
        pause=(0.2, 0.5),
        pace=0.1,
    ).run()
    print(report)
    assert report.is_clean, report
    assert report.faults.total() == len(faults)


def test_backends_terminated(postgres_scene: Callable[..., Scene]) -> None:
    """F-D01: on the k-th claim, settle, dead letter and LISTEN; whichever instant it hits."""
    faults = interleaved(*(f"terminate {line}" for line in LINES[:3]), count=6)
    report = Torture(
        scene=postgres_scene(lease=2.0),
        messages=600,
        workers=4,
        stages=LINES,
        strikes=5,
        nemesis=faults,
        pause=(0.1, 0.4),
        pace=0.08,
    ).run()
    print(report)
    assert report.is_clean, report
    assert set(report.faults) == {f"terminate {line}" for line in LINES}
    assert report.faults.total() >= len(faults) + 10


def test_behind_the_door(scene: Callable[..., Scene]) -> None:
    """F-C01: the same with the FastStream broker, from outside and in its handler."""
    faults = interleaved("kill worker", "stop worker", "term worker", "kill worker", count=5)
    report = Torture(
        scene=scene(lease=1.5, hooked=False),
        messages=300,
        workers=2,
        worker="door_worker",
        stages=["handling", "handled"],
        handler_seconds=0.03,
        nemesis=faults,
        pause=(0.2, 0.5),
        pace=0.1,
    ).run()
    print(report)
    assert report.is_clean, report
    assert report.faults.total() > len(faults), "no trap struck"
