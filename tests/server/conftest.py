"""A server for the tests of connections."""

from collections.abc import Iterator

import pytest

from tests.server.harness import RunningServer, running_server


@pytest.fixture
def running() -> Iterator[RunningServer]:
    with running_server() as server:
        yield server
