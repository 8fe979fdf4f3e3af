"""20,000 messages, four workers, on each database: with traps at chosen stages, and without."""

from collections.abc import Callable

from tests.crash.audit import Report
from tests.crash.cluster import Cluster
from tests.crash.hooks import LINES, STAGES
from tests.crash.scene import Scene
from tests.crash.torture import Torture, every_stage, interleaved

MESSAGES = 20_000
SECONDS_MAX = 240.0


def check(title: str, report: Report, *, faults: int) -> None:
    print(f"\n{title}: {report}")
    assert report.is_clean, report
    # those whose outcome a killed producer or server left open were posted once more
    assert report.committed >= MESSAGES
    assert report.faults.total() >= faults
    assert report.cut_short, "no fault hit a handler"


def test_postgres_at_each_stage(postgres_scene: Callable[..., Scene]) -> None:
    """F-C01, F-D01: SIGKILL at each stage, backends terminated on the k-th statement."""
    faults = interleaved("kill worker", "term worker", "terminate claims", "stop worker", count=36)
    report = Torture(
        scene=postgres_scene(lease=3.0),
        messages=MESSAGES,
        producers=4,
        stages=every_stage(6, backends=True),
        strikes=6,
        nemesis=faults,
        pause=(0.6, 1.6),
        pace=0.08,
        seconds_max=SECONDS_MAX,
    ).run()
    check("PostgreSQL, at each stage", report, faults=60)
    assert {f"kill {stage}" for stage in STAGES} <= set(report.faults)
    assert {f"terminate {line}" for line in LINES} <= set(report.faults)


def test_postgres_from_outside(cluster: Cluster, postgres_scene: Callable[..., Scene]) -> None:
    """F-C01, F-D01, F-D02, F-B03: at no chosen instant; the server crashes, too."""
    faults = interleaved(
        "kill worker",
        "terminate settles",
        "kill worker",
        "crash server",
        "kill producer",
        "stop worker",
        "terminate claims",
        "kill worker",
        "terminate letters",
        "term worker",
        count=50,
    )
    report = Torture(
        scene=postgres_scene(lease=3.0, hooked=False),
        messages=MESSAGES,
        producers=4,
        nemesis=faults,
        pause=(0.3, 1.0),
        pace=0.08,
        handler_seconds=0.005,
        restart_server=cluster.restart_after_crash,
        seconds_max=SECONDS_MAX,
    ).run()
    check("PostgreSQL, from outside, with server crashes", report, faults=50)


def test_sqlite_at_each_stage(sqlite_scene: Callable[..., Scene]) -> None:
    """F-C01: four processes on one file, SIGKILL at each stage."""
    report = Torture(
        scene=sqlite_scene(lease=3.0),
        messages=MESSAGES,
        producers=2,
        stages=every_stage(8),
        nemesis=interleaved("kill worker", "term worker", "stop worker", count=20),
        pause=(1.0, 2.0),
        pace=0.04,
        seconds_max=SECONDS_MAX,
    ).run()
    check("SQLite, at each stage", report, faults=50)
    assert {f"kill {stage}" for stage in STAGES} <= set(report.faults)


def test_sqlite_from_outside(sqlite_scene: Callable[..., Scene]) -> None:
    """F-C01, F-B03: four processes on one file, killed at no chosen instant."""
    faults = interleaved("kill worker", "kill worker", "kill producer", "stop worker", count=40)
    report = Torture(
        scene=sqlite_scene(lease=3.0, hooked=False),
        messages=MESSAGES,
        producers=2,
        nemesis=faults,
        pause=(0.3, 1.2),
        pace=0.04,
        handler_seconds=0.005,
        seconds_max=SECONDS_MAX,
    ).run()
    check("SQLite, from outside", report, faults=40)
