"""The rights that the page tells owners to grant are enough for each role, and no more."""

import re
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.model.edit import Edit
from outlast.model.errors import CannotWrite
from outlast.model.outcome import ACK
from outlast.ops import SCOPES, Actor
from outlast.ops.replaying import ReplayOptions
from outlast.policy.retry import NoRetry
from outlast.publish.run import OutboxWriter
from outlast.stores.postgres.store import PostgresStore
from tests.contract.desks import ANN, run_desk
from tests.contract.test_interleavings import engine_over, until
from tests.docs import pages

PAGE = pages.ROOT / "docs" / "operate" / "rights.md"
ROLES = ("producer", "worker", "reader", "operator")
TABLES = ("outbox", "outbox_dlq", "outbox_dlq_history", "outbox_dlq_revision", "outbox_worker")
FAST = {"min_fetch_interval": 0.05, "max_fetch_interval": 0.2, "retry_strategy": NoRetry()}


class Roles:
    """`engines` of the four roles, which have what the page grants; `owner` is another."""

    def __init__(self, world):
        self.world, self.owner = world, world.engine
        self.names = {role: f"{role}_{uuid4().hex[:12]}" for role in ROLES}
        self.engines = {}

    async def make(self):
        (block,) = (b for b in pages.blocks(PAGE) if b.language == "sql")
        script = re.sub(r"outlast_(\w+)", lambda found: self.names[found[1]], block.text)
        script = script.replace("SCHEMA public", f"SCHEMA {self.world.database.schema}")
        for statement in re.split(r";\s*$", script, flags=re.MULTILINE):
            if statement.strip():
                await self.as_owner(statement)
        for role, name in self.names.items():
            url = make_url(self.world.database.url).set(username=name)
            arguments = self.world.database.connect_args
            self.engines[role] = create_async_engine(url, connect_args=arguments)

    async def drop(self):
        for engine in self.engines.values():
            await engine.dispose()
        for name in self.names.values():
            await self.as_owner(f"DROP OWNED BY {name}")
            await self.as_owner(f"DROP ROLE {name}")

    async def as_owner(self, statement):
        async with self.owner.begin() as connection:
            await connection.execute(text(statement))

    async def run(self, role, statement):
        async with self.engines[role].begin() as connection:
            return (await connection.execute(text(statement))).rowcount

    async def refuses(self, role, statement, names=""):
        with pytest.raises(DBAPIError) as refused:
            await self.run(role, statement)
        assert "permission denied" in str(refused.value) or "must be owner" in str(refused.value)
        assert names in str(refused.value)

    @asynccontextmanager
    async def store(self):
        store = PostgresStore(self.engines["worker"], self.world.outbox, self.world.dlq)
        await store.open(lambda _queue: None)
        try:
            yield store
        finally:
            await store.close()


def with_roles(postgres, body):
    async def made(world):
        roles = Roles(world)
        try:
            await roles.make()
            await body(world, roles)
        finally:
            await roles.drop()

    run_desk(postgres, made)


async def published(roles, timer_id=None):
    async with roles.engines["producer"].begin() as connection:
        await OutboxWriter(roles.world.outbox).insert(
            connection, queue="q", payload=b'{"n": 1}', headers={"a": "b"}, timer_id=timer_id
        )


def test_the_loop_of_a_message_runs_with_these_rights(postgres):
    """F-K18: published, dead, looked at, mended, replayed, delivered: each by its own role."""
    handled = []

    async def deliver(delivery):
        handled.append(delivery.payload)
        if delivery.payload == b'{"n": 1}':
            raise KeyError("isbn")
        return ACK

    async def body(w, roles):
        reader = w.make_desk(roles.engines["reader"])
        desk = w.make_desk(roles.engines["operator"])
        await published(roles)
        await published(roles, timer_id="t")
        async with roles.engines["producer"].begin() as connection:
            batch = [(b'{"n": 1}', {"a": "b"})] * 3
            await OutboxWriter(w.outbox).insert_batch(connection, queue="q", rows=batch)
        async with roles.store() as store, engine_over(store, ("h", "q", deliver, FAST)):

            async def five():
                return len(await w.letters()) == 5

            await until(five)
            page = await reader.list(Actor("eve", frozenset({"inspect"})))
            ids = sorted(letter.id for letter in page.letters)
            for look in (reader.groups, reader.stats, reader.workers, reader.subscriptions):
                assert await look(ANN)
            assert [part async for part in reader.export(ANN)]
            assert (await reader.inspect(ANN, ids[0])).letter.id == ids[0]
            await desk.edit(ANN, ids[0], Edit(payload=b'{"n": 2}'), reason="typo")
            assert (await desk.replay(ANN, ids[:2])).replayed == 2
            waited = await desk.wait_for_outcome(ANN, ids[:2], 10)
            assert waited.outcomes == {ids[0]: "succeeded", ids[1]: "failed_again"}
        await desk.mark(ANN, ids[1:2], note="seen")
        assert (await desk.purge(ANN, ids[2:3])).done == 1
        assert (await desk.restore(ANN, ids[2:3])).done == 1
        assert (await desk.purge(ANN, [ids[0]], hard=True)).done in {0, 1}
        exported = [part async for part in desk.export(ANN, reveal=True, reason="move")]
        assert (await desk.purge(ANN, ids[3:4], hard=True)).done == 1
        assert (await desk.import_letters(ANN, "".join(exported))).imported == 1
        (sent,) = (await desk.replay(ANN, ids[4:5], ReplayOptions(reason="r"))).results
        (taken,) = await desk.outbox_cancel(ANN, [sent.row_id])
        assert taken.outcome == "recalled"
        once = Actor("api", SCOPES, "r-1")

        async def run():
            return {"answer": 1}

        for _ in range(2):
            assert (await desk.once(once, "replayed", {}, run))["answer"] == 1
        kinds = {entry.kind for entry in await w.told()}
        assert {"edited", "replayed", "resolved", "replay_failed", "imported"} <= kinds
        await desk.sweep(ANN)
        await desk.reconcile(ANN)

    with_roles(postgres, body)


def test_what_a_role_need_not_do_it_cannot(postgres):
    """F-K18: no superuser, no DDL; a producer reads no payload; what is missing is named."""

    async def body(w, roles):
        letter_id = await w.plant()
        await published(roles)
        names = ", ".join(f"'{name}'" for name in roles.names.values())
        async with w.engine.connect() as connection:
            mighty = f"SELECT rolname FROM pg_roles WHERE rolname IN ({names}) AND (rolsuper OR "
            rest = "rolcreatedb OR rolcreaterole OR rolbypassrls OR rolreplication)"
            assert (await connection.execute(text(mighty + rest))).all() == []
        for role in ROLES:
            for table in TABLES:
                await roles.refuses(role, f"DROP TABLE {table}")
                await roles.refuses(role, f"ALTER TABLE {table} ADD x int")
                await roles.refuses(role, f"TRUNCATE {table}")
            await roles.refuses(role, "CREATE TABLE mine (n int)")
        for column in ("payload", "headers", "*"):
            await roles.refuses("producer", f"SELECT {column} FROM outbox", "outbox")
        for change in ("DELETE FROM outbox", "UPDATE outbox SET queue = 'x'"):
            await roles.refuses("producer", change, "outbox")
        for table in TABLES[1:]:
            await roles.refuses("producer", f"SELECT 1 FROM {table}", table)
        await roles.refuses("worker", "DELETE FROM outbox_dlq", "outbox_dlq")
        await roles.refuses("worker", "SELECT 1 FROM outbox_dlq_revision", "outbox_dlq_revision")
        await roles.refuses("worker", "SELECT 1 FROM outbox_dlq_history", "outbox_dlq_history")
        for table in TABLES:
            await roles.refuses("reader", f"DELETE FROM {table}", table)
        with pytest.raises(CannotWrite, match="permission denied for table outbox"):
            await w.make_desk(roles.engines["reader"]).replay(ANN, [letter_id])
        revoked = f"REVOKE INSERT ON outbox_dlq_revision FROM {roles.names['operator']}"
        await roles.as_owner(revoked)
        desk = w.make_desk(roles.engines["operator"])
        with pytest.raises(CannotWrite, match="outbox_dlq_revision"):
            await desk.edit(ANN, letter_id, Edit(payload=b"{}"))
        assert (await w.one(letter_id))["state"] == "open"

    with_roles(postgres, body)


def test_a_worker_that_may_write_no_dead_letter_says_so_and_loses_nothing(postgres, caplog):
    """F-K18: the log names the table; the message stays until the right is there."""

    async def fails(_delivery):
        raise KeyError("isbn")

    async def body(w, roles):
        right, worker = "INSERT ON outbox_dlq", roles.names["worker"]
        await roles.as_owner(f"REVOKE {right} FROM {worker}")
        await published(roles)
        settings = FAST | {"lease_ttl_seconds": 10.0}
        async with roles.store() as store, engine_over(store, ("h", "q", fails, settings)) as one:

            async def told():
                return [tags for name, tags in one.events if name == "dlq_write_failed"]

            await until(told)
        assert "permission denied for table outbox_dlq" in caplog.text
        assert len(await w.rows()) == 1
        assert await w.letters() == []

    with_roles(postgres, body)


def test_nobody_changes_what_the_history_tells_or_when(postgres):
    """F-K17: acts stay as they were written, at the server's time; the client gives none."""

    async def body(w, roles):
        desk = w.make_desk(roles.engines["operator"])
        letter_id = await w.plant()
        before = await w.now()
        await desk.mark(ANN, [letter_id], note="seen")
        await desk.replay_all(ANN, everything=True)
        once = Actor("api", SCOPES, "r-1")

        async def run():
            return {"answer": 1}

        await desk.once(once, "replayed", {}, run)
        history = await w.told()
        assert {entry.kind for entry in history} == {"noted", "replayed"}
        after = await w.now()
        assert all(before <= entry.at <= after for entry in history)
        acts = [entry for entry in history if entry.request_id is None]
        assert len(acts) == 3
        given = "INSERT INTO outbox_dlq_history (kind, at) VALUES ('noted', '2020-01-01')"
        for role in ROLES:
            await roles.refuses(role, given, "outbox_dlq_history")
            await roles.refuses(role, "UPDATE outbox_dlq_history SET actor = 'bob'")
            await roles.refuses(role, "UPDATE outbox_dlq_history SET at = '2020-01-01'")
        for role in ("producer", "worker", "reader"):
            await roles.refuses(role, "DELETE FROM outbox_dlq_history")
            await roles.refuses(role, "UPDATE outbox_dlq_history SET detail = NULL")
        # of the operator's, the policies let through the kept answer only
        assert await roles.run("operator", "UPDATE outbox_dlq_history SET detail = '{}'") == 1
        assert await roles.run("operator", "DELETE FROM outbox_dlq_history") == 1
        assert await w.told() == acts

    with_roles(postgres, body)
