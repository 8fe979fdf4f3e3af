"""Replayed rows on the engine: letters move with them; trouble with a letter stops nothing."""

from outlast.model.errors import CannotWrite, RowLocked
from outlast.model.outcome import Terminal
from outlast.policy.retry import ConstantRetry
from tests.engine.bench import with_engine
from tests.engine.faults import FaultyStore


def replayed(body, **options):
    """A rig with one dead letter, `rig.letter`, and `rig.replay()` to send it again."""

    async def with_letter(rig):
        rig.memory = rig.store
        rig.store = FaultyStore(rig.memory)
        rig.engine = rig.new_engine()
        rig.answers = [Terminal("rejected")]

        async def handler(_delivery):
            answer = rig.answers.pop(0) if rig.answers else None
            if isinstance(answer, Exception):
                raise answer
            return answer

        rig.handle(handler, retry_strategy=ConstantRetry(delay_seconds=5, max_attempts=2))
        rig.memory.insert(queue="q", payload=b"order")
        await rig.engine.start()
        await rig.until(lambda: rig.memory.dlq_rows)
        rig.letter = rig.memory.dlq_rows[0]
        rig.events.clear()

        def replay():
            headers = {"outlast-replay": rig.letter["id"]}
            row_id = rig.memory.insert(queue="q", payload=b"order", headers=headers)
            rig.letter.update(state="replaying", replayed_as=row_id)

        rig.replay = replay
        await body(rig)

    with_engine(with_letter, **options)


def test_a_replay_that_succeeds_resolves_its_letter():
    async def body(rig):
        rig.replay()
        await rig.until(lambda: rig.letter["state"] == "resolved")
        assert rig.memory.rows == []
        assert len(rig.memory.dlq_rows) == 1
        assert rig.names() == ["dispatched", "acked"]

    replayed(body)


def test_a_replay_that_fails_is_seen_after_its_first_attempt_and_comes_back_as_the_same_letter():
    async def body(rig):
        rig.answers = [KeyError("isbn"), KeyError("isbn again")]
        rig.replay()
        await rig.until(lambda: rig.letter["error_type"] == "KeyError")
        assert rig.letter["state"] == "replaying"
        await rig.until(lambda: rig.letter["state"] == "open")
        assert rig.memory.dlq_rows == [rig.letter]
        assert rig.letter["failure_reason"] == "retry_terminal"
        assert rig.letter["attempts_count"] == 2
        assert rig.names() == [
            "dispatched",
            "nacked_retried",
            "dispatched",
            "dlq_written",
            "nacked_terminal",
        ]

    replayed(body)


def test_an_ack_whose_letter_cannot_be_written_is_repeated_plainly():
    """The handler that succeeded is not run for ever; an ERROR says what became of the letter."""

    async def body(rig):
        rig.store.fail("resolve", CannotWrite("column resolution does not exist"))
        rig.replay()
        await rig.until(lambda: not rig.memory.rows)
        assert len(rig.started) == 2
        assert rig.letter["state"] == "replaying"
        assert rig.names() == ["dispatched", "acked"]
        assert "reconciliation" in rig.log_text()

    replayed(body)


def test_a_retry_whose_letter_cannot_be_written_is_repeated_plainly():
    async def body(rig):
        rig.answers = [KeyError("isbn")]
        rig.store.fail("refresh", CannotWrite("permission denied"))
        rig.replay()
        await rig.until(lambda: rig.letter["state"] == "resolved")
        assert rig.names().count("nacked_retried") == 1
        assert rig.names().count("acked") == 1

    replayed(body)


def test_a_locked_letter_holds_up_itself_alone():
    """Repeated row by row: its neighbours in the group are resolved meanwhile."""

    async def body(rig):
        others = []
        for _ in range(3):
            rig.answers = [Terminal("rejected")]
            rig.memory.insert(queue="q", payload=b"other")
            await rig.until(lambda: len(rig.memory.dlq_rows) == len(others) + 2)
            others.append(rig.memory.dlq_rows[-1])
        plain, locked_until = rig.memory.resolve, rig.now() + 10

        async def resolve(passes, timeout, *, skip=False):
            if rig.now() < locked_until and any(p.letter_id == rig.letter["id"] for p in passes):
                raise RowLocked("the letter is locked")
            return await plain(passes, timeout, skip=skip)

        rig.memory.resolve = resolve
        for letter in [*others]:
            row_id = rig.memory.insert(
                queue="q", payload=b"", headers={"outlast-replay": letter["id"]}
            )
            letter.update(state="replaying", replayed_as=row_id)
        rig.replay()
        await rig.until(lambda: all(x["state"] == "resolved" for x in others), seconds=5)
        assert rig.letter["state"] == "replaying"
        await rig.until(lambda: rig.letter["state"] == "resolved", step=0.1)

    replayed(body)


def test_a_copied_or_absurd_replay_header_makes_an_ordinary_message():
    async def body(rig):
        for value in (rig.letter["id"], "x", -1, 10**30, None, True, [1], ""):
            rig.memory.insert(queue="q", payload=b"", headers={"outlast-replay": value})
        before = dict(rig.letter)
        await rig.until(lambda: not rig.memory.rows)
        assert rig.letter == before
        assert rig.names().count("acked") == 8

    replayed(body)
