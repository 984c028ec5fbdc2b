"""confluent-kafka's ShareConsumer on three brokers: leaders keep their state with another broker, and write letters to others."""

import time
from collections import Counter

from confluent_kafka import AcknowledgeType, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.compatibility.clients.test_share_consumer import SECONDS_MAX, World, polled, text
from tidelog.testing import Cluster

DEAD = "jobs.dead"
REPLICATED = {
    "default.replication.factor": 3,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
    "share.coordinator.state.topic.num.partitions": 6,
    "min.insync.replicas": 2,
}


def test_nothing_settled_is_delivered_again_after_a_leader_was_killed_and_what_was_rejected_has_a_letter() -> None:
    with Cluster(3, configs=REPLICATED) as cluster:
        keeps_letters = {"errors.deadletterqueue.topic.name": DEAD, "errors.deadletterqueue.copy.record.enable": "true"}
        world = World(cluster, partitions=6, messages=600, replicas=3, settings=keeps_letters)
        topic = NewTopic(DEAD, 1, 3, config={"errors.deadletterqueue.group.enable": "true"})
        world.admin.create_topics([topic])[DEAD].result(SECONDS_MAX)
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
                    is_bad = text(message).endswith("7")
                    consumer.acknowledge(message, AcknowledgeType.REJECT if is_bad else AcknowledgeType.ACCEPT)
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
        assert letters(cluster) == {value for value in world.values if value.endswith("7")}
        events = [event for node in cluster.nodes.values() for event in node.events]
        assert [event for event in events if event["event"] in ("unexpected_error", "failed")] == []


def letters(cluster: Cluster) -> set[str]:
    """The values on the topic of dead letters; a crash may have written one twice."""
    found: set[str] = set()
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "reader",
        "log_level": 0,
        "enable.partition.eof": False,
    }
    consumer = Consumer(settings)
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(DEAD, 0), timeout=SECONDS_MAX)
        consumer.assign([TopicPartition(DEAD, 0, 0)])
        position = 0
        while position < end:
            for message in consumer.consume(500, timeout=1.0):
                assert message.error() is None, message.error()
                headers = dict(message.headers())
                assert headers["__dlq.errors.message"] == b"The record was rejected by a member of the group."
                found.add(text(message))
                position = message.offset() + 1
    finally:
        consumer.close()
    return found


def cluster_leader(world: World, partition: int) -> int:
    """The broker that leads a partition of the topic."""
    topic = world.admin.list_topics(world.topic, timeout=SECONDS_MAX).topics[world.topic]
    return int(topic.partitions[partition].leader)
