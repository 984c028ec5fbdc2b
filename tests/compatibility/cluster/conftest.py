"""The same clients on three brokers with three replicas of everything: their tests find a cluster instead of one broker."""

from collections.abc import Iterator

import pytest

from tests.compatibility.clients.conftest import CONFIGS, admin, client, client_of, new_topic, quiet_clients
from tests.compatibility.clients.groups.conftest import group, new_group
from tests.compatibility.clients.transactions.conftest import name, new_producer, new_reader, transactional_id
from tidelog.testing import Cluster

__all__ = [
    "admin",
    "client",
    "client_of",
    "group",
    "name",
    "new_group",
    "new_producer",
    "new_reader",
    "new_topic",
    "quiet_clients",
    "transactional_id",
]

REPLICATED = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
}
UNEXPECTED = ("unexpected_error", "failed")


@pytest.fixture(scope="session")
def broker() -> Iterator[Cluster]:
    with Cluster(3, configs={**CONFIGS, **REPLICATED}) as cluster:
        yield cluster
        events = [event for node in cluster.nodes.values() for event in node.events]
        assert [event for event in events if event["event"] in UNEXPECTED] == []
