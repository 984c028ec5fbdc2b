"""The target assignment: what every member should have, computed for a whole group when its epoch has moved."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tidelog.groups.assignors import range as range_assignor
from tidelog.groups.assignors import uniform
from tidelog.groups.assignors.specification import Assignor, MemberSubscription, Partitions
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.member import ConsumerGroupMember
from tidelog.groups.records import (
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberRecord,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataRecord,
    ConsumerGroupTargetAssignmentMetadataValue,
    TargetTopicPartitions,
)
from tidelog.metadata.image import ClusterImage

ASSIGNORS: dict[str, Assignor] = {"uniform": uniform.assign, "range": range_assignor.assign}

ResolvedRegexes = Mapping[str, ConsumerGroupRegularExpressionValue]


def metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """Of the topics that exist, what an assignment depends on; 0 when there are none. Kafka hashes in its own way: a group that
    changes hands is assigned anew once."""
    digest = hashlib.blake2b(digest_size=8)
    exists = False
    for name in sorted(names):
        topic = image.topic(name)
        if topic is not None:
            exists = True
            digest.update(topic.topic_id + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if exists else 0


def subscribed_topic_ids(member: ConsumerGroupMember, resolved: ResolvedRegexes, image: ClusterImage) -> frozenset[bytes]:
    """Of topics that exist."""
    names = set(member.subscribed_topic_names)
    regex = resolved.get(member.subscribed_topic_regex or "")
    if regex is not None:
        names.update(regex.topics)
    topics = map(image.topic, names)
    return frozenset([topic.topic_id for topic in topics if topic is not None])


def preferred_assignor(members: Iterable[ConsumerGroupMember], default: str) -> str:
    """The one that most members name; of those alike, the first by name. Who names none, or one that a broker of another make
    had, has no vote."""
    votes: dict[str, int] = {}
    for member in members:
        if member.server_assignor in ASSIGNORS:
            votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
    return min(votes, key=lambda name: (-votes[name], name), default=default)


def compute_target(
    members: Iterable[ConsumerGroupMember],
    current: Mapping[str, Partitions],
    assignor: Assignor,
    resolved: ResolvedRegexes,
    image: ClusterImage,
) -> dict[str, dict[bytes, tuple[int, ...]]]:
    """``current``: the target assignment until now, by member id."""
    specifications = {}
    partition_counts: dict[bytes, int] = {}
    # Most members subscribe alike, and a set that is the same object is compared at once.
    topic_ids_by_subscription: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}
    for member in members:
        subscription = (member.subscribed_topic_names, member.subscribed_topic_regex)
        topic_ids = topic_ids_by_subscription.get(subscription)
        if topic_ids is None:
            topic_ids = topic_ids_by_subscription[subscription] = subscribed_topic_ids(member, resolved, image)
            for topic_id in topic_ids:
                topic = image.topic_by_id(topic_id)
                partition_counts[topic_id] = 0 if topic is None else len(topic.partitions)
        specifications[member.member_id] = MemberSubscription(topic_ids, member.instance_id, current.get(member.member_id, {}))
    return assignor(specifications, partition_counts)


def target_records(group: ConsumerGroup, target: Mapping[str, Partitions], assignment_epoch: int, now_ms: int) -> list[Any]:
    """What differs from the group's target assignment, and the epoch."""
    records: list[Any] = [
        target_record(group.group_id, member_id, partitions)
        for member_id, partitions in sorted(target.items())
        if group.target.get(member_id) != partitions
    ]
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch, now_ms)
    records.append(ConsumerGroupTargetAssignmentMetadataRecord(group.group_id, value))
    return records


def target_record(group_id: str, member_id: str, partitions: Partitions) -> ConsumerGroupTargetAssignmentMemberRecord:
    topics = tuple([TargetTopicPartitions(topic_id, indexes) for topic_id, indexes in sorted(partitions.items())])
    return ConsumerGroupTargetAssignmentMemberRecord(group_id, member_id, ConsumerGroupTargetAssignmentMemberValue(topics))
