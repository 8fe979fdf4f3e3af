"""Faults and abuse at the desk, on the real databases: rounds of replays, digests, operators."""

import asyncio
import base64
import hashlib
import json

from outlast.model.edit import Edit
from outlast.model.outcome import ACK
from outlast.ops import SCOPES, Actor, DeskError
from outlast.ops.replaying import ReplayOptions
from outlast.policy.retry import ConstantRetry, NoRetry
from outlast.publish.run import OutboxWriter
from tests.contract.desks import ANN, run_desk
from tests.contract.test_interleavings import engine_over, until

FAST = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2}


def test_a_message_that_stays_poison_is_one_letter_round_after_round(database):
    """F-G06: three rounds of two attempts, counted as this pass and as all; one line for each."""

    async def fails(_delivery):
        raise KeyError("isbn")

    async def body(w):
        rounds = FAST | {"retry_strategy": ConstantRetry(delay_seconds=0.01, max_attempts=2)}
        async with engine_over(w.store, ("handle", "q", fails, rounds)):
            await w.add()

            async def died():
                return await w.letters()

            await until(died)
            (first,) = await w.letters()
            for number in range(1, 4):
                sent = await w.desk.replay(ANN, [first["id"]], ReplayOptions(reason="again"))
                assert sent.replayed == 1, sent
                waited = await w.desk.wait_for_outcome(ANN, [first["id"]], 10)
                assert waited.outcomes == {first["id"]: "failed_again"}
                (letter,) = await w.letters()
                assert letter["id"] == first["id"]
                assert letter["replay_count"] == number
                assert (letter["deliveries_count"], letter["attempts_count"]) == (2, 2)
                assert letter["total_deliveries"] == 2 * (number + 1)
                assert await w.rows() == []
            refused = await w.desk.replay(ANN, [first["id"]])
        assert [one.gate for one in refused.results] == ["replay_limit"]
        kinds = [entry.kind for entry in await w.told(first["id"])]
        assert kinds == ["replayed", "replay_failed"] * 3 + ["escalated"]
        (last,) = await w.letters()
        for name in ("payload", "headers", "first_failure_at", "failed_at", "original_id"):
            assert last[name] == first[name]

    run_desk(database, body)


def test_another_queue_and_another_body_leave_the_original(database):
    """F-G07: the row has the edit, the queue and the id; the letter its own; both are recorded."""

    async def body(w):
        old = b'{"price": -5}'
        letter_id = await w.plant(message_id="m-1", payload=old, headers={"a": "1"})
        edit = Edit(payload=b'{"price": 5}', set_headers={"a": "2"})
        wanted = ReplayOptions(to="elsewhere", edit=edit, reason="a sign")
        assert (await w.desk.replay(ANN, [letter_id], wanted)).replayed == 1
        (row,) = await w.rows()
        assert (row["queue"], bytes(row["payload"])) == ("elsewhere", b'{"price": 5}')
        assert row["headers"]["a"] == "2"
        assert row["headers"]["outlast-message-id"] == "m-1"
        letter = await w.one(letter_id)
        assert (letter["queue"], bytes(letter["payload"])) == ("q", old)
        assert letter["headers"] == {"a": "1"}
        told = await w.told(letter_id)
        assert [(x.kind, x.actor, x.reason) for x in told] == [
            ("edited", "ann", "a sign"),
            ("replayed", "ann", "a sign"),
        ]
        assert told[1].detail["queue"] == "elsewhere"

    run_desk(database, body)


def test_everybody_acts_on_the_same_letters_and_each_is_in_one_place(database):
    """F-G09: replay, purge, erase, restore and expiry at once; there is no archive yet.

    Live, dead, or erased with a line that says so: nothing is lost and nothing is twice.
    """

    async def body(w):
        size, away = 60, 1e-6
        brief = w.make_desk(chunk=7, keep_discarded_seconds=away)
        await w.plant_many(size)
        ids = [letter["id"] for letter in await w.letters()]
        # only the hard purge takes this one; only the replay takes the second
        await w.change(ids[3], failure_category="POISON")

        async def expire():
            for _ in range(20):
                await brief.sweep(ANN)
                await asyncio.sleep(0)

        acts = (
            brief.replay_all(ANN, everything=True),
            brief.purge(ANN, ids[::2], reason="old"),
            brief.purge(ANN, ids[::3], hard=True, reason="erase"),
            brief.restore(ANN, ids[::4]),
            expire(),
        )
        await asyncio.gather(*acts)
        letters = {letter["id"]: letter for letter in await w.letters()}
        live = [row["headers"]["outlast-replay"] for row in await w.rows()]
        assert len(set(live)) == len(live)
        assert set(live) == {i for i, x in letters.items() if x["state"] == "replaying"}
        erased = [x.dlq_id for x in await w.told() if x.kind in {"purged", "expired"}]
        assert sorted([*letters, *erased]) == ids
        assert erased
        assert live
        assert {x["state"] for x in letters.values()} <= {"open", "replaying", "discarded"}

    run_desk(database, body)


def digest(payload, headers):
    plain = {name: value for name, value in headers.items() if not name.startswith("outlast-")}
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(bytes(payload) + b"\x00" + text.encode()).hexdigest()


def test_six_digests_from_the_publish_to_the_second_delivery_are_equal(database):
    """F-G13: of body and headers: publish, dead letter, export, import, replay, delivery."""
    payload = bytes(range(256)) * 100
    headers = {"content-type": "x/y", "correlation_id": "ü€\U0001f600", "n": -1.5, "l": [None, {}]}
    delivered = []

    async def deliver(delivery):
        delivered.append(digest(delivery.payload, delivery.headers))
        if len(delivered) == 1:
            raise KeyError("isbn")
        return ACK

    async def body(w):
        async with w.engine.begin() as connection:
            await OutboxWriter(w.outbox).insert(
                connection, queue="q", payload=payload, headers=headers
            )
        (row,) = await w.rows()
        seen = [digest(row["payload"], row["headers"])]
        async with engine_over(
            w.store, ("handle", "q", deliver, FAST | {"retry_strategy": NoRetry()})
        ):

            async def died():
                return await w.letters()

            await until(died)
            (letter,) = await w.letters()
            seen.append(digest(letter["payload"], letter["headers"]))
        parts = [part async for part in w.desk.export(ANN, reveal=True, reason="move")]
        (document,) = json.loads("".join(parts))
        assert document["digest"] == "sha256:" + hashlib.sha256(payload).hexdigest()
        carried = base64.b64decode(document["payload_base64"])
        seen.append(digest(carried, document["original_headers"]))
        await w.desk.purge(ANN, [letter["id"]], hard=True)
        assert (await w.desk.import_letters(ANN, "".join(parts))).imported == 1
        (letter,) = await w.letters()
        seen.append(digest(letter["payload"], letter["headers"]))
        assert (await w.desk.replay(ANN, [letter["id"]])).replayed == 1
        (row,) = await w.rows()
        seen.append(digest(row["payload"], row["headers"]))
        async with engine_over(
            w.store, ("handle", "q", deliver, FAST | {"retry_strategy": NoRetry()})
        ):

            async def gone():
                return not await w.rows()

            await until(gone)
        seen.append(delivered[1])
        assert seen == [digest(payload, headers)] * 6

    run_desk(database, body)


def test_of_three_operators_nobody_undoes_what_another_did_unseen(database):
    """F-K14: replay, purge and edit of what was seen, at once; what lost is told, not half done."""

    async def tried(call):
        try:
            answer = await call
        except DeskError as refusal:
            assert refusal.remedy or str(refusal)
            return None
        return answer

    async def body(w):
        edit = Edit(payload=b'{"n": 2}')
        people = [Actor(name, SCOPES) for name in ("ann", "bob", "eve")]
        for turn in range(6):
            letter_id = await w.plant()
            seen = (await w.desk.inspect(ANN, letter_id)).etag
            acts = {
                "replay": w.desk.replay(people[0], [letter_id]),
                "purge": w.desk.purge(people[1], [letter_id]),
                "edit": w.desk.edit(people[2], letter_id, edit, expected=seen),
            }
            names = [*acts][turn % 3 :] + [*acts][: turn % 3]
            answers = await asyncio.gather(*(tried(acts[name]) for name in names))
            ended = dict(zip(names, answers, strict=True))
            letter = await w.one(letter_id)
            rows = [r for r in await w.rows() if r["headers"]["outlast-replay"] == letter_id]
            assert len(rows) == ended["replay"].replayed
            assert ended["replay"].replayed + ended["purge"].done == 1, ended
            assert letter["state"] == ("replaying" if rows else "discarded")
            is_edited = ended["edit"] is not None
            assert (letter["revision"] == 1) is is_edited
            kinds = [entry.kind for entry in await w.told(letter_id)]
            assert len(kinds) == 1 + is_edited
            # what was seen is not what is there once somebody else has acted
            assert ("edited" in kinds[:1]) is is_edited
            if rows:
                assert (bytes(rows[0]["payload"]) == edit.payload) is is_edited

    run_desk(database, body)
