"""confluent-kafka's admin calls for groups, on groups of both protocols: with members, and without."""

from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.conftest import MakeTopic
from tests.compatibility.clients.groups.admin import commit, committed_offsets, describe
from tests.compatibility.clients.groups.conftest import Group, MakeGroup
from tests.compatibility.clients.groups.member import Partition, all_of, partitions_of
from tests.compatibility.clients.groups.member_classes import CONFLUENT, CONFLUENT_CONSUMER
from tests.compatibility.clients.groups.sharing import wait_until_shared_out
from tests.compatibility.clients.waiting import wait_until

PARTITIONS = 4
TYPES = {CONFLUENT: ConsumerGroupType.CLASSIC, CONFLUENT_CONSUMER: ConsumerGroupType.CONSUMER}


def code_of(future: Any) -> int:
    with pytest.raises(KafkaException) as told:
        future.result(CALL_SECONDS_MAX)
    return int(told.value.args[0].code())


def listed(admin: Any, **wanted: Any) -> dict[str, tuple[ConsumerGroupState, ConsumerGroupType]]:
    found = admin.list_consumer_groups(**wanted).result(CALL_SECONDS_MAX)
    assert found.errors == []
    return {each.group_id: (each.state, each.type) for each in found.valid}


@pytest.mark.parametrize("client", TYPES)
def test_describe(group: Group, admin: Any, new_topic: MakeTopic, client: str) -> None:
    topic = new_topic(PARTITIONS)
    members = [group.join(client, topic, client_id=f"client-{number}") for number in range(2)]
    wait_until_shared_out(members, topic, PARTITIONS)
    wait_until(lambda: describe(admin, group.name).state is ConsumerGroupState.STABLE, "a stable group")

    described = describe(admin, group.name)
    assert (described.group_id, described.type) == (group.name, TYPES[client])
    assert described.partition_assignor == "range"
    assert described.coordinator.id == 1
    shares = {each.client_id: partitions_of(each.assignment.topic_partitions) for each in described.members}
    assert shares == {member.membership.client_id: member.owned for member in members}
    assert all(each.host.endswith("127.0.0.1") for each in described.members)
    assert len({each.member_id for each in described.members}) == 2

    for member in members:
        member.leave()
    wait_until(lambda: describe(admin, group.name).state is ConsumerGroupState.EMPTY, "an empty group")
    assert describe(admin, group.name).members == []


def test_list_by_state_and_type(new_group: MakeGroup, admin: Any, new_topic: MakeTopic) -> None:
    topic = new_topic(1)
    classic, consumer, empty = new_group(), new_group(), new_group()
    for group, client in ((classic, CONFLUENT), (consumer, CONFLUENT_CONSUMER)):
        wait_until_shared_out([group.join(client, topic)], topic, 1)
    commit(admin, empty.name, {Partition(topic, 0): 1})
    expected = {
        classic.name: (ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC),
        consumer.name: (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER),
        empty.name: (ConsumerGroupState.EMPTY, ConsumerGroupType.CLASSIC),
    }
    ours = set(expected)

    def of_ours(**wanted: Any) -> set[str]:
        return ours & set(listed(admin, **wanted))

    wait_until(lambda: {name: found for name, found in listed(admin).items() if name in ours} == expected, "all three")
    assert of_ours(states={ConsumerGroupState.STABLE}) == {classic.name, consumer.name}
    assert of_ours(states={ConsumerGroupState.EMPTY}) == {empty.name}
    assert of_ours(types={ConsumerGroupType.CONSUMER}) == {consumer.name}
    assert of_ours(types={ConsumerGroupType.CLASSIC}) == {classic.name, empty.name}
    assert of_ours(types={ConsumerGroupType.CLASSIC}, states={ConsumerGroupState.STABLE}) == {classic.name}


@pytest.mark.parametrize("client", TYPES)
def test_delete(group: Group, admin: Any, new_topic: MakeTopic, client: str) -> None:
    topic = new_topic(1)
    member = group.join(client, topic)
    wait_until_shared_out([member], topic, 1)
    assert code_of(admin.delete_consumer_groups([group.name])[group.name]) == KafkaError.NON_EMPTY_GROUP
    member.leave()
    wait_until(lambda: describe(admin, group.name).state is ConsumerGroupState.EMPTY, "an empty group")
    commit(admin, group.name, {Partition(topic, 0): 3})

    admin.delete_consumer_groups([group.name])[group.name].result(CALL_SECONDS_MAX)

    assert group.name not in listed(admin)
    assert committed_offsets(admin, group.name) == {}
    assert code_of(admin.delete_consumer_groups([group.name])[group.name]) == KafkaError.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("client", TYPES)
def test_alter_and_list_offsets(group: Group, admin: Any, new_topic: MakeTopic, client: str) -> None:
    topic = new_topic(PARTITIONS)
    wanted = {partition: 10 + partition.number for partition in all_of(topic, PARTITIONS)}
    commit(admin, group.name, wanted)
    assert committed_offsets(admin, group.name) == wanted
    asked = ConsumerGroupTopicPartitions(group.name, [TopicPartition(topic, 1), TopicPartition(topic, PARTITIONS)])
    found = admin.list_consumer_group_offsets([asked])[group.name].result(CALL_SECONDS_MAX).topic_partitions
    assert [(each.partition, each.offset) for each in found] == [(1, 11), (PARTITIONS, -1001)]

    member = group.join(client, topic)
    wait_until_shared_out([member], topic, PARTITIONS)
    altered = ConsumerGroupTopicPartitions(group.name, [TopicPartition(topic, 0, 0)])
    (refused,) = admin.alter_consumer_group_offsets([altered])[group.name].result(CALL_SECONDS_MAX).topic_partitions
    assert refused.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    assert committed_offsets(admin, group.name) == wanted
