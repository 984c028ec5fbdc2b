"""The KIP-848 protocol of one shard: heartbeats in, decisions out, and the replay of their records.

A heartbeat is everything: it joins, goes on, changes a subscription, confirms what was given up, and leaves. Its answer carries
the member's epoch, and its assignment when that changed, until the member says that it has just that. Kafka sends it once; but a
member may miss an answer without knowing (librdkafka gives one up that takes too long), and when the epoch is the same it would
never hear of it. After a restart all but that is there again, so members go on as if nothing had been; only their sessions begin
anew.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from tidelog.config.groups import HEARTBEAT_INTERVAL
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.consumer import membership
from tidelog.groups.consumer.describe import describe
from tidelog.groups.consumer.group import ConsumerGroup, subscribed_topic_names
from tidelog.groups.consumer.group_update import GroupUpdate
from tidelog.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    MemberState,
    without_epochs,
)
from tidelog.groups.consumer.reconciliation import OwnedPartitions
from tidelog.groups.consumer.replay import replay
from tidelog.groups.consumer.requests import UNCHANGED_MS, HeartbeatRequest, HeartbeatResponse, check_request
from tidelog.groups.consumer.target_assignment import metadata_hash
from tidelog.groups.consumer.timers import MemberTimers
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable
from tidelog.groups.records import (
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionRecord,
)
from tidelog.wire.errors import ErrorCode


class Migration(Protocol):
    """Groups that go over from one protocol to the other."""

    def upgrade(self, group: Group, records: list[Any]) -> ConsumerGroup:
        """The consumer group that takes the place of a group of another kind, once the records are replayed. ApiError
        (GROUP_ID_NOT_FOUND) when it may not."""
        ...

    def downgrade(self, group: ConsumerGroup, leaving: Iterable[ConsumerGroupMember]) -> list[Any] | None:
        """The records that make it a classic group, when only members of that protocol are left; None when it stays."""
        ...


class ConsumerProtocol:
    __slots__ = ("_environment", "_groups", "_is_loaded", "migration", "rebalances", "timers")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable) -> None:
        self._environment = environment
        self._groups = groups
        self._is_loaded = False
        self.timers = MemberTimers(environment, self.find, self.fence)
        self.migration: Migration | None = None
        self.rebalances = 0
        """Begun since the shard was loaded, in all groups."""

    def find(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.find(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    # -- requests ------------------------------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest) -> CoordinatorResult:
        """The response is a HeartbeatResponse."""
        check_request(request, self._environment.settings["group.consumer.assignors"])
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request)
        records: list[Any] = []
        group = self._get_group(request.group_id, request.member_epoch == JOIN_EPOCH, records)
        membership.check_size(group, request.member_id, self._environment.settings["group.consumer.max.size"])
        before, replaced_id = self._find_member(group, request, records)
        update = GroupUpdate(self._environment, group, before, _updated(before, request), replaced_id, records)
        member = update.run(request.owned)
        self.note_update(group, before, member, replaced_id)
        return CoordinatorResult(
            records,
            HeartbeatResponse(
                member.member_id,
                member.member_epoch,
                self._environment.group_setting(request.group_id, HEARTBEAT_INTERVAL),
                _assignment_to_tell(group, request, before, member),
            ),
        )

    def note_update(
        self, group: ConsumerGroup, before: ConsumerGroupMember, member: ConsumerGroupMember, replaced_id: str | None
    ) -> None:
        """What memory keeps of a member's request."""
        if replaced_id is not None:
            self.timers.forget(group, replaced_id)
        self.timers.heard_from(group, member)
        has_moved = (member.state, member.member_epoch) != (before.state, before.member_epoch)
        if member.classic is None and (has_moved or member.pending_revocation != before.pending_revocation):
            self.timers.reconciled(group.group_id, member)

    def describe(self, group_id: str) -> dict[str, Any]:
        """A described group of ConsumerGroupDescribe's response."""
        group = self._groups.find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return describe(group, self._environment.settings["group.consumer.assignors"][0], self._environment.image)

    def _get_group(self, group_id: str, may_create: bool, records: list[Any]) -> ConsumerGroup:
        group = self._groups.find(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is None:
            if not may_create:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            self._groups.check_room()
            return ConsumerGroup(group_id)
        if may_create and not group.has_members:
            # It only holds offsets, and they stay.
            records += group.tombstones()
            return ConsumerGroup(group_id)
        if may_create and self.migration is not None:
            return self.migration.upgrade(group, records)
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")

    def _find_member(
        self, group: ConsumerGroup, request: HeartbeatRequest, records: list[Any]
    ) -> tuple[ConsumerGroupMember, str | None]:
        """And whose place it takes."""
        joins = request.member_epoch == JOIN_EPOCH
        member_id = request.member_id or self._environment.new_id()
        if request.instance_id is None:
            member = membership.dynamic_member(group, member_id, may_join=joins)
            membership.check_epoch(member, request.member_epoch, request.owned)
            return member, None
        if not joins:
            member = membership.known_static_member(group, member_id, request.instance_id)
            membership.check_epoch(member, request.member_epoch, request.owned)
            return member, None
        replaced_id = group.static_members.get(request.instance_id)
        member = membership.joining_static_member(
            group, member_id, request.instance_id, uses_classic_protocol=False, records=records
        )
        return member, replaced_id

    # -- members that go -----------------------------------------------------------------------------------------------------

    def _leave(self, request: HeartbeatRequest) -> CoordinatorResult:
        group = self._get_group(request.group_id, False, [])
        response = HeartbeatResponse(request.member_id, request.member_epoch)
        if request.instance_id is None:
            return self.remove(group, [group.member(request.member_id)], response)
        member = membership.known_static_member(group, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_EPOCH:
            return self.remove(group, [member], response)
        away = member._replace(member_epoch=STATIC_LEAVE_EPOCH, pending_revocation={})
        value = away.current_assignment()
        record = ConsumerGroupCurrentMemberAssignmentRecord(group.group_id, member.member_id, value)
        return CoordinatorResult([record], response)

    def fence(self, group_id: str, member_id: str, reason: str) -> CoordinatorResult:
        """Put a member out that is late; when it is still there."""
        group = self.find(group_id)
        if group is None or member_id not in group.members:
            return CoordinatorResult()
        self._environment.report("consumer_group_member_fenced", {"group": group_id, "member": member_id, "reason": reason})
        return self.remove(group, [group.members[member_id]], None)

    def remove(self, group: ConsumerGroup, leaving: list[ConsumerGroupMember], response: Any) -> CoordinatorResult:
        """The others' target assignment follows with their next heartbeats: the group epoch has moved."""
        for member in leaving:
            self.timers.forget(group, member.member_id)
        downgrade = None if self.migration is None else self.migration.downgrade(group, leaving)
        if downgrade is not None:
            return CoordinatorResult(downgrade, response)
        records: list[Any] = []
        for member in leaving:
            records += membership.removal_records(group.group_id, member.member_id)
        gone = {member.member_id for member in leaving}
        staying = [member for member_id, member in group.members.items() if member_id not in gone]
        regexes = {member.subscribed_topic_regex for member in staying}
        for regex in group.resolved_regexes:
            if regex not in regexes:
                records.append(ConsumerGroupRegularExpressionRecord(group.group_id, regex, None))
        names = subscribed_topic_names(staying, group.resolved_regexes)
        value = ConsumerGroupMetadataValue(group.group_epoch + 1, metadata_hash(names, self._environment.image))
        records.append(ConsumerGroupMetadataRecord(group.group_id, value))
        return CoordinatorResult(records, response)

    # -- the log -------------------------------------------------------------------------------------------------------------

    def replay(self, record: Any) -> None:
        replay(self._groups, record)
        if self._is_loaded:
            self._time_rebalance(record)

    def _time_rebalance(self, record: Any) -> None:
        group = self.find(record.group_id)
        if group is None:
            return
        now_ms = self._environment.clock.monotonic_ms()
        if type(record) is ConsumerGroupMetadataRecord and group.rebalance_began_ms is None:
            self.rebalances += 1
            group.rebalance_began_ms = now_ms
        if group.rebalance_began_ms is not None and not group.members:
            group.rebalance_began_ms = None
        elif (
            type(record) is ConsumerGroupCurrentMemberAssignmentRecord
            and group.rebalance_began_ms is not None
            and group.group_epoch == group.assignment_epoch
            and group.is_reconciled
        ):
            group.rebalances += 1
            group.rebalance_ms_last = now_ms - group.rebalance_began_ms
            group.rebalance_ms_total += group.rebalance_ms_last
            group.rebalance_began_ms = None

    # -- the life of the shard -----------------------------------------------------------------------------------------------

    def on_loaded(self) -> None:
        self._is_loaded = True
        for group in self._groups:
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    self.timers.heard_from(group, member)
                    if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
                        self.timers.reconciled(group.group_id, member)

    def on_dropped(self, error: Exception) -> None:
        """Nobody waits here: every heartbeat is answered by its own decision."""


def _assignment_to_tell(
    group: ConsumerGroup, request: HeartbeatRequest, before: ConsumerGroupMember, member: ConsumerGroupMember
) -> Partitions | None:
    """None when the member knows it."""
    has_changed = member.assigned is not before.assigned and without_epochs(member.assigned) != without_epochs(before.assigned)
    if request.owned is not None and _has_just(request.owned, member):
        group.unconfirmed.discard(member.member_id)
    elif has_changed or request.owned is not None:
        group.unconfirmed.add(member.member_id)
    is_told = request.is_full or has_changed or member.member_id in group.unconfirmed
    return without_epochs(member.assigned) if is_told else None


def _has_just(owned: OwnedPartitions, member: ConsumerGroupMember) -> bool:
    assigned = {topic_id: partitions for topic_id, partitions in member.assigned.items() if partitions}
    return len(owned) == len(assigned) and all(
        owned.get(topic_id) == partitions.keys() for topic_id, partitions in assigned.items()
    )


def _updated(member: ConsumerGroupMember, request: HeartbeatRequest) -> ConsumerGroupMember:
    """With what the request says; what it leaves out stays."""
    changes: dict[str, Any] = {}
    for name in ("instance_id", "rack_id", "server_assignor"):
        value = getattr(request, name)
        if value is not None:
            changes[name] = value
    if request.subscribed_topic_regex is not None:
        # An empty one takes it back.
        changes["subscribed_topic_regex"] = request.subscribed_topic_regex or None
    if request.rebalance_timeout_ms != UNCHANGED_MS:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.subscribed_topic_names is not None:
        changes["subscribed_topic_names"] = tuple(sorted(set(request.subscribed_topic_names)))
    return member._replace(client_id=request.client_id, client_host=request.client_host, classic=None, **changes)
