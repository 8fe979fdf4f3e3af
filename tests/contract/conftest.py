"""`world`: run a test's body against each store."""

from typing import Any

import pytest

from tests.contract.worlds import run_memory, run_sql


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def world(request: pytest.FixtureRequest) -> Any:
    """Call it with `async def body(world)`."""
    if request.param == "memory":
        return run_memory
    database = request.getfixturevalue(request.param)
    return lambda body, **options: run_sql(database, body, **options)
