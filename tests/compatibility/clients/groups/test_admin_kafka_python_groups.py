"""kafka-python's admin calls for groups."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition
from kafka.admin import MemberToRemove, OffsetSpec
from kafka.errors import GroupSubscribedToTopicError, NoError

from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.clients.groups.conftest import Group, fill
from tests.compatibility.clients.groups.member_classes import CONFLUENT, CONFLUENT_CONSUMER
from tests.compatibility.clients.groups.sharing import wait_until_shared_out
from tests.compatibility.clients.waiting import wait_until
from tidelog.testing import Broker

PARTITIONS = 3
RECORDS = 10


@pytest.fixture(scope="module")
def kafka_python_admin(broker: Broker) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        yield admin


def offsets_of(admin: Any, group: Group, topic: str) -> dict[int, int]:
    found = admin.list_group_offsets({group.name: None})[group.name]
    return {where.partition: each.offset for where, each in found.items() if where.topic == topic}


def test_list_and_describe(kafka_python_admin: Any, group: Group, new_topic: MakeTopic) -> None:
    topic = new_topic(PARTITIONS)
    members = [group.join(CONFLUENT, topic, client_id=f"client-{number}") for number in range(2)]
    wait_until_shared_out(members, topic, PARTITIONS)

    described = kafka_python_admin.describe_groups([group.name])[group.name]
    assert described["error"] is None
    assert (described["group_state"], described["protocol_type"], described["protocol_data"]) == ("Stable", "consumer", "range")
    assert sorted(member["client_id"] for member in described["members"]) == ["client-0", "client-1"]
    assert all(topic in str(member["member_assignment"]) for member in described["members"])
    (mine,) = [each for each in kafka_python_admin.list_groups() if each["group_id"] == group.name]
    assert (mine["group_state"], mine["group_type"], mine["protocol_type"]) == ("Stable", "Classic", "consumer")
    of_other_kind = kafka_python_admin.list_groups(types_filter=["consumer"])
    assert group.name not in [each["group_id"] for each in of_other_kind]


def test_offsets_are_altered_reset_and_deleted(kafka_python_admin: Any, group: Group, new_topic: MakeTopic) -> None:
    topic = new_topic(PARTITIONS)
    fill(group.bootstrap_servers, topic, PARTITIONS, RECORDS)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    altered = kafka_python_admin.alter_group_offsets(group.name, {place: OffsetAndMetadata(4, "note", -1) for place in places})
    assert set(altered.values()) == {NoError}
    assert offsets_of(kafka_python_admin, group, topic) == {0: 4, 1: 4, 2: 4}

    specs = {places[0]: OffsetSpec.EARLIEST, places[1]: OffsetSpec.LATEST}
    kafka_python_admin.reset_group_offsets(group.name, specs)
    assert offsets_of(kafka_python_admin, group, topic) == {0: 0, 1: RECORDS, 2: 4}

    assert set(kafka_python_admin.delete_group_offsets(group.name, places[:2]).values()) == {NoError}
    assert offsets_of(kafka_python_admin, group, topic) == {2: 4}


@pytest.mark.parametrize("client", [CONFLUENT, CONFLUENT_CONSUMER])
def test_offsets_of_a_topic_that_is_read_are_not_deleted(
    kafka_python_admin: Any, group: Group, new_topic: MakeTopic, client: str
) -> None:
    topic, other = new_topic(1), new_topic(1)
    places = [TopicPartition(name, 0) for name in (topic, other)]
    kafka_python_admin.alter_group_offsets(group.name, {place: OffsetAndMetadata(0, "", -1) for place in places})
    wait_until_shared_out([group.join(client, topic)], topic, 1)
    deleted = kafka_python_admin.delete_group_offsets(group.name, places)
    assert deleted == {places[0]: GroupSubscribedToTopicError, places[1]: NoError}


def test_a_static_member_is_removed(kafka_python_admin: Any, group: Group, new_topic: MakeTopic) -> None:
    """One that is gone for good: the others need not wait for its session to end."""
    topic = new_topic(PARTITIONS)
    gone, stays = (group.join(CONFLUENT, topic, instance_id=name, session_timeout_ms=60_000) for name in ("gone", "stays"))
    wait_until_shared_out([gone, stays], topic, PARTITIONS)
    gone.leave()
    removed = kafka_python_admin.remove_group_members(group.name, [MemberToRemove(group_instance_id="gone")])
    assert list(removed.values()) == [NoError]
    wait_until_shared_out([stays], topic, PARTITIONS)


def test_delete(kafka_python_admin: Any, group: Group, new_topic: MakeTopic) -> None:
    topic = new_topic(1)
    member = group.join(CONFLUENT, topic)
    wait_until_shared_out([member], topic, 1)
    assert kafka_python_admin.delete_groups([group.name]) == {group.name: "NonEmptyGroupError"}
    member.leave()
    wait_until(lambda: kafka_python_admin.describe_groups([group.name])[group.name]["group_state"] == "Empty", "an empty group")
    assert kafka_python_admin.delete_groups([group.name]) == {group.name: "OK"}
    assert group.name not in [each["group_id"] for each in kafka_python_admin.list_groups()]
    assert kafka_python_admin.delete_groups([group.name]) == {group.name: "GroupIdNotFoundError"}
