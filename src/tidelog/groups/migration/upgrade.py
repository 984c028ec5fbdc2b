"""A live classic group becomes a consumer group, when the first member that speaks KIP-848 joins it.

Its members keep what they have: the generation becomes the epoch of the group, of its target assignment and of every member.
Whoever waits in a rebalance is told to join again, which it then does as a classic member of the consumer group.
"""

from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.member import ConsumerGroupMember
from tidelog.groups.consumer.target_assignment import target_records
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.migration.consumer_protocol import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    decode_assignment,
    decode_subscription,
)
from tidelog.groups.migration.topics import by_topic_id
from tidelog.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
)
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode

UPGRADING_POLICIES = ("bidirectional", "upgrade")


def upgrade(group: ClassicGroup, environment: GroupEnvironment, records: list[Any]) -> ConsumerGroup:
    _check(group, environment)
    try:
        members = [_member(group, member, environment.image) for member in group.members.values()]
    except MalformedProtocol:
        raise _refused(group, "because the embedded consumer protocol is malformed") from None
    upgraded = ConsumerGroup(group.group_id)
    upgraded.group_epoch = upgraded.assignment_epoch = group.generation
    records += group.tombstones()
    for member in members:
        upgraded.put_member(member)
        records.append(ConsumerGroupMemberMetadataRecord(group.group_id, member.member_id, member.metadata()))
    records.append(ConsumerGroupMetadataRecord(group.group_id, ConsumerGroupMetadataValue(group.generation)))
    target = {
        member.member_id: {topic_id: tuple(partitions) for topic_id, partitions in member.assigned.items()} for member in members
    }
    records += target_records(upgraded, target, group.generation, environment.clock.now_ms())
    upgraded.target.update(target)
    for member in members:
        value = member.current_assignment()
        records.append(ConsumerGroupCurrentMemberAssignmentRecord(group.group_id, member.member_id, value))
    return upgraded


def _check(group: ClassicGroup, environment: GroupEnvironment) -> None:
    if environment.settings["group.consumer.migration.policy"] not in UPGRADING_POLICIES:
        raise _refused(group, "because online upgrade is disabled")
    if group.protocol_type != PROTOCOL_TYPE:
        raise _refused(group, "because the group does not use the consumer embedded protocol")
    if len(group.members) > environment.settings["group.consumer.max.size"]:
        raise _refused(group, "because the group size exceeds the consumer group maximum size")


def _member(group: ClassicGroup, member: ClassicMember, image: ClusterImage) -> ConsumerGroupMember:
    # Before its first generation a group has no protocol yet.
    subscription = decode_subscription(member.metadata(group.protocol_name) or next((data for _, data in member.protocols), b""))
    assignment = decode_assignment(member.assignment)
    if assignment.user_data:
        raise _refused(
            group,
            "because an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor "
            "before re-attempting the upgrade",
        )
    partitions = by_topic_id(assignment.partitions, image)
    return ConsumerGroupMember(
        member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            member.session_timeout_ms, tuple(ClassicProtocol(name, metadata) for name, metadata in member.protocols)
        ),
        member_epoch=group.generation,
        previous_member_epoch=group.generation,
        assigned={topic_id: dict.fromkeys(indexes, group.generation) for topic_id, indexes in partitions.items()},
    )


def _refused(group: ClassicGroup, reason: str) -> ApiError:
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group.group_id} to consumer group {reason}.")
