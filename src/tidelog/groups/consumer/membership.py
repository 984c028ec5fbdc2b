"""Who a request comes from: a member of the group, a new one, a static one that is back, or nobody any more.

Functions of state only; what they decide to write goes into the list of records that they are given. Messages are Kafka's.
"""

from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, AssignedPartitions, ConsumerGroupMember
from tidelog.groups.consumer.reconciliation import OwnedPartitions
from tidelog.groups.consumer.target_assignment import target_record
from tidelog.groups.records import (
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupTargetAssignmentMemberRecord,
)
from tidelog.wire.errors import ErrorCode


def check_size(group: ConsumerGroup, member_id: str, size_max: int) -> None:
    if len(group.members) >= size_max and member_id not in group.members:
        message = f"The consumer group has reached its maximum capacity of {size_max} members."
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)


def dynamic_member(group: ConsumerGroup, member_id: str, *, may_join: bool) -> ConsumerGroupMember:
    if may_join:
        return group.members.get(member_id) or ConsumerGroupMember(member_id)
    return group.member(member_id)


def joining_static_member(
    group: ConsumerGroup, member_id: str, instance_id: str, *, uses_classic_protocol: bool, records: list[Any]
) -> ConsumerGroupMember:
    """A new instance, or one that takes over what its instance id had, and begins at epoch 0."""
    existing = group.static_member(instance_id)
    if existing is None:
        return group.members.get(member_id) or ConsumerGroupMember(member_id)
    if not uses_classic_protocol and existing.classic is None and existing.member_epoch != STATIC_LEAVE_EPOCH:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id is owned by "
            f"{existing.member_id} member.",
        )
    member = existing._replace(member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH)
    records += removal_records(group.group_id, existing.member_id)
    records.append(ConsumerGroupMemberMetadataRecord(group.group_id, member_id, member.metadata()))
    records.append(target_record(group.group_id, member_id, group.target_of(existing.member_id)))
    records.append(ConsumerGroupCurrentMemberAssignmentRecord(group.group_id, member_id, member.current_assignment()))
    return member


def known_static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerGroupMember:
    member = group.static_member(instance_id)
    if member is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def check_epoch(member: ConsumerGroupMember, member_epoch: int, owned: OwnedPartitions | None) -> None:
    """A member that knows another epoch than the coordinator must join again; unless the answer with its epoch was lost, which
    shows in that it is just one behind and has nothing that it should not have."""
    if member_epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if member_epoch > member.member_epoch:
        compared = "greater"
    elif member_epoch != member.previous_member_epoch or not _is_subset(owned, member.assigned):
        compared = "smaller"
    else:
        return
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {compared} member epoch ({member_epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_subset(owned: OwnedPartitions | None, assigned: AssignedPartitions) -> bool:
    if owned is None:
        return False
    return all(topic_id in assigned and partitions <= assigned[topic_id].keys() for topic_id, partitions in owned.items())


def removal_records(group_id: str, member_id: str) -> list[Any]:
    return [
        ConsumerGroupCurrentMemberAssignmentRecord(group_id, member_id, None),
        ConsumerGroupTargetAssignmentMemberRecord(group_id, member_id, None),
        ConsumerGroupMemberMetadataRecord(group_id, member_id, None),
    ]
