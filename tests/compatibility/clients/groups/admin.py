"""What the coordinator says of a group, asked with confluent-kafka's admin client."""

from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from tests.compatibility.clients.client import CALL_SECONDS_MAX
from tests.compatibility.clients.groups.member import Partition


def describe(admin: Any, group: str) -> Any:
    return admin.describe_consumer_groups([group])[group].result(CALL_SECONDS_MAX)


def committed_offsets(admin: Any, group: str) -> dict[Partition, int]:
    """Of all partitions that have one."""
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(CALL_SECONDS_MAX).topic_partitions
    return {Partition(each.topic, each.partition): each.offset for each in found}


def commit(admin: Any, group: str, offsets: dict[Partition, int]) -> None:
    """Into a group without members."""
    wanted = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
    altered = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])
    for each in altered[group].result(CALL_SECONDS_MAX).topic_partitions:
        assert each.error is None, each
