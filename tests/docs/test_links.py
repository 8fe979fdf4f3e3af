"""Links between pages lead somewhere, and every page can be reached."""

import re

import pytest

from outlast.stores.schema.compare import MANUAL_PAGE
from tests.docs import pages

PAGES = pages.pages()
OUTSIDE = re.compile(r"^[a-z]+:")


def dead_links(page):
    dead = []
    for link in pages.links(page):
        if OUTSIDE.match(link):
            continue
        target, _, fragment = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (
            fragment and (file.suffix != ".md" or fragment not in pages.anchors(file))
        ):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=pages.name_of)
def test_links_lead_somewhere(page):
    assert not dead_links(page)


def test_every_page_is_in_the_index():
    index = pages.ROOT / "docs" / "README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in pages.links(index)}
    documents = {page for page in PAGES if page.is_relative_to(pages.ROOT / "docs")}
    missing = [
        pages.name_of(page)
        for page in documents - listed - {index}
        if "decisions" not in page.parts
    ]
    assert not missing


def test_the_page_that_an_error_names_exists():
    target, _, fragment = MANUAL_PAGE.partition("#")
    assert fragment in pages.anchors(pages.ROOT / target)


def test_a_dead_link_is_seen(tmp_path):
    (tmp_path / "other.md").write_text("# Here it is: `code`, and more\n", "utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](gone.md) [c](other.md#here-it-is-code-and-more) [d](other.md#gone) "
        "[e](https://example.org) `[f](code.md)`\n\n```text\n[g](block.md)\n```\n",
        "utf-8",
    )
    assert dead_links(page) == ["gone.md", "other.md#gone"]
