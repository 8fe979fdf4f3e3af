"""Testing without a database."""

from outlast.faststream.fake_client import FakeOutboxClient
from outlast.faststream.testing import TestOutboxBroker, fake_session

__all__ = ["FakeOutboxClient", "TestOutboxBroker", "fake_session"]
