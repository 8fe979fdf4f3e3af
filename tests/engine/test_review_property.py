"""An engine under random faults, handlers and stops: what must hold on every path, by seed."""

import asyncio
import random
from collections import Counter, defaultdict
from uuid import uuid4

import pytest

from outlast.model.delivery import Answer
from outlast.model.errors import (
    CannotWrite,
    Disconnected,
    OutcomeUnknown,
    RowLocked,
    RowRefused,
    TryLater,
)
from outlast.model.events import CLOSING
from outlast.model.look import Expired, Want
from outlast.model.outcome import ACK, RELEASE, UNSETTLED, Retry, Terminal
from outlast.policy.retry import ConstantRetry, NoRetry
from outlast.stores.memory.store import MemoryStore
from tests import virtual
from tests.engine.bench import Rig

SEEDS = 300
GROUPS = 6
SETTLES = ("ack", "retry", "release", "bury")
TELLS = {
    "acked": "acked",
    "retried": "nacked_retried",
    "ended": "nacked_terminal",
    "lease_lost": "lease_lost",
    "abandoned": "dispatch_abandoned",
    "released": "released",
    "unsettled": "unsettled",
    "settle_unknown": "settle_unknown",
    "dead_letter_failed": "dlq_write_failed",
}
assert set(TELLS.values()) == CLOSING
LANDED = {
    "acked": {"ack"},
    "nacked_retried": {"retry"},
    "nacked_terminal": {"bury", "ack"},
    "released": {"release"},
}


class ChaosStore:
    """A database with bad moments, which notes what it was asked and what it did."""

    def __init__(self, inner, chance):
        self.inner = inner
        self.chance = chance
        self.rate = chance.choice([0.0, 0.05, 0.2, 0.4])
        self.asked = defaultdict(set)
        self.left = Counter()
        self.instants = Counter()
        self.lost_claims = False
        self.away = False
        self.closed = False

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def close(self):
        self.closed = True
        await self.inner.close()

    async def reconnect(self, _line):
        await asyncio.sleep(self.chance.choice([0, 0, 0.01]))
        if self.away or self.chance.random() < self.rate:
            raise Disconnected("refused")

    async def _call(self, name, effect, *, skip=None):
        assert not self.closed, f"{name} after close"
        now = asyncio.get_running_loop().time()
        self.instants[now] += 1
        assert self.instants[now] < 500, f"a hot loop: {name} at {now}"
        chance = self.chance
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice([0, 0.001, 0.02, 0.3]))
        if self.away:
            raise chance.choice([Disconnected, OutcomeUnknown])("away")
        fault = chance.random() < self.rate
        if fault and chance.random() < 0.5:
            # read back and look know fewer ways to fail, and have no rows to refuse
            kinds = [TryLater, CannotWrite, RowLocked, Disconnected, OutcomeUnknown]
            kinds += [RowRefused] if name in SETTLES else []
            kind = chance.choice(kinds)
            if kind is OutcomeUnknown:
                self.lost_claims |= name in {"claim", "take_over"}
                raise OutcomeUnknown("before", timed_out=chance.random() < 0.5)
            if kind is not RowLocked or not skip or chance.random() < 0.2:
                raise kind(name)
        answer = await effect()
        if chance.random() < 0.3:
            await asyncio.sleep(chance.choice([0, 0.001, 0.02, 0.3]))
        if fault and chance.random() < 0.5:
            self.lost_claims |= name in {"claim", "take_over"}
            raise OutcomeUnknown("after", timed_out=chance.random() < 0.5)
        return answer

    async def claim(self, wanted, limit, token, timeout):
        return await self._call("claim", lambda: self.inner.claim(wanted, limit, token, timeout))

    async def read_back(self, queues, token, timeout):
        async def effect():
            claim, _ = await self.inner.read_back(queues, token, timeout)
            return claim, self.chance.random() < 0.5

        return await self._call("read_back", effect)

    async def take_over(self, rows, token, timeout):
        return await self._call("take_over", lambda: self.inner.take_over(rows, token, timeout))

    async def look(self, peek, walk, timeout):
        return await self._call("look", lambda: self.inner.look(peek, walk, timeout))

    async def _settle(self, name, group, timeout, skip):
        for item in group:
            pair = (item[0], item[1]) if isinstance(item, tuple) else (item.id, item.token)
            if name != "extend":
                self.asked[pair].add(name)
                assert len(self.asked[pair]) == 1, f"the verdict changed: {self.asked[pair]}"

        async def effect():
            free, held = group, []
            if skip and self.chance.random() < self.rate:
                held = [item for item in group if self.chance.random() < 0.5]
                free = [item for item in group if item not in held]
            before = {row.id for row in self.inner.rows}
            answer = await getattr(self.inner, name)(free, timeout, skip=skip)
            for row_id in before - {row.id for row in self.inner.rows}:
                self.left[row_id] += 1
            pairs = [(i[0], i[1]) if isinstance(i, tuple) else (i.id, i.token) for i in held]
            return Answer(answer.lost, tuple(pairs))

        return await self._call(name, effect, skip=skip)

    async def extend(self, pairs, timeout, *, skip=False):
        return await self._settle("extend", pairs, timeout, skip)

    async def ack(self, pairs, timeout, *, skip=False):
        return await self._settle("ack", pairs, timeout, skip)

    async def retry(self, entries, timeout, *, skip=False):
        return await self._settle("retry", entries, timeout, skip)

    async def release(self, pairs, timeout, *, skip=False):
        return await self._settle("release", pairs, timeout, skip)

    async def bury(self, letters, timeout, *, skip=False):
        return await self._settle("bury", letters, timeout, skip)


class World:
    """One seed: an engine, its subscriptions, the application, a peer that takes what expired."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        memory = MemoryStore(virtual.now, dead_letters=self.chance.random() < 0.7)
        self.store = ChaosStore(memory, self.chance)
        self.memory = memory
        self.rig = Rig(self.store, letter_group_max=self.chance.choice([2, 100]))
        self.inserted = 0
        self.stolen = set()
        self.healed = asyncio.Event()
        self.started_pairs = Counter()
        self.stopping = False
        self.interrupted = set()
        self.told = defaultdict(list)
        self.dispatched = set()
        self.subs = []
        self.ttls = {}
        self._listen()

    def _listen(self):
        tell = self.rig.engine._tell
        for method, event in TELLS.items():
            original = getattr(tell, method)

            def noting(entry, *arguments, event=event, original=original, **options):
                self.told[entry].append(event)
                self._check_closing(entry, event)
                original(entry, *arguments, **options)

            setattr(tell, method, noting)
        dispatched = tell.dispatched

        def noting_start(entry):
            self.dispatched.add(entry)
            self._check_start(entry)
            dispatched(entry)

        tell.dispatched = noting_start

    def _check_closing(self, entry, event):
        """What is told is true: the row has left, or its lease has."""
        assert not (event.startswith("nacked") and entry.cancelled_for == "stop")
        pair = (entry.delivery.id, entry.delivery.token)
        if event in LANDED:
            assert self.store.asked[pair] <= LANDED[event], event
            holders = {(row.id, row.acquired_token) for row in self.memory.rows}
            assert pair not in holders, f"{event} did not land"

    def _check_start(self, entry):
        pair = (entry.delivery.id, entry.delivery.token)
        self.started_pairs[pair] += 1
        assert self.started_pairs[pair] == 1, "started twice under one token"
        sub = entry.subscription
        assert sub.running <= sub.options.max_workers
        row = next((r for r in self.memory.rows if r.id == pair[0]), None)
        assert row is not None, "started a row that is gone"
        assert row.acquired_token == pair[1], "started under a lease that is not ours"
        age = (self.memory.clock() - row.acquired_at).total_seconds()
        assert age < sub.ttl, "started after its lease ran out"
        assert not sub.closed

    async def handle(self, delivery):
        try:
            return await self._handle()
        except BaseException:
            entry = next(e for e in self.dispatched if e.task is asyncio.current_task())
            if self.stopping and entry.cancelled_for != "lease_limit" and self._cancelled_now():
                self.interrupted.add((delivery.id, delivery.token))
            raise

    @staticmethod
    def _cancelled_now():
        return asyncio.current_task().cancelling() > 0

    async def _handle(self):
        chance = self.chance
        if self.healed.is_set():
            return ACK
        if chance.random() < 0.6:
            await asyncio.sleep(chance.choice([0, 0.001, 0.1, 1.0, 7.0]))
        match chance.randrange(14):
            case 0:
                raise ValueError("bad")
            case 1:
                raise SystemExit(3)
            case 2:
                raise asyncio.CancelledError
            case 3:
                if not self.stopping:
                    asyncio.current_task().cancel()
                await asyncio.sleep(chance.choice([0, 1]))
            case 4 if not self.stopping:
                asyncio.current_task().cancel()
            case 5:
                return Terminal("rejected")
            case 6:
                return UNSETTLED
            case 7:
                return Retry(chance.choice([0.0, 0.01, 3.0]))
            case 8:
                await self.healed.wait()
            case 9:
                await self._stubborn(chance.choice([0.5, 3.0]))
            case 10 if chance.random() < 0.3:
                return RELEASE
            case 11:
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    raise ValueError("clean-up failed") from None
        return ACK

    @staticmethod
    async def _stubborn(seconds):
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                asyncio.current_task().uncancel()

    def subscribe(self):
        chance = self.chance
        for number in range(chance.choice([1, 1, 2, 3])):
            queues = [f"q{number}.{n}" for n in range(chance.choice([1, 1, 3]))]
            ttl = chance.choice([3.0, 6.0, 30.0])
            sub = self.rig.handle(
                self.handle,
                queues,
                name=f"s{number}",
                max_workers=chance.choice([1, 2, 5]),
                fetch_batch_size=chance.choice([1, 3, 10]),
                min_fetch_interval=chance.choice([0.1, 1.0]),
                max_fetch_interval=chance.choice([1.0, 10.0]),
                lease_ttl_seconds=ttl,
                lease_limit_seconds=chance.choice([None, 5.0]),
                max_deliveries=chance.choice([None, None, 1, 2, 4]),
                terminal_flush_batch_size=chance.choice([1, 1, 2]),
                retry_strategy=chance.choice([ConstantRetry(delay_seconds=2), NoRetry()]),
            )
            self.subs.append(sub)
            self.ttls.update(dict.fromkeys(queues, ttl))

    async def publish(self):
        chance = self.chance
        for _ in range(chance.randrange(3, 20)):
            await asyncio.sleep(chance.choice([0, 0.01, 0.3, 1.0]))
            for _ in range(chance.choice([1, 1, 4, 15])):
                self.memory.insert(queue=chance.choice(list(self.ttls)), payload=b"{}")
                self.inserted += 1

    async def _leave_crashed(self):
        for queue in self.ttls:
            for _ in range(self.chance.choice([0, 0, 2, 6])):
                self.memory.insert(queue=queue, payload=b"{}")
                self.inserted += 1
            await self.memory.claim([Want(queue, 4)], 4, uuid4(), 1.0)

    async def steal(self):
        """A peer takes over what expired, and settles it at once."""
        while True:
            await asyncio.sleep(self.chance.choice([0.2, 1.0, 5.0]))
            rows = [Expired(r.id, self.ttls[r.queue]) for r in self.memory.rows]
            claim = await self.memory.take_over(rows, uuid4(), 1.0)
            for row in claim.rows:
                await self.memory.ack([(row.id, row.token)], 1.0)
                self.stolen.add(row.id)

    async def _fail_over(self):
        await asyncio.sleep(self.chance.random() * 10)
        self.store.away = not self.healed.is_set()
        await asyncio.sleep(self.chance.random() * 20)
        self.store.away = False

    async def watch(self):
        while True:
            await asyncio.sleep(0.01)
            for sub in self.subs:
                assert sub.running <= sub.options.max_workers
                if not self.store.lost_claims:
                    most = 2 * sub.options.fetch_batch_size + sub.options.max_workers
                    assert sub.unstarted <= most
            if not self.store.lost_claims:
                limited = [
                    e
                    for s in self.subs
                    if s.options.max_deliveries is not None
                    for e in s.hand
                    if e.reclaimed
                ]
                assert len(limited) <= 1

    async def play(self):
        chance = self.chance
        self.subscribe()
        await self._leave_crashed()
        await self.rig.engine.start()
        helpers = [asyncio.create_task(self.publish()), asyncio.create_task(self.watch())]
        if chance.random() < 0.3:
            helpers.append(asyncio.create_task(self._fail_over()))
        if chance.random() < 0.5:
            helpers.append(asyncio.create_task(self.steal()))
        await asyncio.sleep(chance.choice([0.01, 3.0, 12.0, 12.0, 40.0]) * chance.random())
        heals = chance.random() < 0.5
        if heals:
            await helpers[0]
            self.store.rate = 0.0
            self.store.away = False
            self.healed.set()
            # the longest lease, walk and back-off, a handful of times over
            await self.rig.until(lambda: not self.memory.rows, seconds=300, step=0.5)
        elif chance.random() < 0.4:
            await self.rig.engine.stop_subscription(chance.choice(self.subs), 0.3)
            await asyncio.sleep(chance.choice([0, 5]))
        if chance.random() < 0.2:
            self.rig.engine.request_stop(chance.choice(self.subs), 1.0)
        await self._stop(chance.choice([0.0, 0.3, 5.0]))
        for helper in helpers:
            if helper.done() and helper.exception():
                raise helper.exception()
            helper.cancel()
        self.healed.set()
        await asyncio.sleep(10)
        self._check_end(heals)

    async def _stop(self, grace):
        start = self.rig.now()
        self.stopping = True
        stop = asyncio.create_task(self.rig.engine.stop(grace))
        if self.chance.random() < 0.15:
            await asyncio.sleep(self.chance.random())
            stop.cancel()
        await asyncio.gather(stop, return_exceptions=True)
        assert self.rig.now() - start <= grace + 2.0

    def _check_end(self, healed):
        assert "unexpectedly" not in self.rig.log_text()
        for entry in self.dispatched | set(self.told):
            least = entry in self.dispatched
            assert least <= len(self.told[entry]) <= 1, (entry.delivery.id, self.told[entry])
        for pair in self.interrupted:
            assert self.store.asked[pair] <= {"release"}, "a cancellation of ours is no verdict"
        live = Counter(row.id for row in self.memory.rows)
        dead = Counter(row["original_id"] for row in self.memory.dlq_rows)
        gone = self.store.left | Counter(self.stolen)
        for row_id in range(1, self.inserted + 1):
            places = live[row_id] + gone[row_id]
            assert places == 1, f"row {row_id} is in {places} places"
            assert dead[row_id] <= 1
        if healed:
            assert not live
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert all("chaos" in t.get_name() for t in left), left


async def _main(seed):
    await World(seed).play()


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_dispatch_is_closed_once_and_every_row_has_one_place(group):
    """S1, S4, S5, S7, S15, S16, L1, L4: by seed; a failure names it."""
    for seed in range(group, SEEDS, GROUPS):
        try:
            virtual.run(_main(seed))
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
