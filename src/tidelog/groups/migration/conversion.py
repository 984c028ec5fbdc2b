"""Converts a live group from one protocol to the other, if ``group.consumer.migration.policy`` and the size of the group allow
it.

**Upgrade**: a classic group becomes a consumer group when the first member that speaks KIP-848 joins it. Its members keep what
they have: the generation becomes the epoch of the group, of its target assignment and of every member. Members that wait in a
rebalance are told to join again, which they then do as classic members of the consumer group.

**Downgrade**: a consumer group becomes a classic group again when its last member that speaks KIP-848 leaves and others are left.
The group epoch becomes the generation, and each member's target its assignment; then they rebalance with their own protocol.
"""

from collections.abc import Iterable
from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.groups.classic.group import ClassicGroup, ClassicMember, group_record
from tidelog.groups.consumer.group import ConsumerGroup, ConsumerGroupMember
from tidelog.groups.consumer.rebalance import target_records
from tidelog.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    by_topic_id,
    by_topic_name,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tidelog.groups.environment import GroupEnvironment
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


def upgraded_group(group: ClassicGroup, environment: GroupEnvironment, records: list[Any]) -> ConsumerGroup:
    _check_upgrade(group, environment)
    try:
        members = [_consumer_member(group, member, environment.image) for member in group.members.values()]
    except MalformedProtocol:
        raise _refused(group, "because the embedded consumer protocol is malformed") from None
    upgraded = ConsumerGroup(group.group_id, group.generation)
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


def _check_upgrade(group: ClassicGroup, environment: GroupEnvironment) -> None:
    if environment.settings["group.consumer.migration.policy"] not in UPGRADING_POLICIES:
        raise _refused(group, "because online upgrade is disabled")
    if group.protocol_type != PROTOCOL_TYPE:
        raise _refused(group, "because the group does not use the consumer embedded protocol")
    if len(group.members) > environment.settings["group.consumer.max.size"]:
        raise _refused(group, "because the group size exceeds the consumer group maximum size")


def _consumer_member(group: ClassicGroup, member: ClassicMember, image: ClusterImage) -> ConsumerGroupMember:
    # A group has no protocol before its first generation.
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


DOWNGRADING_POLICIES = ("bidirectional", "downgrade")


def downgrade_records(
    group: ConsumerGroup, leaving: Iterable[ConsumerGroupMember], environment: GroupEnvironment
) -> list[Any] | None:
    """Return None when the group stays a consumer group."""
    gone = {member.member_id for member in leaving}
    staying = [member for member_id, member in group.members.items() if member_id not in gone]
    if not staying or any(member.classic is None for member in staying):
        return None
    if environment.settings["group.consumer.migration.policy"] not in DOWNGRADING_POLICIES:
        return None
    if len(staying) > environment.settings["group.max.size"]:
        return None
    downgraded = ClassicGroup.stable(
        group.group_id, environment.clock.now_ms(), group.group_epoch, PROTOCOL_TYPE, map(_classic_member, staying)
    )
    assignments = {}
    for member in staying:
        partitions = by_topic_name(group.target_of(member.member_id), environment.image)
        assignments[member.member_id] = encode_assignment(partitions, protocol_version(member))
    return [*group.tombstones(), group_record(downgraded, assignments)]


def _classic_member(member: ConsumerGroupMember) -> ClassicMember:
    assert member.classic is not None, "only members of the classic protocol are left"
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        tuple((protocol.name, protocol.metadata) for protocol in member.classic.supported_protocols),
    )


def protocol_version(member: ConsumerGroupMember) -> int:
    """The version of the metadata that a classic member sent: it understands an assignment of the same version."""
    if member.classic is None or not member.classic.supported_protocols:
        return 0
    try:
        return decode_subscription(member.classic.supported_protocols[0].metadata).version
    except MalformedProtocol:
        return 0
