"""What no database could store of a worker is refused before the first message."""

import pytest

from outlast.engine.options import EngineOptions


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"consumer_version": 7}, TypeError),
        ({"consumer_version": "1.0\x00"}, ValueError),
        ({"consumer_version": "\ud800"}, ValueError),
        ({"consumer_version": "v" * 256}, ValueError),
        ({"consumer_instance": "pod\x00"}, ValueError),
        ({"consumer_instance": None}, TypeError),
    ],
)
def test_a_name_that_would_refuse_every_dead_letter(given, error):
    name = next(iter(given))
    with pytest.raises(error, match=name):
        EngineOptions(**({"consumer_instance": "pod:1"} | given))


def test_long_host_names_and_no_version_are_fine():
    assert EngineOptions(consumer_instance="h" * 400).consumer_version is None
    assert EngineOptions(consumer_instance="h", consumer_version="v" * 255)
