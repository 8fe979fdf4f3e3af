"""Pages of a list come to every letter once, however little of the table each of them looks at."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Column, MetaData, Table, delete, insert, update

from outlast.model.query import LISTED_STATES, STATES
from outlast.ops import Desk
from outlast.policy.filter_text import parse
from outlast.stores.desk import reading, windows
from outlast.tables.dead_letters import REQUIRED_COLUMNS
from tests.contract.desks import ANN, run_desk

START = datetime(2026, 11, 19, 10, tzinfo=UTC)
TIMES = [START + timedelta(hours=hour) for hour in range(4)]
"""Few, so that many letters failed at the same instant."""
NOW = START + timedelta(days=1)

LETTER = st.fixed_dictionaries(
    {
        "queue": st.sampled_from("ab"),
        "state": st.sampled_from((*STATES, "open", "open", "replaying")),
        "failed_at": st.sampled_from(TIMES),
        "last_failure_at": st.sampled_from((None, *TIMES, *TIMES)),
        "state_changed_at": st.sampled_from((None, *TIMES, *TIMES)),
        "failure_category": st.sampled_from((None, "EXTERNAL", "POISON")),
        "fingerprint": st.sampled_from((None, "g1", "g2")),
        "message_id": st.sampled_from((None, "m1")),
        "consumer_version": st.sampled_from((None, "1.0", "1.10", "2.0")),
        "replay_count": st.integers(0, 3),
        "error_type": st.sampled_from((None, "KeyError", "Timeout")),
        "headers": st.sampled_from((None, {"x": "y"}, {"X": "y"}, {"x": "z"})),
        "payload": st.sampled_from((b'{"n": 1}', b'{"n": 2}', b"no json")),
    }
)
OF_PEERS = {
    "state": "open",
    "last_failure_at": None,
    "failure_category": None,
    "fingerprint": None,
    "message_id": None,
    "consumer_version": None,
    "replay_count": -1,
    "error_type": None,
}
"""What a letter says in a table that has ten columns."""


def listed(letter):
    return letter["last_failure_at"] or letter["failed_at"]


def compared(letter, number):
    return tuple(map(int, (letter["consumer_version"] or "-1").split("."))) >= number


TESTS = {
    "queue:a": lambda x: x["queue"] == "a",
    "-queue:a": lambda x: x["queue"] != "a",
    "queue:a queue:b": lambda _: True,
    "id:3": lambda x: x["id"] == 3,
    "-id:3": lambda x: x["id"] != 3,
    "message:m1": lambda x: x["message_id"] == "m1",
    "group:g1": lambda x: x["fingerprint"] == "g1",
    "category:EXTERNAL": lambda x: x["failure_category"] == "EXTERNAL",
    "-category:EXTERNAL": lambda x: x["failure_category"] != "EXTERNAL",
    "version:>=1.5": lambda x: compared(x, (1, 5)),
    "-version:>=1.5": lambda x: not compared(x, (1, 5)),
    "replays:>=2": lambda x: x["replay_count"] >= 2,
    "error:keyerr": lambda x: x["error_type"] == "KeyError",
    f"since:{TIMES[1]:%Y-%m-%dT%H:%MZ}": lambda x: listed(x) >= TIMES[1],
    f"until:{TIMES[3]:%Y-%m-%dT%H:%MZ}": lambda x: listed(x) < TIMES[3],
    f"-since:{TIMES[2]:%Y-%m-%dT%H:%MZ}": lambda x: listed(x) < TIMES[2],
    "header.x:y": lambda x: "y" in (x["headers"] or {}).values(),
    "-header.x:y": lambda x: "y" not in (x["headers"] or {}).values(),
    "body.n:1": lambda x: x["payload"] == b'{"n": 1}',
}
STATED = {
    "": LISTED_STATES,
    "state:any": STATES,
    "state:open": ("open",),
    "state:replaying": ("replaying",),
    "state:resolved state:replaying": ("replaying", "resolved"),
    "state:any -state:open": STATES[1:],
}
# the same word again is OR: these two are no two conditions
EITHER = {"queue:a", "queue:a queue:b"}
WORDS = st.lists(st.sampled_from(sorted(TESTS)), max_size=2, unique=True).filter(
    lambda words: set(words) != EITHER
)
BOUNDS = st.integers(1, 6)


@dataclass
class Shelf:
    """A table, and the same question asked of its letters in Python."""

    world: object
    table: Table
    words: tuple[str, ...]
    stated: str
    letters: dict[int, dict] = field(default_factory=dict)

    @property
    def desk(self):
        return Desk(self.world.engine, self.world.outbox, self.table.name)

    async def fill(self, letters):
        async with self.world.engine.begin() as connection:
            await connection.execute(delete(self.table))
        for number, letter in enumerate(letters, start=1):
            await self.add(number, letter)

    async def add(self, number, letter):
        row = {
            "id": number,
            "original_id": 1,
            "deliveries_count": 1,
            "created_at": START,
            "failure_reason": "rejected",
        } | letter
        columns = self.table.c.keys()
        self.letters[number] = row if "state" in columns else row | OF_PEERS
        async with self.world.engine.begin() as connection:
            kept = {name: value for name, value in row.items() if name in columns}
            await connection.execute(insert(self.table).values(kept))

    async def change(self, number, **values):
        self.letters[number] |= values
        async with self.world.engine.begin() as connection:
            this = update(self.table).where(self.table.c.id == number)
            await connection.execute(this.values(values))

    async def remove(self, number):
        self.letters.pop(number, None)
        async with self.world.engine.begin() as connection:
            await connection.execute(delete(self.table).where(self.table.c.id == number))

    async def page(self, limit, after=None, offset=0):
        query = parse(" ".join((*self.words, self.stated)), now=START)
        page = await self.desk.list(ANN, query, limit=limit, after=after, offset=offset)
        assert len(page.letters) <= limit
        assert page.more is (page.cursor is not None)
        assert page.at_least is (page.looked_at is not None)
        total = len(self.expected())
        assert page.total <= total if page.at_least else page.total == total
        return page

    def expected(self):
        """Ids in the order of a list."""
        found = [
            x
            for x in self.letters.values()
            if x["state"] in STATED[self.stated] and all(TESTS[word](x) for word in self.words)
        ]
        return [x["id"] for x in sorted(found, key=self._place, reverse=True)]

    def _place(self, letter):
        states = set(STATED[self.stated])
        going = [x for x in self.letters.values() if x["state"] == "replaying"]
        if "state" not in self.table.c or states <= set(LISTED_STATES):
            return listed(letter), letter["id"]
        if states == {"replaying"} and all(x["state_changed_at"] for x in going):
            return letter["state_changed_at"], letter["id"]
        return (letter["id"],)


async def peers_table(world):
    columns = [
        Column(name, world.dlq.c[name].type, primary_key=name == "id") for name in REQUIRED_COLUMNS
    ]
    table = Table("peer_dlq", MetaData(), *columns)
    async with world.engine.begin() as connection:
        await connection.run_sync(table.create)
    return table


@pytest.fixture
def tiny(monkeypatch):
    """Looks that end after a few letters."""

    def bound(look):
        monkeypatch.setattr(windows, "LOOK_MAX", look)
        monkeypatch.setattr(reading, "LOOK_MAX", look)

    return bound


def with_examples(database, body, /, **strategies):
    """Every example on one database: `body` is awaited, the examples come from a thread."""
    count = 25 if database.is_postgres else 150

    async def main(world):
        loop = asyncio.get_running_loop()
        both = (world.dlq, await peers_table(world))
        checks = (HealthCheck.too_slow, HealthCheck.data_too_large)

        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=checks)
        @given(
            letters=st.lists(LETTER, max_size=10),
            words=WORDS,
            stated=st.sampled_from(sorted(STATED)),
            of_peers=st.integers(0, 4),
            limit=BOUNDS,
            look=BOUNDS,
            **strategies,
        )
        def one(letters, words, stated, of_peers, **more):
            async def example():
                shelf = Shelf(world, both[of_peers == 0], tuple(words), stated)
                await shelf.fill(letters)
                await body(shelf, **more)

            asyncio.run_coroutine_threadsafe(example(), loop).result()

        await asyncio.to_thread(one)

    run_desk(database, main)


def test_every_letter_is_on_one_page(database, tiny):
    """S2-11 S3-17 S3-18 S3-19 S3-20: each once, in order, whatever is asked in whatever bites."""

    async def body(shelf, limit, look):
        tiny(look)
        found, cursor = [], None
        for _ in range(2 * len(shelf.letters) + 2):
            page = await shelf.page(limit, cursor)
            found += [letter.id for letter in page.letters]
            cursor = page.cursor
            if cursor is None:
                break
        assert cursor is None
        assert found == shelf.expected()

    with_examples(database, body)


def test_pages_turned_over_by_number_show_a_stretch_of_the_list(database, tiny):
    """An offset counts what is listed; within a look it is the slice, else it says more."""

    async def body(shelf, limit, look, offset):
        tiny(look)
        page = await shelf.page(limit, offset=offset)
        found, wanted = [letter.id for letter in page.letters], shelf.expected()[offset:]
        assert found == wanted[: len(found)]
        assert page.more or found == wanted
        if not page.at_least:
            assert found == wanted[:limit]
            assert page.more is (len(wanted) > limit)

    with_examples(database, body, offset=st.integers(0, 12))


def test_letters_without_a_time_have_a_page_too(database):
    """S2-11: a DBA may have moved a letter by hand: without the time that its list goes by."""

    async def body(world):
        states = ("replaying", "open", "needs_review")
        times = {"state_changed_at": None, "last_failure_at": None}
        ids = {state: [await world.plant(state=state, **times) for _ in "ab"] for state in states}
        for state in states:
            ids[state].append(await world.plant(state=state))
            found, cursor = [], None
            for _ in ids[state]:
                query = parse(f"state:{state}", now=START)
                page = await world.desk.list(ANN, query, limit=1, after=cursor)
                found += [letter.id for letter in page.letters]
                cursor = page.cursor
            assert cursor is None
            assert found == ids[state][::-1]

    run_desk(database, body)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(("fails again", "leaves", "goes", "comes")), st.integers(1, 10), LETTER
    ),
    max_size=6,
)


def test_letters_that_move_hide_no_other_and_show_none_twice(database, tiny):
    """S3-20: between two pages letters fail again, leave, go and come; the others stay put."""

    async def body(shelf, limit, look, moves):
        tiny(look)
        before, touched, found, cursor = shelf.expected(), set(), [], None
        left = list(moves)
        for _ in range(4 * (len(shelf.letters) + len(moves)) + 2):
            page = await shelf.page(limit, cursor)
            found += [letter.id for letter in page.letters]
            cursor = page.cursor
            if cursor is None:
                break
            if left:
                touched.add(await move(shelf, *left.pop(0)))
        assert cursor is None
        assert len(found) == len(set(found))
        steady = [letter_id for letter_id in before if letter_id not in touched]
        assert [letter_id for letter_id in found if letter_id in steady] == steady

    async def move(shelf, kind, number, letter):
        has_states = "state" in shelf.table.c
        if kind == "comes":
            # as whatever fails now: behind the pages that are still to come there is nothing new
            number = max(shelf.letters, default=0) + 1
            await shelf.add(number, letter | {"last_failure_at": None, "failed_at": NOW})
        elif number not in shelf.letters:
            return number
        elif kind == "goes":
            await shelf.remove(number)
        elif has_states and kind == "leaves":
            await shelf.change(number, state="resolved", state_changed_at=NOW)
        elif has_states:
            await shelf.change(number, last_failure_at=NOW, state_changed_at=NOW)
        return number

    with_examples(database, body, moves=MOVES)
