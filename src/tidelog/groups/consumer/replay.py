"""Records of consumer groups as changes of state: the only way to change it.

Compaction may have taken records out of the middle of a group's story, so none of them relies on another one but for this: a
tombstone of what is not there says nothing. A group exists from its first record on until the tombstone of its epoch.
"""

from collections.abc import Callable
from typing import Any

from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.member import LEAVE_EPOCH, ConsumerGroupMember, MemberState
from tidelog.groups.group import GroupTable
from tidelog.groups.records import (
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMetadataRecord,
    ConsumerGroupPartitionMetadataRecord,
    ConsumerGroupRegularExpressionRecord,
    ConsumerGroupTargetAssignmentMemberRecord,
    ConsumerGroupTargetAssignmentMetadataRecord,
)


def replay(groups: GroupTable, record: Any) -> None:
    found = groups.find(record.group_id)
    group = found if isinstance(found, ConsumerGroup) else None
    if group is None:
        if record.value is None:
            return
        # Also in place of a classic group: its tombstone is before this record, or compaction has taken it already.
        group = ConsumerGroup(record.group_id)
        groups.put(group)
    _REPLAY[type(record)](group, record)
    if record.value is None and type(record) is ConsumerGroupMetadataRecord:
        groups.remove(record.group_id)


def _metadata(group: ConsumerGroup, record: ConsumerGroupMetadataRecord) -> None:
    if record.value is not None:
        group.group_epoch = record.value.epoch
        group.metadata_hash = record.value.metadata_hash


def _partition_metadata(group: ConsumerGroup, record: ConsumerGroupPartitionMetadataRecord) -> None:
    group.has_partition_metadata_record = record.value is not None


def _member_metadata(group: ConsumerGroup, record: ConsumerGroupMemberMetadataRecord) -> None:
    if record.value is None:
        group.remove_member(record.member_id)
        return
    member = group.members.get(record.member_id) or ConsumerGroupMember(record.member_id)
    group.put_member(member.with_metadata(record.value))


def _target_metadata(group: ConsumerGroup, record: ConsumerGroupTargetAssignmentMetadataRecord) -> None:
    if record.value is None:
        group.assignment_epoch, group.assignment_timestamp = 0, 0
    else:
        group.assignment_epoch = record.value.assignment_epoch
        group.assignment_timestamp = record.value.assignment_timestamp


def _target_member(group: ConsumerGroup, record: ConsumerGroupTargetAssignmentMemberRecord) -> None:
    if record.value is None:
        group.target.pop(record.member_id, None)
    else:
        group.target[record.member_id] = {topic.topic_id: topic.partitions for topic in record.value.topic_partitions}


def _current_assignment(group: ConsumerGroup, record: ConsumerGroupCurrentMemberAssignmentRecord) -> None:
    member = group.members.get(record.member_id)
    if record.value is not None:
        group.put_member((member or ConsumerGroupMember(record.member_id)).with_current_assignment(record.value))
    elif member is not None:
        group.put_member(
            member._replace(
                member_epoch=LEAVE_EPOCH,
                previous_member_epoch=LEAVE_EPOCH,
                state=MemberState.STABLE,
                assigned={},
                pending_revocation={},
            )
        )


def _regular_expression(group: ConsumerGroup, record: ConsumerGroupRegularExpressionRecord) -> None:
    if record.value is None:
        group.resolved_regexes.pop(record.regular_expression, None)
    else:
        group.resolved_regexes[record.regular_expression] = record.value


# Each takes a record of its own kind.
_REPLAY: dict[type, Callable[..., None]] = {
    ConsumerGroupMetadataRecord: _metadata,
    ConsumerGroupPartitionMetadataRecord: _partition_metadata,
    ConsumerGroupMemberMetadataRecord: _member_metadata,
    ConsumerGroupTargetAssignmentMetadataRecord: _target_metadata,
    ConsumerGroupTargetAssignmentMemberRecord: _target_member,
    ConsumerGroupCurrentMemberAssignmentRecord: _current_assignment,
    ConsumerGroupRegularExpressionRecord: _regular_expression,
}
