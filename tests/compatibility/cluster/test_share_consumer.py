"""confluent-kafka's ShareConsumer on three brokers: leaders keep their state with a coordinator that is another broker."""

import time
from collections import Counter

from confluent_kafka import KafkaException

from tests.compatibility.clients.test_share_consumer import SECONDS_MAX, World, polled, text
from tidelog.testing import Cluster

REPLICATED = {
    "default.replication.factor": 3,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
    "share.coordinator.state.topic.num.partitions": 6,
    "min.insync.replicas": 2,
}


def test_nothing_acknowledged_is_delivered_again_after_a_leader_was_killed() -> None:
    with Cluster(3, configs=REPLICATED) as cluster:
        world = World(cluster, partitions=6, messages=600, replicas=3)
        settled: set[str] = set()
        delivered_again: set[str] = set()
        handled: Counter[str] = Counter()
        killed = None
        with world.explicit_member() as consumer:
            deadline = time.monotonic() + SECONDS_MAX
            while handled.keys() != world.values:
                assert time.monotonic() < deadline, f"{len(handled)} of {len(world.values)}; {cluster.output()}"
                messages = polled(consumer)
                delivered_again |= settled & set(map(text, messages))
                for message in messages:
                    consumer.acknowledge(message)
                try:
                    errors = consumer.commit_sync()
                except KafkaException:
                    continue
                # Only what was answered counts as settled; the rest comes again.
                refused = {(each.topic, each.partition) for each, error in errors.items() if error is not None}
                answered = [each for each in messages if (each.topic(), each.partition()) not in refused]
                settled.update(map(text, answered))
                handled.update(map(text, answered))
                if killed is None and len(settled) >= 100:
                    killed = cluster_leader(world, messages[0].partition())
                    cluster.kill(killed)
        assert killed is not None
        assert not delivered_again, "acknowledged, and delivered again"
        events = [event for node in cluster.nodes.values() for event in node.events]
        assert [event for event in events if event["event"] in ("unexpected_error", "failed")] == []


def cluster_leader(world: World, partition: int) -> int:
    """The broker that leads a partition of the topic."""
    topic = world.admin.list_topics(world.topic, timeout=SECONDS_MAX).topics[world.topic]
    return int(topic.partitions[partition].leader)
