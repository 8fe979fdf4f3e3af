"""The life of a worker process: stopped, suspended, killed by what it was given."""

import asyncio
import signal
import time
from collections.abc import Callable

from sqlalchemy import select

from tests.crash.audit import Audit, Report
from tests.crash.post import lines, post, rows_left, until_written
from tests.crash.processes import Processes, until
from tests.crash.scene import Scene, dlq

SLACK = 3.0
"""How many times a stated time may be exceeded on a machine that does other things, too."""


def audited(scene: Scene) -> Report:
    report = asyncio.run(Audit(scene).run())
    assert report.is_clean, report
    return report


def test_sigterm_idle(scene: Callable[..., Scene]) -> None:
    """F-C02, L4: an idle worker leaves at once, with code 0."""
    here = scene()
    asyncio.run(here.prepare())
    with Processes(here) as processes:
        worker = processes.start("worker")
        until_written(here, 1, "ready")
        began = time.monotonic()
        worker.terminate()
        assert worker.wait(20) == 0, processes.logs()
        assert time.monotonic() - began < 2.0 * SLACK


def test_sigterm_busy(scene: Callable[..., Scene]) -> None:
    """F-C02: what is in hand is finished and settled before the worker leaves."""
    here = scene(grace=10.0)
    asyncio.run(here.prepare())
    names = post(here, *["ok"] * 6, seconds=0.3)
    with Processes(here) as processes:
        worker = processes.start("worker")
        until_written(here, 1, "start")
        worker.terminate()
        assert worker.wait(30) == 0, processes.logs()
    report = audited_with_rows_left(here)
    begun = {line["m"] for line in lines(here, "start")}
    assert begun == {line["m"] for line in lines(here, "end", how="ok")}
    assert len(rows_left(here)) == len(names) - len(begun)
    assert all(row["acquired_token"] is None for row in rows_left(here))
    assert report.duplicates == 0


def audited_with_rows_left(scene: Scene) -> Report:
    report = asyncio.run(Audit(scene).run())
    assert report.found <= {"left over"}, report
    return report


def test_sigterm_with_handlers_longer_than_the_grace(scene: Callable[..., Scene]) -> None:
    """F-C02, S15: rows are given back uncounted, and another worker has them within one look."""
    here = scene(grace=0.5, workers=4, lease=30.0)
    asyncio.run(here.prepare())
    post(here, *["ok"] * 4, seconds=60.0)
    with Processes(here) as processes:
        first = processes.start("worker")
        until_written(here, 4, "start")
        second = processes.start("worker")
        until_written(here, 2, "ready")
        began = time.monotonic()
        first.terminate()
        assert first.wait(30) == 0, processes.logs()
        assert time.monotonic() - began < (here.grace + 2.0) * SLACK
        starts = until_written(here, 4, "start", pid=second.pid)
        # the first lease would have lasted much longer
        gone = max(line["at"] for line in lines(here, "settled", pid=first.pid, what="release"))
        assert starts[-1]["at"] - gone < here.max_fetch * SLACK + 1.0
        assert {line["deliveries"] for line in starts} == {1}, "a release is no delivery"
    assert len(lines(here, "end", how="cancelled", pid=first.pid)) == 4
    assert not lines(here, "settled", what="ack")


def test_zombie(scene: Callable[..., Scene]) -> None:
    """F-B03, S1-21: suspended for three leases, then awake: not one of its settles has effect."""
    here = scene(lease=1.0, workers=4)
    asyncio.run(here.prepare())
    kinds = ("ok", "once", "always", "reject")
    post(here, *kinds, seconds=0.4)
    with Processes(here) as processes:
        zombie = processes.start("worker")
        until_written(here, 4, "start", pid=zombie.pid)
        zombie.send(signal.SIGSTOP)
        stopped = time.monotonic()
        other = processes.start("worker")
        until_written(here, 4, "start", pid=other.pid)
        until(lambda: not rows_left(here), 20, "the other worker ends them all")
        time.sleep(max(0.0, stopped + 3 * here.lease - time.monotonic()))
        zombie.send(signal.SIGCONT)
        until_written(here, 4, "end", pid=zombie.pid)
        rejected = lambda: sum(len(x["lost"]) for x in lines(here, "settled", pid=zombie.pid))  # noqa: E731
        until(lambda: rejected() == 4, 20, "its four settles are refused")
        zombie.terminate()
        assert zombie.wait(20) == 0, processes.logs()
        assert not any(line["rows"] for line in lines(here, "settled", pid=zombie.pid))
    report = audited(here)
    assert report.dead == 2
    assert report.rejected_settles >= 4


def test_a_message_that_kills_its_worker(scene: Callable[..., Scene]) -> None:
    """F-C05: dead-lettered after max_deliveries; its neighbours live."""
    here = scene(lease=1.0, max_deliveries=3, workers=4)
    asyncio.run(here.prepare())
    post(here, "exit", *["ok"] * 8, seconds=0.1)
    post(here, *["ok"] * 8, seconds=0.1)
    ends = time.monotonic() + 40.0
    with Processes(here) as processes:
        workers = [processes.start("worker")]
        while rows_left(here):
            assert time.monotonic() < ends, processes.logs()
            if workers[-1].poll() is not None:
                assert workers[-1].poll() == 137, processes.logs()
                workers.append(processes.start("worker"))
            time.sleep(0.05)
        workers[-1].terminate()
        assert workers[-1].wait(20) == 0

    async def letters() -> list[tuple[str, int]]:
        engine = here.engine()
        async with engine.connect() as connection:
            found = await connection.execute(select(dlq.c.failure_reason, dlq.c.deliveries_count))
            rows = [tuple(row) for row in found]
        await engine.dispose()
        return rows

    assert asyncio.run(letters()) == [("max_deliveries", 4)]
    report = asyncio.run(Audit(here).run())
    # the audit knows no message that may kill
    assert report.found == {"wrongly dead"} and len(report.errors["wrongly dead"]) == 1, report
    assert len(workers) == 4
