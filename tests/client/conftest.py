"""A broker that answers as a test wants, for all tests of the client."""

from collections.abc import Iterator

import pytest

from tests.client.wire.fake_broker import FakeBroker


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake
