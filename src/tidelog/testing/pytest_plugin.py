"""The pytest fixture ``tidelog_broker``, available in any project as soon as Tidelog is installed.

    def test_orders(tidelog_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": tidelog_broker.bootstrap_servers})

One broker per test session (with pytest-xdist: one per worker), started when the first test asks for it. Tests share it, so each
uses topics of its own. Its settings come from the fixture ``tidelog_configs``, which a project overrides in its conftest.py:

    @pytest.fixture(scope="session")
    def tidelog_configs():
        return {"num.partitions": 3}
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker


@pytest.fixture(scope="session")
def tidelog_configs() -> Mapping[str, object]:
    """Settings of the session's broker under Kafka's names; override this fixture."""
    return {}


@pytest.fixture(scope="session")
def tidelog_broker(tidelog_configs: Mapping[str, object]) -> "Iterator[Broker]":
    """A running broker in its own process, with temporary data, shared by the session's tests."""
    # Imported on use; see the package.
    from tidelog.testing.broker import Broker

    with Broker(configs=tidelog_configs) as broker:
        yield broker
