"""The loop of an operator with a real broker: it fails, is listed, fixed, restarted, replayed."""

import asyncio
from collections import Counter

import pytest

from outlast import ConstantRetry, OutboxBroker
from tests.doors.dlq_command import Command
from tests.doors.outbox import PATIENCE, Heard, publish

DELIVERED = "acked"


@pytest.fixture
def command(database, monkeypatch, capsys):
    return Command(database, monkeypatch, capsys)


class Shop:
    """One process of the application: three attempts a message, a bug in it or not."""

    def __init__(self, command, engine, *, is_fixed, version):
        self.engine, self.heard, self.titles = engine, Heard(), Counter()
        self.broker = OutboxBroker(
            engine,
            outbox_table=command.outbox,
            dlq_table=command.dlq,
            consumer_version=version,
            metrics_recorder=self.heard,
            logger=None,
        )
        retry = ConstantRetry(delay_seconds=0.01, max_attempts=3)

        @self.broker.subscriber("order", retry_strategy=retry, max_fetch_interval=1.0)
        async def handle(order: dict) -> None:
            isbn = order.get("isbn") if is_fixed else order["isbn"]
            self.titles[order["title"], isbn] += 1

    async def until(self, name, count):
        await self.heard.until(lambda: self.heard.names().count(name) >= count)


async def said(command, *arguments):
    """The command in a process of its own, while the application runs."""
    with command.process(*arguments) as process:
        out, err = await asyncio.to_thread(process.communicate, timeout=4 * PATIENCE)
    assert "Traceback" not in err
    return process.returncode, out, err


@pytest.mark.parametrize("version", ["1.0", None], ids=["version", "no-version"])
def test_the_loop_of_the_guide_works_as_it_is_written(command, version):
    """S2-18 S2-24 S2-69 S4-100 S4-108: list, fix, restart, replay ID, replay-all; no force."""

    async def broken(engine):
        shop = Shop(command, engine, is_fixed=False, version=version)
        async with shop.broker:
            for title in ("Emma", "Ulysses", "Walden"):
                await publish(engine, shop.broker, {"title": title}, queue="order")
            await shop.until("dlq_written", 3)
            if version is None:
                return None
            return await said(command, "dlq", "replay", "1")

    too_early = command.database.run(broken)
    if version is not None:
        # the code that failed is still running: nothing can end differently
        status, out, err = too_early
        assert (status, out) == (3, "")
        assert "[unchanged]" in err
        assert "deploy the fix and restart the worker" in err
        assert command.rows(command.outbox) == []

    listed = command.run("dlq", "list")
    assert listed.out.endswith("3 DLQ message(s) found.\n")
    assert "KeyError: 'isbn'" in command.run("dlq", "list", "--wide").out
    assert "Retry Count: 3" in command.run("dlq", "inspect", "1").out

    async def restarted(engine):
        shop = Shop(command, engine, is_fixed=True, version=version)
        async with shop.broker:
            one = await said(command, "dlq", "replay", "1")
            await shop.until(DELIVERED, 1)
            rest = await said(command, "dlq", "replay-all", "--subscription=order", "-y")
            await shop.until(DELIVERED, 3)
        return one, rest, shop.titles

    one, rest, titles = command.database.run(restarted)
    assert one[:2] == (0, "Replayed message '1' to stream 'order'.\n")
    assert rest[:2] == (0, "Replayed 2 message(s) to stream 'order'.\n")
    assert "DLQ replay complete" in rest[2]
    warned = "the version that failed is not recorded" in one[2]
    assert warned is (version is None)

    assert titles == {(title, None): 1 for title in ("Emma", "Ulysses", "Walden")}
    assert command.run("dlq", "list").out == "No DLQ messages found.\n"
    assert command.rows(command.outbox) == []
    letters = command.rows(command.dlq)
    assert {(x["state"], x["resolution"], x["replay_count"]) for x in letters} == {
        ("resolved", "delivered", 1)
    }
    kinds = Counter(row["kind"] for row in command.rows(command.beside.history) if row["dlq_id"])
    assert kinds == {"replayed": 3, "resolved": 3}
