"""Conservation, long: 500 snapshots a run, each a hundred milliseconds after the one before."""

from collections.abc import Callable

from tests.crash.conservation import Conservation
from tests.crash.scene import Scene

SNAPSHOTS = 500


def check(title: str, scene: Scene) -> None:
    run = Conservation(scene=scene, snapshots=SNAPSHOTS, messages=6000, pace=0.06, workers=3)
    balance = run.run()
    print(f"\n{title}: {balance}")
    assert not balance.wrong, balance
    assert balance.caught
    assert len(balance.snapshots) >= SNAPSHOTS
    assert len(balance.acts) == 12, f"an act never did anything: {balance}"
    assert min(balance.kills["worker"], balance.kills["operator"]) >= 10


def test_postgres(postgres_scene: Callable[..., Scene]) -> None:
    """S2-20 S4-33: every published message is in one place at every instant."""
    check("PostgreSQL", postgres_scene(lease=2.0))


def test_sqlite(sqlite_scene: Callable[..., Scene]) -> None:
    """S2-20 S4-33: every published message is in one place at every instant."""
    check("SQLite", sqlite_scene(lease=2.0))
