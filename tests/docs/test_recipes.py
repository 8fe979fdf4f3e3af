"""The SQL that pages tell operators to run leads to the schema of this release."""

import asyncio
import re

import asyncpg
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from outlast import make_dlq_table, make_outbox_table
from outlast.stores.schema.validate import read_table, validate_schema
from tests.docs import pages


def sql_with(name, words):
    """The one SQL block of a page that contains these words."""
    found = [b.text for b in pages.blocks(pages.ROOT / name) if words in b.text]
    (text,) = found
    return text


def applied(url, metadata, *scripts):
    """Run scripts on the tables of the metadata; the advice, and the columns of the letters."""

    async def main():
        engine = create_async_engine(url)
        outbox, letters = make_outbox_table(metadata), make_dlq_table(MetaData())
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        plain = await asyncpg.connect(url.replace("+asyncpg", ""))
        for script in scripts:
            for statement in re.split(r";\s*$", script, flags=re.MULTILINE):
                if statement.strip():
                    await plain.execute(statement)
        kept = await plain.fetch("SELECT * FROM outbox_dlq")
        await plain.close()
        advice = await validate_schema(engine, outbox, letters)
        async with engine.connect() as connection:
            live = await read_table(connection, letters)
        await engine.dispose()
        return advice, set(live.columns), set(letters.c.keys()), kept

    return asyncio.run(main())


def test_a_partitioned_table_is_whole(page_postgres):
    """S0-53: every column and every index is there after the recipe."""
    metadata = MetaData()
    make_dlq_table(metadata)
    recipe = sql_with("docs/guides/dead-letters.md", "PARTITION BY RANGE")
    advice, live, wanted, _ = applied(page_postgres(), metadata, recipe)
    assert live == wanted
    assert advice == []


def test_old_letters_are_deleted(page_postgres):
    """S0-54: the daily job keeps what is younger than ninety days."""
    metadata = MetaData()
    make_dlq_table(metadata)
    letter = (
        "INSERT INTO outbox_dlq (original_id, queue, payload, deliveries_count, created_at, "
        "failed_at, failure_reason) VALUES ({0}, 'q', '', 1, now(), "
        "now() - interval '{0} days', 'rejected');\n"
    )
    letters = "".join(letter.format(days) for days in (1, 89, 91, 400))
    job = sql_with("docs/guides/dead-letters.md", "interval '90 days'")
    _, _, _, kept = applied(page_postgres(), metadata, letters, job)
    assert sorted(row["original_id"] for row in kept) == [1, 89]
