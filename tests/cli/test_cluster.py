"""``tidelog cluster`` on a real broker."""

from tests.cli.command import Command
from tidelog.testing import Broker


def test_describe(command: Command, topic: str, tidelog_broker: Broker) -> None:
    (document,) = command("cluster", "describe", "--json").documents
    assert document["cluster_id"] == tidelog_broker.events[0]["cluster_id"]
    assert document["controller"] == 1
    assert document["topics"] >= 1
    (broker,) = document["brokers"]
    assert (broker["id"], broker["host"], broker["port"]) == (1, "127.0.0.1", tidelog_broker.port)
    assert broker["leads"] == document["partitions"] >= 2
    lines = command("cluster", "describe").lines
    assert lines[0].startswith(f"Cluster {document['cluster_id']}: ")
    assert any(f"127.0.0.1:{tidelog_broker.port}" in line and "yes" in line for line in lines)
