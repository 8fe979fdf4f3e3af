"""Upkeep on real databases: what ends by itself, what stays, and that erased means erased."""

import asyncio
import base64
import logging
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from sqlalchemy import MetaData, event, insert, make_url, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.model.edit import Edit
from outlast.model.outcome import ACK, Terminal
from outlast.ops import SCOPES, Actor, changing
from outlast.ops.replaying import ReplayOptions
from outlast.ops.upkeep import upkeep
from outlast.policy.retry import NoRetry
from outlast.stores.desk import expiry
from tests.contract.desks import ANN, run_desk
from tests.contract.test_interleavings import engine_over, until

KEEPER = Actor("serve", SCOPES)
FAST = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2, "retry_strategy": NoRetry()}
OVER = timedelta(seconds=-1)


@asynccontextmanager
async def kept_up(*desks, every=0.02):
    stop = asyncio.Event()
    tasks = [asyncio.create_task(upkeep(desk, KEEPER, stop, every=every)) for desk in desks]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def states(w):
    return Counter(letter["state"] for letter in await w.letters())


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "outlast.upkeep" and r.levelno > 10]


@pytest.fixture(autouse=True)
def heard(caplog):
    caplog.set_level(logging.INFO, "outlast.upkeep")


# -- what ends


def test_what_is_over_goes_and_nothing_else(database):
    """Design 5.1: resolved and discarded letters until `purge_after`; open ones never."""

    async def body(w):
        over = await w.now() + OVER
        later = over + timedelta(days=1)
        gone = [await w.plant(state=s, purge_after=over) for s in ("resolved", "discarded")]
        stay = [
            await w.plant(state=s, purge_after=over) for s in ("open", "needs_review", "escalated")
        ]
        stay += [await w.plant(state=s, purge_after=later) for s in ("resolved", "discarded")]
        stay += [await w.plant(state=s) for s in ("resolved", "discarded", "open")]
        orphan = await w.plant(state="replaying", replayed_as=4711)
        async with kept_up(w.desk):

            async def ended():
                return (await w.one(orphan))["state"] == "resolved" and not await w.one(gone[1])

            await until(ended)
        assert {x["id"] for x in await w.letters()} == {*stay, orphan}
        assert (await w.one(orphan))["resolution"] == "unconfirmed"
        for letter_id in gone:
            (tombstone,) = await w.told(letter_id)
            assert (tombstone.kind, tombstone.actor) == ("expired", "serve")
        (told,) = await w.told(orphan)
        assert (told.kind, told.actor) == ("resolved", "serve")

    run_desk(database, body)


def test_resolved_letters_stay_where_that_is_wanted(database, monkeypatch):
    """However many of them stand before what must go."""
    monkeypatch.setattr(expiry, "LOOK_MAX", 7)

    async def body(w):
        over = await w.now() + OVER
        await w.plant_many(40, state="resolved", purge_after=over - timedelta(days=1))
        await w.plant_many(25, state="discarded", purge_after=over)
        async with kept_up(w.desk):

            async def ended():
                return not (await states(w))["discarded"]

            await until(ended)
        assert await states(w) == {"resolved": 40}
        # the switch is turned back: nothing was made unfindable
        async with kept_up(w.make_desk()):

            async def empty():
                return not await w.letters()

            await until(empty)

    run_desk(database, body, keep_resolved=True, chunk=5)


def test_a_letter_that_is_held_stops_nobody(postgres):
    """A lock of somebody else is passed over; the letter goes when it is free."""

    async def body(w):
        over = await w.now() + OVER
        await w.plant_many(30, state="discarded", purge_after=over)
        (held, *_) = sorted(x["id"] for x in await w.letters())
        async with w.engine.begin() as other:
            await other.execute(
                text("select 1 from outbox_dlq where id = :id for update"), {"id": held}
            )
            async with kept_up(w.desk):

                async def others_gone():
                    return [x["id"] for x in await w.letters()] == [held]

                await until(others_gone)
        assert await w.desk.sweep(KEEPER) == 1

    run_desk(postgres, body, chunk=7)


FORBIDS = {
    "postgres": [
        "create table kept (letter bigint references outbox_dlq (id))",
        "insert into kept values (:id)",
    ],
    "sqlite": [
        """create trigger kept before delete on outbox_dlq when old.id = 1
        begin select raise(abort, 'it is kept'); end""",
    ],
}


def test_a_letter_that_the_application_holds_on_to_stops_nobody(database, caplog):
    """Its foreign key, its trigger: the others of the same bite go, and it is told once."""

    async def body(w):
        over = await w.now() + OVER
        held = await w.plant(state="discarded", purge_after=over)
        assert held == 1
        async with w.engine.begin() as connection:
            for statement in FORBIDS[w.kind]:
                given = {"id": held} if ":id" in statement else {}
                await connection.execute(text(statement), given)
        await w.plant_many(20, state="discarded", purge_after=over)
        async with kept_up(w.desk):

            async def others_gone():
                return [x["id"] for x in await w.letters()] == [held] and said(caplog)

            await until(others_gone)
        (line,) = said(caplog)
        assert line.startswith("upkeep cannot delete what was kept long enough: ")
        assert len(await w.told()) == 20

    run_desk(database, body)


def test_a_replay_that_cannot_be_ended_stops_nobody(postgres):
    """A constraint of somebody's refuses it: the letters behind it are ended all the same."""

    async def body(w):
        stuck = await w.plant(state="replaying", replayed_as=4711)
        behind = await w.plant(state="replaying", replayed_as=4712)
        async with w.engine.begin() as connection:
            check = f"alter table outbox_dlq add check (id <> {stuck} or state = 'replaying')"
            await connection.execute(text(check))
        ended = await w.desk.reconcile(KEEPER)
        assert [orphan.dlq_id for orphan in ended] == [behind]
        assert (await w.one(stuck))["state"] == "replaying"

    run_desk(postgres, body)


def test_a_letter_that_is_restored_meanwhile_stays(database, monkeypatch):
    """It was seen as due, and is no more when its turn comes."""

    async def body(w):
        over = await w.now() + OVER
        ids = [await w.plant(state="discarded", purge_after=over) for _ in range(3)]

        async def due(*arguments):
            found = await expiry.due(*arguments)
            await w.change(ids[0], state="open", purge_after=None)
            await w.change(ids[1], state="open")
            return found

        monkeypatch.setattr(changing, "due", due)
        assert await w.desk.sweep(KEEPER) == 1
        assert [x["id"] for x in await w.letters()] == ids[:2]
        assert [x.dlq_id for x in await w.told()] == ids[2:]

    run_desk(database, body)


def test_several_at_once_do_each_thing_once(database):
    """Three servers, one database: one history row for each letter, nothing lost, no line."""

    async def body(w):
        over = await w.now() + OVER
        await w.plant_many(300, state="discarded", purge_after=over)
        await w.plant_many(50, state="replaying", replayed_as=4711)
        await w.plant_many(20)
        engines = [w.database.engine() for _ in range(3)]
        async with kept_up(*(w.make_desk(engine, chunk=40) for engine in engines)):

            async def ended():
                now = await states(w)
                return not now["discarded"] and not now["replaying"]

            await until(ended, 40)
        for engine in engines:
            await engine.dispose()
        assert await states(w) == {"open": 20, "resolved": 50}
        told = await w.told()
        assert Counter(row.kind for row in told) == {"expired": 300, "resolved": 50}
        assert max(Counter(row.dlq_id for row in told).values()) == 1

    run_desk(database, body)


def test_a_pass_reads_what_is_due_and_no_more(postgres):
    """Ten thousand letters wait for their time: a pass does not look at them."""

    async def body(w):
        later = await w.now() + timedelta(days=7)
        for days in range(20):
            await w.plant_many(500, state="resolved", purge_after=later + timedelta(days=days))
        for _ in range(3):
            await w.plant(state="discarded", purge_after=later - timedelta(days=8))
        async with w.engine.begin() as connection:
            await connection.execute(text("analyze outbox_dlq"))
        asked = []

        def note(_connection, _cursor, statement, parameters, _context, _many):
            if "purge_after" in statement and statement.lstrip().startswith("SELECT"):
                asked.append((statement, parameters))

        event.listen(w.engine.sync_engine, "before_cursor_execute", note)
        assert await w.desk.sweep(KEEPER) == 3
        event.remove(w.engine.sync_engine, "before_cursor_execute", note)
        assert len(asked) == 2
        for statement, parameters in asked:
            async with w.engine.connect() as connection:
                raw = (await connection.get_raw_connection()).driver_connection
                rows = await raw.fetch(f"explain (analyze, buffers) {statement}", *parameters)
            plan = "\n".join(row[0] for row in rows)
            buffers = sum(
                int(part.partition("=")[2])
                for line in plan.splitlines()[1:2]
                for part in line.split()
                if part.startswith(("hit=", "read="))
            )
            assert 0 < buffers < 20, plan

    run_desk(postgres, body)


# -- what goes wrong


def test_a_role_that_may_not_write_is_told_once_until_it_may(postgres, caplog):
    """A reader's server: one line for each chore, then silence, then one that it works."""

    async def body(w):
        schema = w.database.schema
        role = f"r_{schema}"
        over = await w.now() + OVER
        await w.plant(state="discarded", purge_after=over)
        orphan = await w.plant(state="replaying", replayed_as=4711)
        async with w.engine.begin() as connection:
            await connection.execute(text(f"create role {role} login"))
            await connection.execute(text(f"grant usage on schema {schema} to {role}"))
            await connection.execute(
                text(f"grant select on all tables in schema {schema} to {role}")
            )
        reader = create_async_engine(
            make_url(w.database.url).set(username=role), connect_args=w.database.connect_args
        )
        try:
            async with kept_up(w.make_desk(reader), every=0.005):

                async def told():
                    return len(said(caplog)) >= 2

                await until(told)
                assert len(await w.letters()) == 2
                async with w.engine.begin() as connection:
                    await connection.execute(
                        text(f"grant all on all tables in schema {schema} to {role}")
                    )
                    await connection.execute(
                        text(f"grant all on all sequences in schema {schema} to {role}")
                    )

                async def works():
                    letters = await w.letters()
                    return len(letters) == 1 and letters[0]["state"] == "resolved"

                await until(works)

                async def told_again():
                    return len(said(caplog)) >= 4

                await until(told_again)
        finally:
            await reader.dispose()
            async with w.engine.begin() as connection:
                await connection.execute(text(f"drop owned by {role}"))
                await connection.execute(text(f"drop role {role}"))
        assert (await w.one(orphan))["state"] == "resolved"
        denied = "permission denied for table outbox_dlq [42501]"
        assert sorted(said(caplog)) == [
            "upkeep can delete what was kept long enough again",
            "upkeep can end replays of unknown outcome again",
            f"upkeep cannot delete what was kept long enough: {denied}",
            f"upkeep cannot end replays of unknown outcome: {denied}",
        ]

    run_desk(postgres, body)


def test_a_table_that_lacks_columns_is_told_once_until_it_has_them(database, caplog):
    async def body(w):
        over = await w.now() + OVER
        await w.plant(state="discarded", purge_after=over)
        async with w.engine.begin() as connection:
            await connection.execute(
                text("alter table outbox_dlq rename column origin to elsewhere")
            )
        async with kept_up(w.desk, every=0.005):

            async def told():
                return len(said(caplog)) >= 2

            await until(told)
            async with w.engine.begin() as connection:
                await connection.execute(
                    text("alter table outbox_dlq rename column elsewhere to origin")
                )

            async def works():
                return not await w.letters()

            await until(works)
        lines = said(caplog)
        assert all("has no column origin" in line for line in lines[:2])
        assert all(line.endswith(" again") for line in lines[2:])
        assert 2 <= len(lines) <= 4

    run_desk(database, body)


class Doorway:
    """A TCP port that leads to the server while it is open."""

    def __init__(self, host, port):
        self._target = (host, port)
        self._server = None
        self._writers = []
        self.port = None

    async def open(self):
        self._server = await asyncio.start_server(self._lead, "127.0.0.1", self.port or 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _lead(self, reader, writer):
        there, back = await asyncio.open_connection(*self._target)
        self._writers += [writer, back]
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()


def test_a_server_that_goes_and_comes_back_is_told_twice(postgres, caplog):
    async def body(w):
        url = urlsplit(w.database.url)
        doorway = Doorway(url.hostname, url.port or 5432)
        await doorway.open()
        engine = create_async_engine(
            make_url(w.database.url).set(host="127.0.0.1", port=doorway.port),
            connect_args=w.database.connect_args,
        )
        over = await w.now() + OVER
        async with kept_up(w.make_desk(engine), every=0.01):

            async def empty():
                return not await w.letters()

            for _ in range(2):
                await w.plant(state="discarded", purge_after=over)
                await until(empty)
                await doorway.close()

                async def told():
                    return len(said(caplog)) % 2 == 1

                await until(told)
                await w.plant(state="discarded", purge_after=over)
                await doorway.open()
                await until(empty)

                async def told_again():
                    return len(said(caplog)) % 2 == 0

                await until(told_again)
        await engine.dispose()
        await doorway.close()
        away, back, again, at_last = said(caplog)
        assert away.startswith("upkeep waits for the database: ")
        assert again.startswith("upkeep waits for the database: ")
        assert back == at_last == "upkeep goes on: the database is back"

    run_desk(postgres, body)


# -- erasure

MARKER = b"erasure-marker-7f3a1c"


def spellings(marker):
    """How bytes may stand in a text: as they are, in hexadecimal digits, in base64."""
    yield marker
    yield marker.hex().encode()
    for shift in range(3):
        # what is before and behind decides the outer letters only
        yield base64.b64encode(b"." * shift + marker)[4 if shift else 0 : -4]


async def dumped(w):
    """Every byte of every table that is there, by table."""
    found = {}
    async with w.engine.connect() as connection:
        metadata = MetaData()
        await connection.run_sync(metadata.reflect)
        for table in metadata.tables.values():
            rows = (await connection.execute(select(table))).all()
            values = [value for row in rows for value in row]
            found[table.name] = b"\n".join(
                bytes(v) if isinstance(v, bytes | memoryview) else repr(v).encode() for v in values
            )
    return found


async def where_is(w, marker=MARKER):
    return {
        name
        for name, content in (await dumped(w)).items()
        if any(spelling in content for spelling in spellings(marker))
    }


async def edited_by_a_request(w, letter_id, *, dry_run):
    """An edit whose answer is kept, in case the request is repeated; it shows what was changed."""
    edit = Edit(patch=({"op": "add", "path": "/more", "value": MARKER.decode()},))

    async def run():
        done = await w.desk.edit(ANN, letter_id, edit, dry_run=dry_run)
        return {"status": "ok", "results": [done.as_json()]} | done.as_json()

    actor = replace(ANN, request_id=f"r-{letter_id}-{dry_run}")
    answer = await w.desk.once(actor, "edited", letter_id, run)
    assert MARKER.decode() in repr(answer["diff"])
    again = await w.desk.once(actor, "edited", letter_id, run)
    assert again["etag"] == answer["etag"]
    assert again["diff"] == []


async def live_a_full_life(w):
    """Letters with the marker in body, headers, error and revisions, which were looked at, sent
    again, and mended; their ids.
    """
    marker = MARKER.decode()
    outcomes = iter([Terminal("rejected"), ACK])

    async def deliver(_delivery):
        return next(outcomes)

    ids = [
        await w.plant(
            payload=b'{"name": "%s", "n": 1}' % MARKER,
            headers={"content-type": "application/json", "tenant": marker},
            error_message=f"no such name: {marker}",
            last_exception=f"KeyError('{marker}')",
            stack_trace=f"Traceback … {marker}",
            message_id=f"m-{n}",
        )
        for n in range(3)
    ]
    for letter_id in ids:
        await w.desk.edit(
            ANN, letter_id, Edit(payload=b'{"name": "%s", "n": 2}' % MARKER), reason="mended"
        )
        await w.desk.edit(
            ANN,
            letter_id,
            Edit(patch=({"op": "add", "path": "/again", "value": marker},)),
        )
        await w.desk.edit(ANN, letter_id, Edit(set_headers={"x-again": marker}))
        await w.desk.inspect(ANN, letter_id, reveal=True)
        for dry_run in (True, False):
            await edited_by_a_request(w, letter_id, dry_run=dry_run)
        [_ async for _ in w.desk.export(ANN, reveal=True)]
        await w.desk.mark(ANN, [letter_id], owner="ann", triage="invalid format")
    mend = Edit(patch=({"op": "replace", "path": "/n", "value": 3},))
    async with engine_over(w.store, ("handle", "q", deliver, FAST)):
        for edit in (None, mend):
            await w.desk.replay(ANN, ids[:1], ReplayOptions(edit=edit, reason="again"))
            await w.desk.wait_for_outcome(ANN, ids[:1], 10)
    assert await states(w) == {"resolved": 1, "open": 2}
    assert await where_is(w) == {"outbox_dlq", "outbox_dlq_revision"}
    return ids


def test_erasure_after_a_pass_past_purge_after(database):
    """Erasure: no byte of the payload is left in any table: letters, revisions, history, rows."""

    async def body(w):
        ids = await live_a_full_life(w)
        await w.desk.purge(ANN, ids[1:], reason="not needed")
        assert await states(w) == {"resolved": 1, "discarded": 2}
        for letter_id in ids:
            await w.change(letter_id, purge_after=await w.now() + OVER)
        async with kept_up(w.desk):

            async def ended():
                return not await w.letters()

            await until(ended)
        assert await where_is(w) == set()
        kinds = Counter(row.kind for row in await w.told())
        assert kinds["expired"] == 3
        assert kinds["edited"] >= 9

    run_desk(database, body)


def test_erasure_after_a_hard_purge(database):
    """Erasure: at once, in every state; the history keeps who and when, not what."""

    async def body(w):
        ids = await live_a_full_life(w)
        done = await w.desk.purge(ANN, ids, reason="asked for", hard=True)
        assert done.done == 3
        assert await where_is(w) == set()
        for letter_id in ids:
            assert (await w.told(letter_id))[-1].kind == "purged"

    run_desk(database, body)


def test_the_search_for_a_payload_can_see(database):
    """A control: the marker is found in each table and each spelling."""

    async def body(w):
        texts = [MARKER.decode(), MARKER.hex()]
        texts += [base64.b64encode(b"x" * n + MARKER + b"yy").decode() for n in range(3)]
        for spelled in texts:
            async with w.engine.begin() as connection:
                await connection.execute(text("delete from outbox_dlq_history"))
                await connection.execute(
                    insert(w.tables["history"]).values(kind="noted", detail={"a": [spelled]})
                )
            assert await where_is(w) == {"outbox_dlq_history"}, spelled

    run_desk(database, body)
