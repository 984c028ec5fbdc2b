"""A consumer group as ConsumerGroupDescribe shows it."""

from typing import Any

from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.member import ConsumerGroupMember, without_epochs
from tidelog.groups.consumer.target_assignment import preferred_assignor
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


def describe(group: ConsumerGroup, default_assignor: str, image: ClusterImage) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group.group_id,
        "group_state": group.state_name,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": preferred_assignor(group.members.values(), default_assignor),
        "members": [_member(member, group.target_of(member.member_id), image) for member in group.members.values()],
    }


def _member(member: ConsumerGroupMember, target: Partitions, image: ClusterImage) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": _assignment(without_epochs(member.assigned), image),
        "target_assignment": _assignment(target, image),
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }


def _assignment(partitions: Partitions, image: ClusterImage) -> dict[str, Any]:
    """A topic that is gone has no name, and is left out."""
    topics = [(topic_id, image.topic_by_id(topic_id), indexes) for topic_id, indexes in sorted(partitions.items())]
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": topic.name, "partitions": indexes}
            for topic_id, topic, indexes in topics
            if topic is not None
        ]
    }
