"""Trouble: what a failing statement means for a verdict (design 4.1), one test a rule."""

import asyncio
from itertools import pairwise

from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    OutcomeUnknown,
    RowLocked,
    RowRefused,
    TryLater,
)
from outlast.model.outcome import Terminal
from outlast.policy.retry import ConstantRetry, NoRetry
from tests.engine.bench import with_engine
from tests.engine.faults import FaultyStore


def faulty(body, **options):
    """Run the body with a rig whose store fails on demand; `rig.rows` are those of the store."""

    async def with_faults(rig):
        rig.memory = rig.store
        rig.store = FaultyStore(rig.memory)
        rig.add = lambda queue="q", **kw: rig.memory.insert(queue=queue, payload=b"{}", **kw)
        rig.engine = rig.new_engine()
        await body(rig)

    with_engine(with_faults, **options)


async def _nothing(_delivery):
    return None


async def _fail(_delivery):
    raise ValueError("boom")


async def _reject(_delivery):
    return Terminal("rejected")


def test_a_locked_row_is_written_again_skipping_locked_ones():
    """55P03: once more with SKIP LOCKED; what was skipped is still held and comes again."""

    async def body(rig):
        rig.handle(_nothing)
        await rig.engine.start()
        rig.store.fail("ack", RowLocked("row locked"))
        rig.add()
        await rig.until(lambda: not rig.memory.rows)
        skips = [skip for _, name, _, skip in rig.store.calls if name == "ack"]
        assert skips == [False, True]
        assert rig.names() == ["dispatched", "acked"]

    faulty(body)


def test_a_held_row_waits_while_its_neighbours_are_settled():
    async def body(rig):
        from outlast.model.delivery import Answer

        rig.handle(_nothing, max_workers=3)
        ids = [rig.add() for _ in range(3)]
        plain = rig.memory.ack
        locked_until = rig.now() + 20

        async def ack(pairs, timeout, *, skip=False):
            locked = [p for p in pairs if p[0] == ids[1]]
            if locked and rig.now() < locked_until:
                if not skip:
                    raise RowLocked("locked")
                answer = await plain([p for p in pairs if p[0] != ids[1]], timeout)
                return Answer(answer.lost, tuple(locked))
            return await plain(pairs, timeout)

        rig.memory.ack = ack
        await rig.engine.start()
        await rig.until(lambda: len(rig.memory.rows) == 1, seconds=1)
        assert rig.memory.rows[0].id == ids[1]
        await rig.until(lambda: not rig.memory.rows, step=0.1)
        assert rig.now() >= 20
        assert rig.names().count("acked") == 3
        assert len(rig.started) == 3

    faulty(body)


def test_a_locked_dead_letter_table_delays_no_ack_and_no_extension():
    """The letters line waits alone; acks and refreshes of others go on meanwhile."""

    async def body(rig):
        async def handler(delivery):
            if delivery.payload == b"bad":
                return Terminal("rejected")
            await asyncio.sleep(25)
            return None

        rig.handle(handler, max_workers=4, lease_ttl_seconds=30.0)
        await rig.engine.start()
        for _ in range(40):
            rig.store.fail("bury", RowLocked("table locked"))
        rig.memory.insert(queue="q", payload=b"bad")
        rig.add()
        await rig.until(lambda: rig.names().count("acked") == 1, step=0.1)
        assert rig.now() < 26
        assert rig.memory.dlq_rows == []
        # its verdict waits with back-off, its lease is refreshed, and it is written in the end
        await rig.until(lambda: rig.memory.dlq_rows, step=0.1)
        assert rig.names().count("nacked_terminal") == 1
        assert len(rig.started) == 2

    faulty(body)


def test_try_later_backs_off_and_lands():
    async def body(rig):
        rig.handle(_fail, retry_strategy=ConstantRetry(delay_seconds=100))
        await rig.engine.start()
        for _ in range(5):
            rig.store.fail("retry", TryLater("deadlock detected"))
        rig.add()
        await rig.until(lambda: "nacked_retried" in rig.names())
        at = [t for t, name, _, _ in rig.store.calls if name == "retry"]
        gaps = [b - a for a, b in pairwise(at)]
        assert len(gaps) == 5
        assert gaps[-1] > gaps[0]
        assert all(gap <= 6 for gap in gaps)

    faulty(body)


def test_a_row_that_the_database_refuses_disturbs_no_other_of_its_group():
    """22, 23, 54: row by row; the one that cannot be written leaves the hand and is told."""

    async def body(rig):
        rig.handle(_reject, max_workers=5, lease_ttl_seconds=30.0)
        ids = [rig.add() for _ in range(5)]
        plain = rig.memory.bury

        async def bury(letters, timeout, *, skip=False):
            if any(letter.id == ids[2] for letter in letters):
                raise RowRefused("value too long", state="22001")
            return await plain(letters, timeout)

        rig.memory.bury = bury
        await rig.engine.start()
        await rig.until(lambda: len(rig.memory.dlq_rows) == 4)
        await rig.until(lambda: rig.told("dlq_write_failed"))
        (tags,) = rig.told("dlq_write_failed")
        assert tags["failure_reason"] == "rejected"
        assert [r.id for r in rig.memory.rows] == [ids[2]]
        assert rig.memory.rows[0].acquired_token is not None
        assert "value too long" in rig.log_text()

    faulty(body)


def test_a_dead_letter_that_cannot_be_written_comes_back_when_its_lease_expires():
    """S0-33, S0-34, F-G02: the row stays leased, unrefreshed; expiry is its back-off."""

    async def body(rig):
        rig.handle(_reject, lease_ttl_seconds=30.0, max_fetch_interval=10.0)
        await rig.engine.start()
        error = CannotWrite('column "last_exception" of table "outbox_dlq" does not exist')
        rig.store.fail("bury", error)
        rig.add()
        await rig.until(lambda: rig.told("dlq_write_failed"))
        assert rig.memory.rows[0].acquired_token is not None
        assert rig.told("lease_lost") == []
        errors = [r for r in rig.logs if r.levelname == "ERROR"]
        assert len(errors) == 1
        assert "outbox_dlq" in errors[0].getMessage()
        assert "last_exception" in errors[0].getMessage()
        # healthy neighbours go on
        rig.handle(_nothing, "other", name="other")
        rig.add("other")
        await rig.until(lambda: "acked" in rig.names())
        await rig.until(lambda: rig.memory.dlq_rows, step=0.1)
        assert 30 < rig.started[-1][0] <= 30 + 10 + 1.1
        assert rig.store.count("extend") == 0
        assert rig.started[-1][1].deliveries_count == 2

    faulty(body)


def test_an_ack_that_cannot_be_written_leaves_the_hand():
    """42, 53 on an ack: told as unsettled with an ERROR; redelivered when the lease expires."""

    async def body(rig):
        rig.handle(_nothing, lease_ttl_seconds=30.0)
        await rig.engine.start()
        rig.store.fail("ack", CannotWrite("permission denied for table outbox", state="42501"))
        rig.add()
        await rig.until(lambda: rig.told("unsettled"))
        assert "permission denied" in rig.log_text()
        await rig.until(lambda: not rig.memory.rows, step=0.1)
        assert len(rig.started) == 2
        assert rig.names().count("acked") == 1

    faulty(body)


def test_a_settle_whose_answer_is_lost_is_repeated_with_the_same_verdict():
    """08: it landed, so the repeat finds nothing: `settle_unknown`, never another verdict (S16)."""

    async def body(rig):
        rig.handle(_nothing)
        await rig.engine.start()
        rig.store.fail("ack", OutcomeUnknown("connection lost"), when="after")
        rig.add()
        await rig.until(lambda: rig.told("settle_unknown"))
        assert rig.memory.rows == []
        acks = [pairs for _, name, pairs, _ in rig.store.calls if name == "ack"]
        assert len(acks) == 2
        assert acks[0] == acks[1]
        assert rig.names() == ["dispatched", "settle_unknown"]
        assert len(rig.store.reconnects) == 1

    faulty(body)


def test_a_settle_whose_answer_is_lost_before_it_landed_lands_by_its_repeat():
    async def body(rig):
        for method, handler, event in (
            ("ack", _nothing, "acked"),
            ("retry", _fail, "nacked_retried"),
            ("bury", _reject, "nacked_terminal"),
        ):
            rig.events.clear()
            sub = rig.handle(
                handler, method, name=method, retry_strategy=ConstantRetry(delay_seconds=1000)
            )
            if not rig.engine.is_running:
                await rig.engine.start()
            rig.store.fail(method, OutcomeUnknown("connection lost"))
            rig.add(method)
            await rig.until(lambda event=event: event in rig.names())
            assert rig.names()[0] == "dispatched"
            assert rig.told("settle_unknown") == []
            await rig.engine.stop_subscription(sub)
        assert len(rig.memory.dlq_rows) == 1

    faulty(body)


def test_a_client_timeout_is_repeated_skipping_locked_rows_without_reconnecting():
    async def body(rig):
        rig.handle(_nothing)
        await rig.engine.start()
        rig.store.fail("ack", OutcomeUnknown("no answer", timed_out=True))
        rig.add()
        await rig.until(lambda: "acked" in rig.names())
        skips = [skip for _, name, _, skip in rig.store.calls if name == "ack"]
        assert skips == [False, True]
        assert rig.store.reconnects == []

    faulty(body)


def test_a_claim_whose_answer_is_lost_is_read_back_by_its_token():
    """The rows it leased are started under that token, once, without waiting for the lease."""

    async def body(rig):
        rig.handle(_nothing, max_workers=3)
        for _ in range(3):
            rig.add()
        rig.store.fail("claim", OutcomeUnknown("connection lost"), when="after")
        await rig.engine.start()
        await rig.until(lambda: not rig.memory.rows, seconds=5)
        assert len(rig.started) == 3
        assert {d.deliveries_count for _, d in rig.started} == {1}
        assert rig.store.count("read_back") >= 1

    faulty(body)


def test_a_claim_that_fails_claims_nothing_and_backs_off_with_one_line_per_change():
    """40, 53, 55, 57: again with back-off up to `max_fetch_interval` (F-B11)."""

    async def body(rig):
        rig.handle(_nothing, min_fetch_interval=1.0, max_fetch_interval=4.0)
        for _ in range(8):
            rig.store.fail("claim", TryLater("could not serialize access", state="40001"))
        rig.add()
        await rig.engine.start()
        await rig.until(lambda: rig.started, step=0.01)
        assert rig.now() < 40
        lines = [r.getMessage() for r in rig.logs]
        assert len(lines) == 2
        assert "could not serialize access" in lines[0]
        assert "work again" in lines[1]

    faulty(body)


def test_a_database_that_is_away_is_asked_less_than_sixty_times_a_minute():
    """F-D05: one log line when it goes, one when it is back; claims resume within 5 s."""

    async def body(rig):
        rig.handle(_nothing, max_workers=2)
        await rig.engine.start()
        await asyncio.sleep(5)
        rig.store.down = {"claims", "settles", "letters"}
        rig.store.refuse_reconnect = True
        away = rig.now()
        await asyncio.sleep(180)
        assert len(rig.store.reconnects) <= 180
        per_minute = [t for t in rig.store.reconnects if t - 1000.0 < away + 60]
        assert 10 < len(per_minute) <= 60
        rig.store.refuse_reconnect = False
        rig.add()
        back = rig.now()
        await rig.until(lambda: not rig.memory.rows, step=0.01)
        assert rig.now() - back <= 5
        lines = [r.getMessage() for r in rig.logs]
        assert len(lines) == 2
        assert "away" in lines[0]
        assert "back" in lines[1]

    faulty(body)


def test_verdicts_survive_a_database_that_is_away():
    """A handler ends while nothing can be written: the same verdict is written afterwards."""

    async def body(rig):
        async def handler(delivery):
            await asyncio.sleep(5)
            if delivery.payload == b"bad":
                return Terminal("rejected")
            return None

        rig.handle(handler, max_workers=2, lease_ttl_seconds=20.0)
        await rig.engine.start()
        rig.add()
        rig.memory.insert(queue="q", payload=b"bad")
        await rig.until(lambda: len(rig.started) == 2)
        rig.store.down = {"claims", "settles", "letters"}
        rig.store.refuse_reconnect = True
        await asyncio.sleep(60)
        rig.store.refuse_reconnect = False
        await rig.until(lambda: not rig.memory.rows, step=0.01, seconds=10)
        assert len(rig.started) == 2
        assert len(rig.memory.dlq_rows) == 1
        assert rig.names().count("acked") == 1

    faulty(body)


def test_a_defect_in_a_store_loses_no_verdict():
    """An error nobody foresaw: told with its traceback, and the verdict is written later."""

    async def body(rig):
        rig.handle(_nothing)
        await rig.engine.start()
        rig.store.fail("ack", KeyError("a bug"))
        rig.store.fail("claim", ZeroDivisionError("another bug"))
        rig.add()
        await rig.until(lambda: not rig.memory.rows, step=0.01)
        assert rig.names() == ["dispatched", "acked"]
        assert any(r.exc_info for r in rig.logs)

    faulty(body)


def test_disconnected_lines_come_back_at_once_when_the_server_stands():
    """F-D01: one terminated backend costs one attempt and no waiting."""

    async def body(rig):
        rig.handle(_nothing)
        await rig.engine.start()
        for line, method in (("settles", "ack"), ("claims", "claim"), ("letters", "bury")):
            rig.store.fail(method, Disconnected("terminated"))
            rig.add()
            start = rig.now()
            if line == "letters":
                continue
            await rig.until(lambda: not rig.memory.rows)
            assert rig.now() - start < 2
        assert 2 <= len(rig.store.reconnects) <= 4

    faulty(body)


def test_a_group_is_capped_by_terminal_flush_batch_size():
    async def body(rig):
        rig.handle(_nothing, fetch_batch_size=50, terminal_flush_batch_size=7)
        for _ in range(50):
            rig.add()
        await rig.engine.start()
        await rig.until(lambda: not rig.memory.rows)
        sizes = [len(pairs) for _, name, pairs, _ in rig.store.calls if name == "ack"]
        assert max(sizes) <= 7
        assert sum(sizes) == 50

    faulty(body)


def test_outcomes_that_are_ready_while_a_settle_is_under_way_go_together():
    """Group commit without a knob."""

    async def body(rig):
        rig.handle(_nothing, fetch_batch_size=50, max_workers=10)
        gate = rig.store.gate("ack")
        for _ in range(30):
            rig.add()
        await rig.engine.start()
        await asyncio.sleep(0.5)
        gate.set()
        await rig.until(lambda: not rig.memory.rows)
        assert rig.store.count("ack") <= 4

    faulty(body)


def test_dead_letters_are_grouped_with_their_like():
    """One statement for many, at most a hundred."""

    async def body(rig):
        rig.handle(_fail, fetch_batch_size=300, max_workers=300, retry_strategy=NoRetry())
        for _ in range(300):
            rig.add()
        await rig.engine.start()
        await rig.until(lambda: len(rig.memory.dlq_rows) == 300)
        sizes = [len(letters) for _, name, letters, _ in rig.store.calls if name == "bury"]
        assert max(sizes) <= 100
        assert len(sizes) <= 30

    faulty(body)


def test_releases_leave_when_they_are_due_alone():
    """A release that fails forever ends with its lease; it is told once."""

    async def body(rig):
        async def slow(_delivery):
            await asyncio.sleep(1000)

        rig.handle(slow, lease_ttl_seconds=15.0)
        await rig.engine.start()
        for _ in range(1000):
            rig.store.fail("release", TryLater("busy"))
        for _ in range(4):
            rig.add()
        await asyncio.sleep(30)
        assert len(rig.started) >= 1

    faulty(body)
