"""The pytest fixtures ``tidelog_broker``, ``tidelog_topic`` and ``tidelog_cluster``, for any project that has Tidelog installed.

    def test_orders(tidelog_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": tidelog_broker.bootstrap_servers})

One broker per test session (with pytest-xdist: one per worker), started when the first test asks for it. Tests share it, so each
uses topics of its own: ``tidelog_topic`` is the name of a fresh one for each test, with the broker's default of partitions. The
broker's settings come from the fixture ``tidelog_configs``, which a project overrides in its conftest.py:

    @pytest.fixture(scope="session")
    def tidelog_configs():
        return {"num.partitions": 3}

``tidelog_cluster`` is a cluster of three brokers with the same settings, and of its own for each test, because tests kill its
nodes and cut its links. When such a test fails, the report has the last output of every node.
"""

import re
import secrets
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker
    from tidelog.testing.cluster import Cluster


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


@pytest.fixture
def tidelog_topic(tidelog_broker: "Broker", request: pytest.FixtureRequest) -> "Iterator[str]":
    """The name of a topic that is fresh for each test, and deleted after it."""
    # Imported on use; see the package.
    from tidelog.client.admin import Admin

    # Topics have names of letters, digits, dots, - and _, 249 at most; a test's name tells whose it is.
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:100].strip("-.")
    name = f"{words}-{secrets.token_hex(4)}"
    with Admin(tidelog_broker.bootstrap_servers) as admin:
        admin.create_topic(name)
    yield name
    # A test may have stopped the broker, which takes the topic with it at the end of the session.
    if tidelog_broker.is_running:
        with Admin(tidelog_broker.bootstrap_servers) as admin:
            admin.delete_topic(name, missing_ok=True)


@pytest.fixture
def tidelog_cluster(tidelog_configs: Mapping[str, object]) -> "Iterator[Cluster]":
    """Three running brokers, one process each, with temporary data, for one test."""
    # Imported on use; see the package.
    from tidelog.testing.cluster import Cluster

    with Cluster(configs=tidelog_configs) as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the output of the nodes to the report of a test that failed."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("tidelog_cluster")
    if report.failed and cluster is not None:
        report.sections.append(("Output of the Tidelog nodes", cluster.output()))
    return report
