"""A topic moves from broker to broker of a real cluster, one of which dies, while an idempotent producer writes to it.

The producer goes on by itself, every move ends, the brokers that a partition has left delete their copies, and in the end
everything that was acknowledged is there, once and in order.
"""

from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.load import COMMON, WAIT_SECONDS_MAX, wait_until
from tests.faults.test_replica_kills import PARTITIONS, TOPIC, writing
from tidelog.client.reassignment import ReassignmentAdmin
from tidelog.testing import Cluster

# One replica on another broker each time, then one more replica, then one less.
ROUNDS = ((1, 2), (2, 3), (3, 1), (1, 2, 3), (3, 2))


def has_copies(cluster: Cluster, wanted: dict[int, list[int]]) -> bool:
    """Whether these brokers, for each partition, have a log of it on their disks."""
    return wanted == {
        partition: [
            node_id for node_id, node in cluster.nodes.items() if (Path(node.data_path) / f"{TOPIC}-{partition}").exists()
        ]
        for partition in range(PARTITIONS)
    }


def test_nothing_acknowledged_is_lost_when_partitions_move_and_a_broker_dies() -> None:
    with Cluster(3) as cluster, ReassignmentAdmin(cluster.bootstrap_servers) as admin:
        librdkafka = AdminClient({**COMMON, "bootstrap.servers": cluster.bootstrap_servers})
        topic = NewTopic(TOPIC, PARTITIONS, 2, config={"min.insync.replicas": "1"})
        librdkafka.create_topics([topic])[TOPIC].result(WAIT_SECONDS_MAX)
        with writing(cluster) as writer:
            for number, replicas in enumerate(ROUNDS):
                admin.alter({(TOPIC, partition): replicas for partition in range(PARTITIONS)})
                if number == 2:
                    # The last leader of what is moving: another one takes over, and the move goes on when it is back.
                    cluster.kill(2)
                    cluster.restart(2)
                wait_until(lambda: not admin.ongoing(), "the moves have ended")
                wanted = dict.fromkeys(range(PARTITIONS), sorted(replicas))
                wait_until(partial(has_copies, cluster, wanted), "only the new replicas have a log")
        assert writer.problems == []
        found = writer.read_back(cluster.bootstrap_servers)
        assert not writer.differences(found)
