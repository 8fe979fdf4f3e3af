"""The largest body that is let through, all the way to its handler."""

import asyncio
import hashlib
import os
import resource

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession

from outlast import OutboxBroker, make_dlq_table, make_outbox_table
from outlast.publish.plan import BODY_BYTES_MAX


def test_the_largest_body_arrives_whole(database):
    """F-F05: 64 MiB are stored and delivered; memory grows by a few bodies, not by many."""

    async def body(engine):
        metadata = MetaData()
        outbox, letters = make_outbox_table(metadata), make_dlq_table(metadata)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        broker = OutboxBroker(engine, outbox_table=outbox, dlq_table=letters, logger=None)
        digests, done = [], asyncio.Event()

        @broker.subscriber("q", fetch_batch_size=1)
        async def handle(body: bytes) -> None:
            digests.append(hashlib.sha256(body).hexdigest())
            done.set()

        payload = os.urandom(1 << 20) * (BODY_BYTES_MAX >> 20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with AsyncSession(engine) as session, session.begin():
            await broker.publish(payload, queue="q", session=session)
        async with broker, asyncio.timeout(60):
            await done.wait()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert digests == [hashlib.sha256(payload).hexdigest()]
        # in KiB; publishing and receiving each hold the body a few times
        assert grown < 10 * (BODY_BYTES_MAX >> 10)

    database.run(body)
