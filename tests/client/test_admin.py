"""Admin on a real broker: results, not futures, and errors that say what to do."""

import secrets
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from tests.client.producing import new_topic
from tests.toolkit_broker import ToolkitBroker
from tidelog.client import admin as admin_module
from tidelog.client.admin import Admin, NewTopicSpec, PartitionBounds
from tidelog.client.errors import (
    BrokerUnavailable,
    Closed,
    GroupError,
    InvalidArgument,
    InvalidTopic,
    NotAuthorized,
    TidelogError,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
)
from tidelog.client.producer import Producer
from tidelog.client.raw_consumer import RawConsumer
from tidelog.client.topic_partition import TopicPartition


@pytest.fixture(scope="module")
def admin(kafka: ToolkitBroker) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        yield opened


def new_name() -> str:
    return f"topic-{secrets.token_hex(4)}"


def test_a_topic_from_its_creation_to_its_end(admin: Admin) -> None:
    name = new_name()
    assert admin.create_topic(name, partitions=3, retention_ms=86_400_000, cleanup_policy=["compact", "delete"])
    assert name in admin.list_topics()
    topic = admin.describe_topic(name)
    assert topic.name == name
    assert topic.configs == {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}
    assert [partition.partition for partition in topic.partitions] == [0, 1, 2]
    assert all(partition.leader in partition.isr for partition in topic.partitions)

    admin.alter_topic(name, retention_ms=None, unclean_leader_election_enable=False, max_message_bytes=5000)
    assert admin.describe_topic(name).configs == {
        "cleanup.policy": "compact,delete",
        "max.message.bytes": "5000",
        "unclean.leader.election.enable": "false",
    }
    admin.add_partitions(name, 5)
    assert len(admin.describe_topic(name).partitions) == 5

    assert admin.delete_topic(name)
    assert name not in admin.list_topics()
    with pytest.raises(UnknownTopic, match=name):
        admin.describe_topic(name)
    assert admin.create_topic(name), "its name is free again"
    assert not admin.describe_topic(name).configs


def test_a_topic_that_is_there_already(admin: Admin) -> None:
    name = new_name()
    admin.create_topic(name)
    with pytest.raises(TopicExists, match="exists_ok=True"):
        admin.create_topic(name)
    assert not admin.create_topic(name, exists_ok=True, partitions=7)


def test_a_topic_that_is_not_there(admin: Admin) -> None:
    name = new_name()
    with pytest.raises(UnknownTopic, match=f"delete topic {name}"):
        admin.delete_topic(name)
    assert not admin.delete_topic(name, missing_ok=True)
    with pytest.raises(UnknownTopic):
        admin.alter_topic(name, retention_ms=1)
    with pytest.raises(UnknownTopic):
        admin.add_partitions(name, 5)
    with pytest.raises(UnknownTopic):
        admin.offsets_for_time(name, "latest")
    assert name not in admin.list_topics(), "asking creates nothing"


def test_what_the_cluster_refuses(admin: Admin) -> None:
    with pytest.raises(InvalidTopic, match="249"):
        admin.create_topic("no/such/name")
    with pytest.raises(InvalidTopic, match="create topic"):
        admin.create_topic(new_name(), replication_factor=99)
    with pytest.raises(InvalidTopic):
        admin.create_topic(new_name(), retention_ms="soon")
    with pytest.raises(InvalidTopic):
        admin.create_topic(new_name(), no_such_setting=1)
    name = new_name()
    admin.create_topic(name, partitions=3)
    with pytest.raises(InvalidTopic):
        admin.add_partitions(name, 2)


def test_arguments_that_make_no_sense(admin: Admin) -> None:
    with pytest.raises(InvalidArgument, match="retention_ms: a setting is"):
        admin.create_topic(new_name(), retention_ms=object())  # type: ignore[arg-type]  # what a caller without types may do
    with pytest.raises(InvalidArgument, match="no setting was given"):
        admin.alter_topic(new_name())
    for timestamp in ("yesterday", -5, datetime(2026, 1, 1), True):
        with pytest.raises(InvalidArgument, match="a time"):
            admin.offsets_for_time("orders", timestamp)
    with pytest.raises(InvalidTopic):
        admin.create_topic("")


def test_offsets_by_time(kafka: ToolkitBroker, admin: Admin) -> None:
    topic = new_topic(kafka, partitions=2)
    with Producer(kafka.bootstrap) as producer:
        for number in range(5):
            producer.send(topic, b"x", partition=0, timestamp=1_700_000_000_000 + number * 1000)
    assert admin.offsets_for_time(topic, "earliest") == {0: 0, 1: 0}
    assert admin.offsets_for_time(topic, "latest") == {0: 5, 1: 0}
    assert admin.offsets_for_time(topic, 1_700_000_001_500) == {0: 2, 1: None}
    assert admin.offsets_for_time(topic, datetime.fromtimestamp(1_700_000_004, tz=UTC)) == {0: 4, 1: None}
    assert admin.offsets_for_time(topic, 1_800_000_000_000) == {0: None, 1: None}


def test_offsets_of_groups(kafka: ToolkitBroker, admin: Admin) -> None:
    topic, group = new_topic(kafka, partitions=2), f"group-{secrets.token_hex(4)}"
    assert admin.group_offsets(group) == {}
    admin.set_group_offsets(group, {(topic, 0): 7, (topic, 1): 0})
    admin.set_group_offsets(group, {(topic, 0): 3})
    assert admin.group_offsets(group) == {(topic, 0): 3, (topic, 1): 0}
    assert group in [found.name for found in admin.list_groups()]
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 0})
    consumer.subscribe([topic])
    deadline = monotonic() + 120
    while not consumer.assignment() and monotonic() < deadline:
        consumer.poll(0.1)
    with pytest.raises(GroupError):
        admin.set_group_offsets(group, {(topic, 0): 5})
    with pytest.raises(GroupError, match="stop the group's members"):
        admin.delete_group(group)
    consumer.close()
    admin.delete_group(group)
    assert admin.group_offsets(group) == {}
    with pytest.raises(GroupError, match="no group of that name"):
        admin.delete_group(group)
    with pytest.raises(InvalidArgument, match="no offset was given"):
        admin.set_group_offsets(group, {})
    with pytest.raises(TidelogError, match=f"set offsets of group {group}"):
        admin.set_group_offsets(group, {("no-such-topic", 0): 5})


def test_no_broker_is_named_with_its_reason() -> None:
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 \(.*refused"):
        Admin("127.0.0.1:1", connect_timeout=1)


def test_a_closed_one_says_so(kafka: ToolkitBroker) -> None:
    admin = Admin(kafka.bootstrap)
    admin.close()
    admin.close()
    with pytest.raises(Closed):
        admin.list_topics()


def test_what_tools_ask_about_topics(admin: Admin) -> None:
    name, taken = new_name(), new_name()
    errors = admin.create_topics([NewTopicSpec(name, 2, 1, {"retention.ms": "5000"}), NewTopicSpec(taken)])
    assert errors == {name: None, taken: None}
    assert isinstance(admin.create_topics([NewTopicSpec(taken)])[taken], TopicExists)
    cluster = admin.describe_cluster()
    assert set(cluster.brokers) >= {each.leader for each in cluster.topics[name]}
    partitions = cluster.partitions(name)
    assert partitions == [(name, 0), (name, 1)]
    assert cluster.partitions("missing") == []
    assert admin.describe_topic(name).topic_id

    settings = admin.describe_configs("topic", name)
    assert (settings["retention.ms"].value, settings["retention.ms"].is_default) == ("5000", False)
    assert settings["segment.bytes"].is_default
    admin.alter_configs("topic", name, {"retention.ms": None})
    assert admin.describe_configs("topic", name)["retention.ms"].is_default

    with Producer(admin.addresses) as producer:
        producer.send(name, b"x", partition=1).result()
    assert admin.bounds(partitions) == {(name, 0): (0, 0), (name, 1): (0, 1)}
    assert admin.bounds(partitions, isolation="read_committed") == admin.bounds(partitions)
    missing = (name, 7)
    assert admin.list_offsets([*partitions, missing], "latest", missing_ok=True) == {(name, 0): 0, (name, 1): 1}
    with pytest.raises(UnknownTopic):
        admin.list_offsets([missing], "latest")
    assert admin.list_offsets([], "latest") == {}


def test_what_tools_ask_about_groups(kafka: ToolkitBroker, admin: Admin) -> None:
    name, group = new_name(), f"group-{secrets.token_hex(4)}"
    admin.create_topic(name)
    partition = TopicPartition(name, 0)
    with RawConsumer(kafka.bootstrap, {"group.id": group}) as consumer:
        assigned: list[TopicPartition] = []
        consumer.subscribe([name], on_assigned=assigned.extend, on_revoked=lambda _: None)
        while not assigned:
            consumer.consume(1, 0.1)
        assert assigned == [partition]
        consumer.commit({partition: 0})
        (member,) = admin.describe_groups([group])[group].members
        assert (member.member_id, member.partitions) == (consumer.member_id, (partition,))
        assert group in [each.name for each in admin.list_groups(states=["STABLE"], types=["CLASSIC"])]
        assert group not in [each.name for each in admin.list_groups(states=["EMPTY"])]
    assert admin.committed_offsets(group)[partition].offset == 0
    assert admin.groups_with_offsets(name) == [group]
    assert admin.describe_groups([f"{group}-missing"])[f"{group}-missing"].state == "DEAD"
    assert admin.describe_groups([]) == {}


class LateLeader:
    """An AdminClient that answers each request for offsets with the next of these: an offset, or an error code below 100."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)

    def list_offsets(self, partitions: dict[Any, Any], **_: object) -> dict[Any, "Future[Any]"]:
        answer = self.answers.pop(0)
        return {partition: self._future(answer) for partition in partitions}

    def _future(self, answer: int) -> "Future[Any]":
        future: Future[Any] = Future()
        if answer >= 100:
            future.set_result(SimpleNamespace(offset=answer))
        else:
            future.set_exception(KafkaException(KafkaError(answer)))
        return future


def test_offsets_are_asked_for_again_while_a_partition_has_no_leader(
    kafka: ToolkitBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_module, "_ASK_LEADER_AGAIN_SECONDS", 0.0)
    with Admin(kafka.bootstrap) as admin:

        def answers(*codes: int) -> None:
            monkeypatch.setattr(admin, "_client", LateLeader(*codes))

        answers(KafkaError.NOT_LEADER_FOR_PARTITION, 100, KafkaError.LEADER_NOT_AVAILABLE, 105)
        assert admin.bounds([("orders", 0)]) == {TopicPartition("orders", 0): PartitionBounds(100, 105)}
        answers(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(NotAuthorized):
            admin.bounds([("orders", 0)])
        monkeypatch.setattr(admin_module, "_LEADER_SECONDS_MAX", 0.0)
        answers(KafkaError.NOT_LEADER_FOR_PARTITION)
        with pytest.raises(TidelogError, match=r"offsets of orders: .*NOT_LEADER_FOR_PARTITION"):
            admin.bounds([("orders", 0)])


def test_a_topic_that_has_grown_already_is_grown_no_further(kafka: ToolkitBroker) -> None:
    topic = new_topic(kafka, partitions=3)
    with Admin(kafka.bootstrap) as admin:
        assert admin.topic_id(topic)
        with pytest.raises(InvalidTopic):
            admin.add_partitions(topic, 3)
        admin.add_partitions(topic, 3, more_ok=True)
        with pytest.raises(UnknownTopic):
            admin.add_partitions("nowhere", 3, more_ok=True)


def test_lag_records_and_brokers(kafka: ToolkitBroker, admin: Admin) -> None:
    topic, group = new_topic(kafka, partitions=1), new_name()
    place = TopicPartition(topic, 0)
    with Producer(kafka.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, str(number))
    with pytest.raises(UnknownGroup, match=group):
        admin.lag(group)
    with pytest.raises(UnknownGroup, match=group):
        admin.describe_group(group)
    admin.set_group_offsets(group, {place: 4})
    assert admin.lag(group) == {place: 6}
    assert admin.describe_group(group).state == "EMPTY"
    assert admin.delete_records({place: 7}) == {place: 7}
    assert admin.bounds([place]) == {place: PartitionBounds(7, 10)}
    assert admin.lag(group) == {place: 3}
    with pytest.raises(TidelogError):
        admin.delete_records({place: 11})
    assert admin.delete_records({place: -1}) == {place: 10}
    with pytest.raises(InvalidArgument):
        admin.delete_records({})
    broker_id = min(admin.describe_cluster().brokers)
    assert "log.retention.hours" in admin.broker_configs(broker_id) or "log.retention.ms" in admin.broker_configs(broker_id)
    with pytest.raises(BrokerUnavailable, match="there is no such broker"):
        admin.broker_configs(4711)
