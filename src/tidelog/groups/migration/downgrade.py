"""A consumer group becomes a classic group again, when the last member that speaks KIP-848 goes and others are left.

The group epoch becomes the generation, and each member's target its assignment; then they rebalance, by their own protocol.
"""

from collections.abc import Iterable
from typing import Any

from tidelog.groups.classic.group import ClassicGroup
from tidelog.groups.classic.member import ClassicMember
from tidelog.groups.classic.record import group_record
from tidelog.groups.classic.state import ClassicState
from tidelog.groups.classic.votes import select_protocol
from tidelog.groups.consumer.group import ConsumerGroup
from tidelog.groups.consumer.member import ConsumerGroupMember
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.migration.consumer_protocol import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    decode_subscription,
    encode_assignment,
)
from tidelog.groups.migration.topics import by_topic_name

DOWNGRADING_POLICIES = ("bidirectional", "downgrade")


def downgrade_records(
    group: ConsumerGroup, leaving: Iterable[ConsumerGroupMember], environment: GroupEnvironment
) -> list[Any] | None:
    """None when the group stays what it is."""
    gone = {member.member_id for member in leaving}
    staying = [member for member_id, member in group.members.items() if member_id not in gone]
    if not staying or any(member.classic is None for member in staying):
        return None
    if environment.settings["group.consumer.migration.policy"] not in DOWNGRADING_POLICIES:
        return None
    if len(staying) > environment.settings["group.max.size"]:
        return None
    downgraded = ClassicGroup(group.group_id, environment.clock.now_ms())
    downgraded.generation = group.group_epoch
    for member in staying:
        downgraded.add(_member(member), PROTOCOL_TYPE)
    downgraded.state = ClassicState.STABLE
    downgraded.protocol_name = select_protocol(downgraded.members.values())
    assignments = {}
    for member in staying:
        partitions = by_topic_name(group.target_of(member.member_id), environment.image)
        assignments[member.member_id] = encode_assignment(partitions, protocol_version(member))
    return [*group.tombstones(), group_record(downgraded, assignments)]


def _member(member: ConsumerGroupMember) -> ClassicMember:
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
    """Of the metadata that a member of the classic protocol sent: it can read an assignment of the same version."""
    if member.classic is None or not member.classic.supported_protocols:
        return 0
    try:
        return decode_subscription(member.classic.supported_protocols[0].metadata).version
    except MalformedProtocol:
        return 0
