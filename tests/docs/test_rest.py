"""The page on the REST API: its calls reach a server, and what it says is what the code has."""

import re

import pytest

from outlast.api import ApiOptions, metrics
from outlast.stores.desk.numbers import TOP_CAUSES
from tests.docs import pages
from tests.docs.rest import Rest
from tests.docs.runner import Broken, Page

PAGE = pages.ROOT / "docs" / "operate" / "rest.md"
TEXT = PAGE.read_text("utf-8")


def test_every_documented_curl_call_succeeds(tmp_path, monkeypatch, page_postgres):
    """S2-39: what a runbook would copy is run, against a server of its own."""
    monkeypatch.chdir(tmp_path)
    made = []
    call = Rest.curl

    def counting(self, arguments):
        made.append(call(self, arguments))
        return made[-1]

    monkeypatch.setattr(Rest, "curl", counting)
    Page(PAGE, tmp_path, page_postgres).run()
    written = re.findall(r"^curl ", TEXT, re.MULTILINE)
    assert len(made) == len(written) >= 20
    assert any('"replayed":true' in answer for answer in made)
    assert any("outlast_dlq_depth{" in answer for answer in made)


@pytest.mark.parametrize(
    "call",
    [
        "http://127.0.0.1:8787/health/nothing",
        "http://127.0.0.1:8787/api/dlq",
        "https://example.org/",
        "http://127.0.0.1:8787.example.org/",
    ],
)
def test_a_call_that_fails_is_seen(tmp_path, page_postgres, call):
    page = tmp_path / "page.md"
    page.write_text(f"```sh\ncurl {call}\n```\n", "utf-8")
    with pytest.raises(Broken):
        Page(page, tmp_path, page_postgres).run()


def test_the_limits_and_names_on_the_page():
    options = ApiOptions()
    assert f"more than {options.requests_max} requests at once, or {options.heavy_max}" in TEXT
    assert f"at most {options.bulk_max:,} letters" in TEXT
    assert f"more than {metrics.QUEUES_MAX} queues and categories" in TEXT
    assert f"the {TOP_CAUSES} commonest causes" in TEXT
    for name in re.findall(r"`outlast_(dlq_\w+)`", TEXT):
        assert name.removeprefix("dlq_") in {
            *("depth", "oldest_age_seconds", "arrivals", "causes", "letters")
        }
