"""The admin client of confluent-kafka."""

from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.compatibility.clients.client import CALL_SECONDS_MAX, NOW
from tests.compatibility.clients.confluent_client import ConfluentClient
from tests.compatibility.clients.conftest import MakeTopic, topic_name
from tests.compatibility.clients.waiting import wait_until
from tests.compatibility.kafka_records import SentRecord
from tidelog.testing import Broker

NODE_ID = 1


def result(futures: Any) -> Any:
    """Of a call for one thing."""
    (future,) = futures.values()
    return future.result(CALL_SECONDS_MAX)


def code_of(futures: Any) -> str:
    with pytest.raises(KafkaException) as failed:
        result(futures)
    return str(failed.value.args[0].name())


def configs_of(admin: Any, resource_type: Any, name: str) -> dict[str, Any]:
    described: dict[str, Any] = result(admin.describe_configs([ConfigResource(resource_type, name)]))
    return described


def topic_config(admin: Any, topic: str, name: str) -> str:
    return str(configs_of(admin, ResourceType.TOPIC, topic)[name].value)


def test_create_describe_and_delete_a_topic(admin: Any, broker: Broker) -> None:
    name = topic_name("confluent-create")

    result(admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "60000"})]))
    described = result(admin.describe_topics(TopicCollection([name]), include_authorized_operations=True))
    listed = admin.list_topics(timeout=CALL_SECONDS_MAX)

    assert described.name == name
    assert not described.is_internal
    assert described.topic_id is not None
    assert described.authorized_operations
    partitions = [(each.id, each.leader.id, [node.id for node in each.replicas]) for each in described.partitions]
    assert partitions == [(index, NODE_ID, [NODE_ID]) for index in range(3)]
    assert sorted(listed.topics[name].partitions) == [0, 1, 2]
    assert topic_config(admin, name, "retention.ms") == "60000"

    result(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=CALL_SECONDS_MAX).topics
    assert code_of(admin.describe_topics(TopicCollection([name]))) == "UNKNOWN_TOPIC_OR_PART"
    assert code_of(admin.delete_topics([name])) == "UNKNOWN_TOPIC_OR_PART"


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "configs", "code"),
    [
        ("not a name", 1, 1, {}, "TOPIC_EXCEPTION"),
        ("x" * 250, 1, 1, {}, "TOPIC_EXCEPTION"),
        ("confluent-refused", 0, 1, {}, "INVALID_PARTITIONS"),
        ("confluent-refused", 1, 2, {}, "INVALID_REPLICATION_FACTOR"),
        ("confluent-refused", 1, 1, {"no.such.setting": "1"}, "INVALID_CONFIG"),
        ("confluent-refused", 1, 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
    ],
)
def test_topics_that_cannot_be(name: str, partitions: int, replicas: int, configs: dict[str, str], code: str, admin: Any) -> None:
    assert code_of(admin.create_topics([NewTopic(name, partitions, replicas, config=configs)])) == code
    assert name not in admin.list_topics(timeout=CALL_SECONDS_MAX).topics


def test_create_what_is_there_and_what_is_only_tried(admin: Any, new_topic: MakeTopic) -> None:
    name, tried = new_topic(), topic_name("confluent-tried")

    assert code_of(admin.create_topics([NewTopic(name, 1, 1)])) == "TOPIC_ALREADY_EXISTS"
    result(admin.create_topics([NewTopic(tried, 1, 1)], validate_only=True))
    assert tried not in admin.list_topics(timeout=CALL_SECONDS_MAX).topics


def test_create_partitions(admin: Any, broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic(partitions=2)

    result(admin.create_partitions([NewPartitions(name, 4)]))

    # Of several brokers, the one that is asked may hear of the new partitions a moment after they were created.
    wait_until(
        lambda: sorted(admin.list_topics(timeout=CALL_SECONDS_MAX).topics[name].partitions) == [0, 1, 2, 3],
        "four partitions",
        CALL_SECONDS_MAX,
    )
    client = ConfluentClient(broker.bootstrap_servers)
    client.send(name, [SentRecord(None, b"value", NOW)], partition=3)
    assert client.watermarks(name, 3) == (0, 1)
    assert code_of(admin.create_partitions([NewPartitions(name, 3)])) == "INVALID_PARTITIONS"


def test_topic_configs_with_source_and_synonyms(admin: Any, new_topic: MakeTopic) -> None:
    configs = configs_of(admin, ResourceType.TOPIC, new_topic(configs={"segment.bytes": 1048576}))

    segment, retention = configs["segment.bytes"], configs["retention.ms"]
    assert (segment.value, segment.source, segment.is_default) == ("1048576", ConfigSource.DYNAMIC_TOPIC_CONFIG.value, False)
    assert list(segment.synonyms) == ["segment.bytes", "log.segment.bytes"]
    assert (retention.value, retention.source, retention.is_default) == (
        "604800000",
        ConfigSource.DEFAULT_CONFIG.value,
        True,
    )
    assert not any(entry.is_read_only or entry.is_sensitive for entry in configs.values())


def test_broker_configs(admin: Any, broker: Broker) -> None:
    configs = configs_of(admin, ResourceType.BROKER, str(NODE_ID))

    check_interval = configs["log.retention.check.interval.ms"]
    assert (check_interval.value, check_interval.source) == ("200", ConfigSource.STATIC_BROKER_CONFIG.value)
    assert configs["inter.broker.protocol.version"].value
    assert configs["num.partitions"].value == "1"


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning")
def test_alter_configs_replaces_all(admin: Any, new_topic: MakeTopic) -> None:
    name = new_topic(configs={"segment.bytes": 1048576})

    result(admin.alter_configs([ConfigResource(ResourceType.TOPIC, name, {"retention.ms": "1000000"})]))

    assert topic_config(admin, name, "retention.ms") == "1000000"
    assert topic_config(admin, name, "segment.bytes") == "1073741824"


def test_incremental_alter_configs_changes_what_it_names(admin: Any, new_topic: MakeTopic) -> None:
    name = new_topic(configs={"segment.bytes": 1048576, "retention.ms": 1000000})

    def alter(setting: str, value: str | None, operation: Any) -> Any:
        entry = ConfigEntry(setting, value, incremental_operation=operation)
        return admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])])

    result(alter("retention.ms", "2000000", AlterConfigOpType.SET))
    result(alter("cleanup.policy", "compact", AlterConfigOpType.APPEND))
    assert topic_config(admin, name, "retention.ms") == "2000000"
    assert topic_config(admin, name, "cleanup.policy") == "delete,compact"
    assert topic_config(admin, name, "segment.bytes") == "1048576"

    result(alter("retention.ms", None, AlterConfigOpType.DELETE))
    result(alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    assert topic_config(admin, name, "retention.ms") == "604800000"
    assert topic_config(admin, name, "cleanup.policy") == "compact"

    assert code_of(alter("retention.ms", "soon", AlterConfigOpType.SET)) == "INVALID_CONFIG"


def test_configs_of_a_topic_that_is_not_there(admin: Any) -> None:
    assert code_of(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "nowhere")])) == "UNKNOWN_TOPIC_OR_PART"


def test_describe_cluster(admin: Any, broker: Broker) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(CALL_SECONDS_MAX)

    assert cluster.cluster_id
    assert cluster.controller.id == NODE_ID
    assert [(node.id, node.host, node.port) for node in cluster.nodes] == [(NODE_ID, "127.0.0.1", broker.port)]
    assert cluster.authorized_operations
    assert admin.list_topics(timeout=CALL_SECONDS_MAX).cluster_id == cluster.cluster_id


def test_delete_records(admin: Any, broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic()
    client = ConfluentClient(broker.bootstrap_servers)
    client.send(name, [SentRecord(None, str(number).encode(), NOW) for number in range(10)])

    assert result(admin.delete_records([TopicPartition(name, 0, 4)])).low_watermark == 4
    assert client.watermarks(name) == (4, 10)
    assert client.read(name, 1, offset=4)[0].value == b"4"
    # -1: everything up to the high watermark.
    assert result(admin.delete_records([TopicPartition(name, 0, -1)])).low_watermark == 10
    assert code_of(admin.delete_records([TopicPartition(name, 0, 11)])) == "OFFSET_OUT_OF_RANGE"


def test_list_offsets(admin: Any, broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic()
    client = ConfluentClient(broker.bootstrap_servers)
    for _ in range(3):
        client.send(name, [SentRecord(None, b"value", NOW)])
    times = [record.timestamp for record in client.read(name, 3)]
    where = TopicPartition(name, 0)

    def offset(spec: Any) -> int:
        return int(result(admin.list_offsets({where: spec}, isolation_level=IsolationLevel.READ_COMMITTED)).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.max_timestamp()) == times.index(max(times))
    assert offset(OffsetSpec.for_timestamp(times[0])) == 0
    assert offset(OffsetSpec.for_timestamp(times[2] + 1)) == -1


def test_acl_calls_say_that_security_is_disabled(admin: Any) -> None:
    what = (ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.READ)
    filter_ = AclBindingFilter(*what, AclPermissionType.ALLOW)

    # The error is in the response, as kafka-python shows; this client makes an empty list of it.
    assert admin.describe_acls(filter_).result(CALL_SECONDS_MAX) == []
    assert code_of(admin.create_acls([AclBinding(*what, AclPermissionType.ALLOW)])) == "SECURITY_DISABLED"
    assert code_of(admin.delete_acls([filter_])) == "SECURITY_DISABLED"
