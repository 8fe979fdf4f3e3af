"""A page of a large dead-letter table costs what a page of a small one does."""

import asyncio
from datetime import UTC, datetime
from functools import partial

from outlast.policy.filter_text import parse
from tests.conftest import Database
from tests.plans.letters import ANN, Letters, letters

ROWS = 150_000
LIMIT = 100

INDEXED = (
    *("", "queue:q7", "group:v1:8f14e45fceea167a5a36dedd4bea2543", "message:77777"),
    *("id:5000", "since:2h", "until:3d", "queue:q7 since:2d", "state:replaying"),
)
LOOKED_THROUGH = (
    *("category:EXTERNAL", "category:POISON", "error:nothing", 'error:"bad thing 7"'),
    *("subscriber:shop.handler3", "owner:ann", "version:>=1.1", "-queue:q1", "replays:>=2"),
    *("queue:q7 category:EXTERNAL", "queue:q7 queue:q8", "event:none", "reason:rejected"),
    *("state:any", "state:resolved", "state:discarded", "state:any group:v1:no", "triage:x"),
)
SCANNED = ("body.n:77", "header.content-type:none")


def query(words: str):
    return parse(words, now=datetime.now(UTC))


async def costs(large: Letters, filters) -> dict[str, int]:
    found = {}
    for words in filters:
        call = partial(large.desk.list, ANN, query(words), limit=LIMIT)
        found[words] = await large.cost(call)
    return found


def test_a_page_costs_what_a_page_holds(lonely: Database) -> None:
    """S3-17 S3-18 S3-19 S3-20: by message, subscriber, error text and time, bounded reads."""

    async def main() -> None:
        large = await letters(lonely, ROWS, replaying=20_000)
        try:
            indexed = await costs(large, INDEXED)
            # a page, its total by an index, and the causes of 10,000 letters at most
            assert max(indexed.values()) < 12_000, indexed
            assert max(indexed["id:5000"], indexed["message:77777"], indexed["since:2h"]) < 700
            looked = await costs(large, LOOKED_THROUGH)
            # 10,000 letters are passed, thrice at most, whatever the table holds
            assert max(looked.values()) < 15_000, looked
        finally:
            await large.engine.dispose()

    asyncio.run(main())


def test_what_was_looked_at_is_said_and_the_cursor_goes_on(lonely: Database) -> None:
    """S3-19: nothing is hidden by the bound: page after page comes to every letter."""

    async def main() -> None:
        large = await letters(lonely, 50_000)
        try:
            asked, found, cursor, pages = query('error:"bad thing 7"'), [], None, 0
            while True:
                page = await large.desk.list(ANN, asked, limit=1000, after=cursor)
                found += [letter.id for letter in page.letters]
                assert page.at_least
                assert "looked at the newest 10,000 of 50,000" in page.notes
                cursor, pages = page.cursor, pages + 1
                if cursor is None:
                    break
            wanted = [n for n in range(50_000, 0, -1) if str(n % 300).startswith("7")]
            assert found == wanted
            assert pages == 5
        finally:
            await large.engine.dispose()

    asyncio.run(main())
