"""A classic group as Kafka's GroupMetadata record, and back.

The record has the metadata of the chosen protocol only: after a restart members seem to have no other, until they join again.
"""

from collections.abc import Mapping

from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.records import GroupMetadataRecord, GroupMetadataValue, MemberMetadata


def group_record(
    group: ClassicGroup, assignments: Mapping[str, bytes], replaced: ClassicMember | None = None
) -> GroupMetadataRecord:
    """``assignments`` by member id; who is not in it gets an empty one. ``replaced`` stands for the static member whose
    group.instance.id it has, and gets what that one has."""
    leader_id, members = group.leader_id, []
    for member in group.members.values():
        assignment = assignments.get(member.member_id, b"")
        if replaced is not None and member.group_instance_id == replaced.group_instance_id:
            if leader_id == member.member_id:
                leader_id = replaced.member_id
            member = replaced
        members.append(
            MemberMetadata(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(group.protocol_name),
                assignment,
            )
        )
    return GroupMetadataRecord(
        group.group_id,
        GroupMetadataValue(
            group.protocol_type, group.generation, group.protocol_name, leader_id, group.state_timestamp_ms, tuple(members)
        ),
    )


def load_group(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """Stable, or empty when it has no members: nothing else is ever written."""
    group = ClassicGroup(group_id, value.current_state_timestamp)
    group.generation = value.generation
    group.protocol_name = value.protocol
    for member in value.members:
        group.add(_load_member(member, value.protocol or ""), value.protocol_type)
    group.protocol_type = value.protocol_type
    group.leader_id = value.leader
    if value.members:
        group.state = ClassicState.STABLE
    return group


def _load_member(member: MemberMetadata, protocol_name: str) -> ClassicMember:
    # Records before version 1 have no rebalance time-out.
    rebalance_timeout_ms = member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout
    return ClassicMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        rebalance_timeout_ms,
        member.session_timeout,
        ((protocol_name, member.subscription),),
        member.assignment,
    )
