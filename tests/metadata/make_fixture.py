"""Makes the fixture of ``test_kafka_fixture.py``, once, by hand: ``python -m tests.metadata.make_fixture``.

Apache Kafka creates topics, grows one, alters and removes settings, deletes a topic, hands out producer ids and restarts once,
so that its metadata log holds every kind of record that a single broker writes. What its own admin client then says is the
expectation. The broker is killed at the end: a clean stop would take the leaders away after the client has looked.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    ResourceType,
)

from tests.compatibility.apache_kafka import NODE_ID, ApacheKafka
from tests.compatibility.kafka_client import CALL_SECONDS_MAX, admin_client, create_topic, make_producer, send
from tests.compatibility.kafka_records import SentRecord
from tests.metadata.kafka_fixture import EXPECTED_PATH, LOG_PATH, QUORUM_STATE_PATH

TOPICS = ("compacted", "emptied", "grown", "plain", "settings")


def change(admin: AdminClient, kind: ResourceType, name: str, **operations: tuple[AlterConfigOpType, str]) -> None:
    entries = [
        ConfigEntry(setting.replace("_", "."), value, incremental_operation=operation)
        for setting, (operation, value) in operations.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(CALL_SECONDS_MAX)


def write_metadata(kafka: ApacheKafka) -> None:
    admin = admin_client(kafka.bootstrap_servers)
    create_topic(admin, "plain")
    create_topic(admin, "compacted", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}, partitions=2)
    create_topic(admin, "settings", {"retention.ms": "60000", "compression.type": "zstd"}, partitions=3)
    create_topic(admin, "emptied", {"retention.bytes": "1000"})
    create_topic(admin, "grown")
    create_topic(admin, "gone", {"retention.ms": "1000"}, partitions=2)
    setting, deleting = AlterConfigOpType.SET, AlterConfigOpType.DELETE
    change(admin, ResourceType.TOPIC, "settings", retention_ms=(setting, "120000"), flush_messages=(setting, "5"))
    change(admin, ResourceType.TOPIC, "compacted", cleanup_policy=(AlterConfigOpType.APPEND, "delete"))
    change(admin, ResourceType.TOPIC, "emptied", retention_bytes=(deleting, ""))
    change(admin, ResourceType.BROKER, str(NODE_ID), log_cleaner_threads=(setting, "2"))
    admin.create_partitions([NewPartitions("grown", 4)])["grown"].result(CALL_SECONDS_MAX)
    admin.delete_topics(["gone"])["gone"].result(CALL_SECONDS_MAX)
    producer = make_producer(kafka.bootstrap_servers, **{"enable.idempotence": "true"})
    send(producer, "plain", [SentRecord(b"key", b"value", 1_700_000_000_000)])


def describe(kafka: ApacheKafka) -> dict[str, Any]:
    admin = admin_client(kafka.bootstrap_servers)
    topics: dict[str, Any] = {}
    described = admin.describe_topics(TopicCollection(list(TOPICS)))
    for name in TOPICS:
        topic = described[name].result(CALL_SECONDS_MAX)
        topics[name] = {
            "topic_id": str(topic.topic_id),
            "partitions": [
                {
                    "partition": partition.id,
                    "leader": partition.leader.id,
                    "replicas": [node.id for node in partition.replicas],
                    "isr": [node.id for node in partition.isr],
                }
                for partition in topic.partitions
            ],
            "configs": configs(admin, ResourceType.TOPIC, name, ConfigSource.DYNAMIC_TOPIC_CONFIG),
        }
    broker = configs(admin, ResourceType.BROKER, str(NODE_ID), ConfigSource.DYNAMIC_BROKER_CONFIG)
    listed = sorted(admin.list_topics(timeout=CALL_SECONDS_MAX).topics)
    return {"topics": topics, "broker_configs": broker, "listed": listed, "node_id": NODE_ID, "port": kafka.port}


def configs(admin: AdminClient, kind: ResourceType, name: str, source: ConfigSource) -> dict[str, str]:
    resource = ConfigResource(kind, name)
    entries = admin.describe_configs([resource])[resource].result(CALL_SECONDS_MAX)
    return {entry.name: entry.value for entry in entries.values() if entry.source == source.value}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-kafka-") as root:
        kafka = ApacheKafka(Path(root))
        with kafka:
            write_metadata(kafka)
        with kafka:
            expected = describe(kafka)
            kafka.kill()
        partition = kafka.metadata_directory / "__cluster_metadata-0"
        shutil.copy(partition / "00000000000000000000.log", LOG_PATH)
        shutil.copy(partition / "quorum-state", QUORUM_STATE_PATH)
    EXPECTED_PATH.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
