"""The admin client of kafka-python."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    OffsetSpec,
    ResourcePattern,
    ResourceType,
)
from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    OffsetOutOfRangeError,
    SecurityDisabledError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import DescribeConfigsRequest

from tests.compatibility.clients.client import NOW
from tests.compatibility.clients.conftest import MakeTopic, topic_name
from tests.compatibility.clients.kafka_python_client import KafkaPythonClient
from tests.compatibility.kafka_records import SentRecord
from tidelog.testing import Broker

NODE_ID = 1


@pytest.fixture(scope="module")
def kafka_python_admin(broker: Broker) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        yield admin


def topic_configs(admin: Any, topic: str) -> dict[str, dict[str, Any]]:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    described = admin.describe_configs([resource], include_synonyms=True, config_filter="all")
    configs: dict[str, dict[str, Any]] = described["topic"][topic]
    return configs


def test_create_describe_and_delete_a_topic(kafka_python_admin: Any) -> None:
    admin, name = kafka_python_admin, topic_name("kafka-python-create")
    new = {name: {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "60000"}}}

    admin.create_topics(new)
    (described,) = admin.describe_topics([name])

    assert described["name"] == name
    assert [(each["partition_index"], each["leader_id"]) for each in described["partitions"]] == [(n, NODE_ID) for n in range(3)]
    assert topic_configs(admin, name)["retention.ms"]["value"] == "60000"
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics(new)

    admin.delete_topics([name])
    assert name not in admin.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([name])


def test_a_topic_with_a_bad_setting_is_refused(kafka_python_admin: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"retention\.ms"):
        kafka_python_admin.create_topics({"kafka-python-refused": {"num_partitions": 1, "configs": {"retention.ms": "soon"}}})


def test_create_partitions(kafka_python_admin: Any, new_topic: MakeTopic) -> None:
    name = new_topic(partitions=2)

    kafka_python_admin.create_partitions({name: 4})

    (described,) = kafka_python_admin.describe_topics([name])
    assert len(described["partitions"]) == 4
    with pytest.raises(InvalidPartitionsError):
        kafka_python_admin.create_partitions({name: 4})


def test_describe_topic_partitions_in_pages(kafka_python_admin: Any, new_topic: MakeTopic) -> None:
    name = new_topic(partitions=5)

    first = kafka_python_admin.describe_topic_partitions([name], response_partition_limit=3)

    assert [each["partition_index"] for each in first["topics"][0]["partitions"]] == [0, 1, 2]
    rest = kafka_python_admin.describe_topic_partitions([name], response_partition_limit=3, cursor=first["next_cursor"])
    assert [each["partition_index"] for each in rest["topics"][0]["partitions"]] == [3, 4]
    assert rest["next_cursor"] is None


def test_topic_configs_with_synonyms(kafka_python_admin: Any, new_topic: MakeTopic) -> None:
    configs = topic_configs(kafka_python_admin, new_topic(configs={"segment.bytes": 1048576}))

    segment = configs["segment.bytes"]
    assert (segment["value"], segment["config_source"], segment["config_type"]) == ("1048576", "DYNAMIC_TOPIC_CONFIG", "INT")
    assert [(each["name"], each["source"]) for each in segment["synonyms"]] == [
        ("segment.bytes", "DYNAMIC_TOPIC_CONFIG"),
        ("log.segment.bytes", "DEFAULT_CONFIG"),
    ]


def test_configs_have_documentation(kafka_python_admin: Any, new_topic: MakeTopic) -> None:
    """Its admin call does not ask for it, its protocol can."""
    manager = kafka_python_admin._manager
    for resource in ((ConfigResourceType.TOPIC, new_topic()), (ConfigResourceType.BROKER, str(NODE_ID))):
        request = DescribeConfigsRequest(resources=[(*resource, None)], include_documentation=True)
        (described,) = manager.run(manager.send, request).results
        assert described.error_code == 0
        assert all(len(config.documentation) > 10 for config in described.configs)


def test_alter_configs_both_ways(kafka_python_admin: Any, new_topic: MakeTopic) -> None:
    name = new_topic(configs={"segment.bytes": 1048576})

    def alter(is_incremental: bool, **configs: Any) -> str:
        resource = ConfigResource(
            ConfigResourceType.TOPIC, name, configs={key.replace("_", "."): value for key, value in configs.items()}
        )
        altered = kafka_python_admin.alter_configs([resource], incremental=is_incremental)
        return str(altered["topic"][name])

    assert alter(True, retention_ms="1000000", cleanup_policy=(AlterConfigOp.APPEND, "compact")) == "OK"
    # The client adds what was changed before.
    assert alter(False, max_message_bytes="2000000") == "OK"
    configs = topic_configs(kafka_python_admin, name)
    changed = {"segment.bytes": "1048576", "retention.ms": "1000000", "cleanup.policy": "delete,compact"}
    assert {key: configs[key]["value"] for key in changed} == changed
    assert configs["max.message.bytes"]["value"] == "2000000"
    assert "InvalidConfiguration" in alter(True, retention_ms="soon")
    assert alter(True, retention_ms=(AlterConfigOp.DELETE, None)) == "OK"
    assert topic_configs(kafka_python_admin, name)["retention.ms"]["value"] == "604800000"


def test_list_config_resources(kafka_python_admin: Any, new_topic: MakeTopic) -> None:
    name = new_topic()

    listed = kafka_python_admin.list_config_resources(["TOPIC", "BROKER"])

    assert name in listed["topic"]
    assert listed["broker"] == [str(NODE_ID)]


def test_describe_cluster_features_and_log_directories(kafka_python_admin: Any, broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic()

    cluster = kafka_python_admin.describe_cluster()
    features = kafka_python_admin.describe_features()
    directories = kafka_python_admin.describe_log_dirs({name: [0]})

    assert cluster["controller_id"] == NODE_ID
    assert [(each["broker_id"], each["port"]) for each in cluster["brokers"]] == [(NODE_ID, broker.port)]
    assert "metadata.version" in str(features)
    assert broker.data_path in str(directories)
    assert name in str(directories)


def test_delete_records(kafka_python_admin: Any, broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic()
    where = TopicPartition(name, 0)
    client = KafkaPythonClient(broker.bootstrap_servers)
    client.send(name, [SentRecord(None, str(number).encode(), NOW) for number in range(10)])

    assert kafka_python_admin.delete_records({where: 4})[where]["low_watermark"] == 4
    assert client.watermarks(name) == (4, 10)
    with pytest.raises(OffsetOutOfRangeError):
        kafka_python_admin.delete_records({where: 11})


def test_list_offsets(kafka_python_admin: Any, broker: Broker, new_topic: MakeTopic) -> None:
    name = new_topic()
    where = TopicPartition(name, 0)
    KafkaPythonClient(broker.bootstrap_servers).send(name, [SentRecord(None, b"value", NOW) for _ in range(3)])

    specs = [OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.EARLIEST_LOCAL, OffsetSpec.LATEST_TIERED]
    offsets = [kafka_python_admin.list_partition_offsets({where: spec})[where].offset for spec in specs]

    assert offsets == [0, 3, 0, -1]
    assert kafka_python_admin.list_partition_offsets({where: OffsetSpec.MAX_TIMESTAMP})[where].offset in (0, 1, 2)


def test_acl_calls_say_that_security_is_disabled(kafka_python_admin: Any) -> None:
    pattern = ResourcePattern(ResourceType.TOPIC, "orders")
    acl = ACL("User:alice", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
    acl_filter = ACLFilter("User:alice", "*", ACLOperation.ANY, ACLPermissionType.ANY, pattern)

    with pytest.raises(SecurityDisabledError):
        kafka_python_admin.describe_acls(acl_filter)
    created = kafka_python_admin.create_acls([acl])
    deleted = kafka_python_admin.delete_acls([acl_filter])

    assert created["succeeded"] == []
    assert "SecurityDisabled" in str(created["failed"])
    assert "SecurityDisabled" in str(deleted)
