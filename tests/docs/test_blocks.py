"""Every code block of the documents runs, page by page, in its order."""

from pathlib import Path

import pytest

from tests.docs import pages, runner
from tests.docs.runner import NOT_CODE, Broken, Page

NOT_RUN_MAX = 3

# the other pages at the top are for those who change the code
PAGES = [p for p in pages.pages() if p.parent != pages.ROOT or p.name == "README.md"]


# tests/docs/test_operators.py runs it, and looks at what it has led to
ELSEWHERE = {"docs/operate/runbook.md"}


def runs(page: Path) -> bool:
    return any(b.language not in NOT_CODE and b.not_run is None for b in pages.blocks(page))


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if runs(p) and pages.name_of(p) not in ELSEWHERE],
    ids=pages.name_of,
)
def test_a_page_runs(page, tmp_path, monkeypatch, page_postgres):
    monkeypatch.chdir(tmp_path)
    Page(page, tmp_path, page_postgres).run()


def test_hardly_a_block_is_left_out():
    left_out = [
        f"{pages.name_of(page)}:{block.line}: {block.not_run}"
        for page in PAGES
        for block in pages.blocks(page)
        if block.not_run is not None
    ]
    assert len(left_out) <= NOT_RUN_MAX, left_out


def test_the_promised_pages_have_code():
    promised = ["README.md", "docs/start/quickstart.md", "docs/guides/faststream.md"]
    assert all(runs(pages.ROOT / name) for name in promised)


def test_the_read_me_is_short():
    assert len((pages.ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


# -- the harness can see


def planted(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    return page


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nassert 1 == 2\n```\n", AssertionError),
        ("```python\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\nfrom outlast import no_such_name\n```\n", AttributeError | ImportError),
        ("```python\na = 1\n```\n\n```python\nassert a == 2\n```\n", AssertionError),
        ("```\nno language\n```\n", Broken),
        ("```ruby\nputs 1\n```\n", Broken),
        ("```toml\na = \n```\n", ValueError),
        ("```sh\ncurl example.org\n```\n", Broken),
        ("```sh\nmake no-such-target\n```\n", Broken),
        ("```sh\npip install 'outlast[no-such-extra]'\n```\n", Broken),
        ("```sh\noutlast no-such-verb\n```\n", Broken),
        ("```console\nno prompt\n```\n", Broken),
        ("```python\nnever closed\n", ValueError),
    ],
)
def test_a_broken_page_is_seen(tmp_path, page_postgres, text, error):
    expected = error if isinstance(error, type) else error.__args__
    with pytest.raises(expected):
        Page(planted(tmp_path, text), tmp_path, page_postgres).run()


@pytest.mark.parametrize(
    "wait",
    ["await asyncio.Event().wait()", "asyncio.run(asyncio.Event().wait())"],
)
def test_a_block_that_waits_for_ever_is_ended(tmp_path, monkeypatch, page_postgres, wait):
    monkeypatch.setattr(runner, "PATIENCE_SECONDS", 0.1)
    page = planted(tmp_path, f"```python\nimport asyncio\n{wait}\n```\n")
    with pytest.raises((Broken, TimeoutError)):
        Page(page, tmp_path, page_postgres).run()


def test_a_page_is_one_module_and_one_loop(tmp_path, page_postgres):
    text = (
        "```python\nimport asyncio\nloop = asyncio.get_running_loop()\nawait asyncio.sleep(0)\n"
        "```\n\n<!-- not run: a planted one -->\n```python\n1 / 0\n```\n\n"
        "```python\nawait asyncio.sleep(0)\nassert asyncio.get_running_loop() is loop\n```\n\n"
        "```text\nnot code\n```\n"
    )
    page = Page(planted(tmp_path, text), tmp_path, page_postgres)
    page.run()
    assert page.ran == 2


def test_a_url_of_postgresql_is_the_tests_own(tmp_path, monkeypatch, page_postgres):
    monkeypatch.chdir(tmp_path)
    text = (
        "```python\nopen('url', 'w').write('postgresql+asyncpg://me@example.org/app')\n```\n\n"
        "```sql\nCREATE TABLE t (n int);\nINSERT INTO t VALUES (1);\n```\n"
    )
    Page(planted(tmp_path, text), tmp_path, page_postgres).run()
    assert (tmp_path / "url").read_text() == page_postgres()
    assert "example.org" not in page_postgres()


def test_commands_run_in_the_pages_directory(tmp_path, page_postgres):
    text = "```sh\noutlast demo --seconds 30 --file shop.db\nsqlite3 shop.db 'select 1'\n```\n"
    Page(planted(tmp_path, text), tmp_path, page_postgres).run()
    assert (tmp_path / "shop.db").exists()
