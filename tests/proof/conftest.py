"""A PostgreSQL server of our own for what kills it, and the scenes of the crash tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.cluster import Cluster, new_cluster
from tests.crash.conftest import sqlite_scene
from tests.crash.scene import Scene

__all__ = ["sqlite_scene"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with new_cluster() as started:
        yield started


@pytest.fixture
def postgres_scene(cluster: Cluster, tmp_path: Path) -> Callable[..., Scene]:
    return lambda **options: Scene(url=cluster.database(), folder=tmp_path, **options)
