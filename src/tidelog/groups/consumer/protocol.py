"""The KIP-848 protocol of one shard: heartbeats in, decisions out.

One request does everything: a heartbeat joins a group, stays in it, changes a subscription, confirms released partitions, and
leaves. Its answer carries the member's epoch, and its assignment after a change, until the member confirms that it has exactly
that. Kafka sends the assignment once; but a member may miss an answer without noticing (librdkafka abandons one that takes too
long), and while the epoch stays the same it would never learn of it. After a restart everything else is still there, so members
continue as if nothing had happened; only their sessions start over.

**Membership**: a request comes from a member of the group, a new one, a static one that is back, or one that is no longer in the
group. Error messages are Kafka's.

**Time-outs**: a session's deadline moves with every heartbeat; its timer does not. A timer that fires too early is set again for
the rest, so a heartbeat costs one write to a dictionary. A timer that finds its member gone does nothing. The names of timers
differ from those of classic groups, because a member may move from one to the other.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tidelog.config.groups import HEARTBEAT_INTERVAL, METADATA_BYTES_MAX, SESSION_TIMEOUT
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.consumer.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    AssignedPartitions,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    replay_consumer_group,
    subscribed_topic_names,
    without_epochs,
)
from tidelog.groups.consumer.rebalance import GroupUpdate, OwnedPartitions, metadata_hash, preferred_assignor, target_record
from tidelog.groups.consumer.requests import UNCHANGED_MS, ConsumerHeartbeatRequest, ConsumerHeartbeatResponse, check_request
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import Group, GroupTable, GroupType, HeldSubscriptions, subscription_size
from tidelog.groups.records import (
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionRecord,
    ConsumerGroupTargetAssignmentMemberRecord,
)
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


Fence = Callable[[str, str, str], CoordinatorResult]
"""Gets the group id, the member id and the reason."""


class MemberTimers:
    __slots__ = ("_environment", "_fence", "_find")

    def __init__(self, environment: GroupEnvironment, find: Callable[[str], ConsumerGroup | None], fence: Fence) -> None:
        self._environment = environment
        self._find = find
        self._fence = fence

    def heard_from(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        """Start the member's session over."""
        group_id, member_id, session_ms = group.group_id, member.member_id, self._session_ms(group, member)
        deadline_ms = self._environment.clock.monotonic_ms() + session_ms
        last_ms = group.session_deadlines_ms.get(member_id)
        group.session_deadlines_ms[member_id] = deadline_ms
        # The deadline is earlier than the last one when the group's session time-out was lowered.
        is_earlier = last_ms is None or deadline_ms < last_ms
        if is_earlier or ("member session", group_id, member_id) not in self._environment.timers:
            self._schedule_session(group_id, member_id, session_ms)

    def _session_ms(self, group: ConsumerGroup, member: ConsumerGroupMember) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self._environment.group_setting(group.group_id, SESSION_TIMEOUT)

    def _schedule_session(self, group_id: str, member_id: str, delay_ms: int) -> None:
        def check() -> CoordinatorResult:
            group = self._find(group_id)
            if group is None or member_id not in group.members:
                return CoordinatorResult()
            remaining_ms = group.session_deadlines_ms.get(member_id, 0) - self._environment.clock.monotonic_ms()
            if remaining_ms > 0:
                self._schedule_session(group_id, member_id, remaining_ms)
                return CoordinatorResult()
            return self._fence(group_id, member_id, "the member session expired")

        self._environment.timers.schedule(("member session", group_id, member_id), delay_ms, check)

    def reconciled(self, group_id: str, member: ConsumerGroupMember) -> None:
        """Called when the member's assignment has changed: it has partitions to release, or no longer has any."""
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._cancel("member rebalance", group_id, member.member_id)
            return
        member_id, epoch, timeout_ms = member.member_id, member.member_epoch, member.rebalance_timeout_ms

        def check() -> CoordinatorResult:
            group = self._find(group_id)
            found = None if group is None else group.members.get(member_id)
            if found is None or found.member_epoch != epoch:
                return CoordinatorResult()
            return self._fence(group_id, member_id, f"it failed to transition from epoch {epoch} within {timeout_ms} ms")

        self._environment.timers.schedule(("member rebalance", group_id, member_id), timeout_ms, check)

    def expect_join(self, group_id: str, member: ConsumerGroupMember) -> None:
        """Expect a classic member to join again, because it was told to. A timer that already runs is not extended."""
        if ("member join", group_id, member.member_id) not in self._environment.timers:
            self._expect("member join", group_id, member, "the classic member failed to join within the rebalance timeout")

    def expect_sync(self, group_id: str, member: ConsumerGroupMember) -> None:
        """Expect a member that has joined to fetch its assignment."""
        self._cancel("member join", group_id, member.member_id)
        self._expect("member sync", group_id, member, "the member failed to sync within timeout")

    def synced(self, group_id: str, member_id: str) -> None:
        self._cancel("member sync", group_id, member_id)

    def _expect(self, kind: str, group_id: str, member: ConsumerGroupMember, reason: str) -> None:
        member_id = member.member_id
        self._environment.timers.schedule(
            (kind, group_id, member_id), member.rebalance_timeout_ms, lambda: self._fence(group_id, member_id, reason)
        )

    def _cancel(self, kind: str, group_id: str, member_id: str) -> None:
        self._environment.timers.cancel((kind, group_id, member_id))

    def forget(self, group: ConsumerGroup, member_id: str) -> None:
        group.session_deadlines_ms.pop(member_id, None)
        group.unconfirmed.discard(member_id)
        for kind in ("member session", "member rebalance", "member join", "member sync"):
            self._cancel(kind, group.group_id, member_id)


class GroupMigration(Protocol):
    """Moves groups from one protocol to the other."""

    def upgrade(self, group: Group, records: list[Any]) -> ConsumerGroup:
        """The consumer group that takes the place of ``group`` once the records are replayed. Raises ApiError
        (GROUP_ID_NOT_FOUND) when that is not allowed."""
        ...

    def downgrade(self, group: ConsumerGroup, leaving: Iterable[ConsumerGroupMember]) -> list[Any] | None:
        """Return the records that make it a classic group, if only members of that protocol are left; None if it stays."""
        ...


class ConsumerGroupProtocol:
    __slots__ = ("_environment", "_groups", "_held", "_is_loaded", "_migration", "rebalances", "timers")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable) -> None:
        self._environment = environment
        self._groups = groups
        self._is_loaded = False
        self.timers = MemberTimers(environment, self.find, self.fence)
        self._migration: GroupMigration | None = None
        self._held = HeldSubscriptions(environment.metadata_budget, environment.settings[METADATA_BYTES_MAX])
        self.rebalances = 0
        """Rebalances begun since the shard was loaded, in all groups."""

    def migrate_with(self, migration: GroupMigration) -> None:
        self._migration = migration

    def find(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.find(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    # -- requests ------------------------------------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeatRequest) -> CoordinatorResult:
        """The response is a ConsumerHeartbeatResponse."""
        check_request(request, self._environment.settings["group.consumer.assignors"])
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(request)
        records: list[Any] = []
        group = self._get_group(request.group_id, request.member_epoch == JOIN_EPOCH, records)
        check_size(group, request.member_id, self._environment.settings["group.consumer.max.size"])
        before, replaced_id = self._find_member(group, request, records)
        updated = _updated(before, request)
        if updated != before:
            self.check_subscription(group, updated)
        update = GroupUpdate(self._environment, group, before, updated, replaced_id, records)
        member = update.run(request.owned)
        self.note_update(group, before, member, replaced_id)
        return CoordinatorResult(
            records,
            ConsumerHeartbeatResponse(
                member.member_id,
                member.member_epoch,
                self._environment.group_setting(request.group_id, HEARTBEAT_INTERVAL),
                _assignment_to_tell(group, request, before, member),
            ),
        )

    def check_subscription(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        """Raises ApiError if the group, or all groups together, would hold too much with what the member says."""
        self._held.check(group.group_id, member.member_id, _size_of(member.metadata()))

    def note_update(
        self, group: ConsumerGroup, before: ConsumerGroupMember, member: ConsumerGroupMember, replaced_id: str | None
    ) -> None:
        """Update the soft state after a member's request."""
        if replaced_id is not None:
            self.timers.forget(group, replaced_id)
        self.timers.heard_from(group, member)
        has_moved = (member.state, member.member_epoch) != (before.state, before.member_epoch)
        if member.classic is None and (has_moved or member.pending_revocation != before.pending_revocation):
            self.timers.reconciled(group.group_id, member)

    def describe(self, group_id: str) -> dict[str, Any]:
        """Return a described group of ConsumerGroupDescribe's response."""
        group = self._groups.find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return _describe(group, self._environment.settings["group.consumer.assignors"][0], self._environment.image)

    def _get_group(self, group_id: str, may_create: bool, records: list[Any]) -> ConsumerGroup:
        group = self._groups.find(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is None:
            if not may_create:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            self._groups.check_room()
            return ConsumerGroup(group_id)
        if may_create and not group.has_members and group.type is not GroupType.SHARE:
            # The group only holds offsets, and they stay.
            records += group.tombstones()
            return ConsumerGroup(group_id)
        if may_create and self._migration is not None:
            return self._migration.upgrade(group, records)
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")

    def _find_member(
        self, group: ConsumerGroup, request: ConsumerHeartbeatRequest, records: list[Any]
    ) -> tuple[ConsumerGroupMember, str | None]:
        """Return the member, and the id of the member that it replaces."""
        joins = request.member_epoch == JOIN_EPOCH
        member_id = request.member_id or self._environment.new_id()
        if request.instance_id is None:
            member = dynamic_member(group, member_id, may_join=joins)
            check_epoch(member, request.member_epoch, request.owned)
            return member, None
        if not joins:
            member = known_static_member(group, member_id, request.instance_id)
            check_epoch(member, request.member_epoch, request.owned)
            return member, None
        replaced_id = group.static_members.get(request.instance_id)
        member = joining_static_member(group, member_id, request.instance_id, uses_classic_protocol=False, records=records)
        return member, replaced_id

    # -- members that leave --------------------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerHeartbeatRequest) -> CoordinatorResult:
        group = self._get_group(request.group_id, False, [])
        response = ConsumerHeartbeatResponse(request.member_id, request.member_epoch)
        if request.instance_id is None:
            return self.remove(group, [group.member(request.member_id)], response)
        member = known_static_member(group, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_EPOCH:
            return self.remove(group, [member], response)
        away = member._replace(member_epoch=STATIC_LEAVE_EPOCH, pending_revocation={})
        value = away.current_assignment()
        record = ConsumerGroupCurrentMemberAssignmentRecord(group.group_id, member.member_id, value)
        return CoordinatorResult([record], response)

    def fence(self, group_id: str, member_id: str, reason: str) -> CoordinatorResult:
        """Remove a member that is late, if it is still in the group."""
        group = self.find(group_id)
        if group is None or member_id not in group.members:
            return CoordinatorResult()
        self._environment.report("consumer_group_member_fenced", {"group": group_id, "member": member_id, "reason": reason})
        return self.remove(group, [group.members[member_id]], None)

    def remove(self, group: ConsumerGroup, leaving: list[ConsumerGroupMember], response: Any) -> CoordinatorResult:
        """Remove a member. The group epoch is raised, and the others get a new target assignment with their next heartbeats."""
        for member in leaving:
            self.timers.forget(group, member.member_id)
        downgrade = None if self._migration is None else self._migration.downgrade(group, leaving)
        if downgrade is not None:
            return CoordinatorResult(downgrade, response)
        records: list[Any] = []
        for member in leaving:
            records += removal_records(group.group_id, member.member_id)
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
        replay_consumer_group(self._groups, record)
        self._note_held(record)
        if not self._is_loaded:
            return
        group = self.find(record.group_id)
        if group is not None and group.time_rebalance(record, self._environment.clock.monotonic_ms()):
            self.rebalances += 1

    def _note_held(self, record: Any) -> None:
        kind, value = type(record), record.value
        if kind is ConsumerGroupMemberMetadataRecord:
            self._held.note(record.group_id, record.member_id, 0 if value is None else _size_of(value))
        elif kind is ConsumerGroupRegularExpressionRecord:
            # The topics that match it, which each member may multiply with an expression of its own.
            size = 0 if value is None else subscription_size(value.topics, record.regular_expression)
            self._held.note(record.group_id, f"regex {record.regular_expression}", size)
        elif kind is ConsumerGroupMetadataRecord and value is None:
            self._held.forget(record.group_id)

    # -- the life of the shard -----------------------------------------------------------------------------------------------

    def on_dropped(self) -> None:
        self._held.forget_all()

    def on_loaded(self) -> None:
        self._is_loaded = True
        for group in self._groups:
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    self.timers.heard_from(group, member)
                    if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
                        self.timers.reconciled(group.group_id, member)


def _assignment_to_tell(
    group: ConsumerGroup, request: ConsumerHeartbeatRequest, before: ConsumerGroupMember, member: ConsumerGroupMember
) -> Partitions | None:
    """The assignment to send; None when the member already knows it."""
    has_changed = member.assigned is not before.assigned and without_epochs(member.assigned) != without_epochs(before.assigned)
    if request.owned is not None and _has_just(request.owned, member):
        group.unconfirmed.discard(member.member_id)
    elif has_changed or request.owned is not None:
        group.unconfirmed.add(member.member_id)
    is_told = request.is_full or has_changed or member.member_id in group.unconfirmed
    return without_epochs(member.assigned) if is_told else None


def _size_of(value: ConsumerGroupMemberMetadataValue) -> int:
    size = subscription_size(
        value.subscribed_topic_names, value.subscribed_topic_regex, value.client_id, value.rack_id, value.instance_id
    )
    classic = value.classic_member_metadata
    if classic is not None:
        size += sum([len(name) + len(metadata) for name, metadata in classic.supported_protocols])
    return size


def _has_just(owned: OwnedPartitions, member: ConsumerGroupMember) -> bool:
    assigned = {topic_id: partitions for topic_id, partitions in member.assigned.items() if partitions}
    return len(owned) == len(assigned) and all(
        owned.get(topic_id) == partitions.keys() for topic_id, partitions in assigned.items()
    )


def _updated(member: ConsumerGroupMember, request: ConsumerHeartbeatRequest) -> ConsumerGroupMember:
    """The member updated with what the request contains; what it leaves out stays."""
    changes: dict[str, Any] = {}
    for name in ("instance_id", "rack_id", "server_assignor"):
        value = getattr(request, name)
        if value is not None:
            changes[name] = value
    if request.subscribed_topic_regex is not None:
        # An empty expression removes it.
        changes["subscribed_topic_regex"] = request.subscribed_topic_regex or None
    if request.rebalance_timeout_ms != UNCHANGED_MS:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.subscribed_topic_names is not None:
        changes["subscribed_topic_names"] = tuple(sorted(set(request.subscribed_topic_names)))
    return member._replace(client_id=request.client_id, client_host=request.client_host, classic=None, **changes)


# -- membership --------------------------------------------------------------------------------------------------------------


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
    """Return a new instance, or one that takes over from the member with its instance id and begins at epoch 0."""
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
    """A member whose epoch differs from the coordinator's must join again, unless the answer with its epoch was lost: then it is
    exactly one behind and has nothing that it should not have."""
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


# -- ConsumerGroupDescribe ---------------------------------------------------------------------------------------------------


def _describe(group: ConsumerGroup, default_assignor: str, image: ClusterImage) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "group_id": group.group_id,
        "group_state": group.state_name,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": preferred_assignor(group.members.values(), default_assignor),
        "members": [_describe_member(member, group.target_of(member.member_id), image) for member in group.members.values()],
    }


def _describe_member(member: ConsumerGroupMember, target: Partitions, image: ClusterImage) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "assignment": _describe_assignment(without_epochs(member.assigned), image),
        "target_assignment": _describe_assignment(target, image),
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }


def _describe_assignment(partitions: Partitions, image: ClusterImage) -> dict[str, Any]:
    """Describe an assignment. A deleted topic has no name, and is left out."""
    topics = [(topic_id, image.topic_by_id(topic_id), indexes) for topic_id, indexes in sorted(partitions.items())]
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": topic.name, "partitions": indexes}
            for topic_id, topic, indexes in topics
            if topic is not None
        ]
    }
