"""Members of a consumer group that speak the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, answered from the
same state as heartbeats of KIP-848.

Such a member takes its epoch for a generation, and the coordinator for a leader that it never sees: it joins, is told at once
that another member leads, and fetches what the coordinator has assigned to it with SyncGroup. After a change its heartbeat is
answered with REBALANCE_IN_PROGRESS and it joins again; the partitions that it then owns confirm what it has released.
"""

from collections.abc import Sequence

from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.classic.requests import (
    UNKNOWN_MEMBER_ID,
    JoinRequest,
    JoinResponse,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from tidelog.groups.consumer.group import ConsumerGroup, ConsumerGroupMember, MemberState, without_epochs
from tidelog.groups.consumer.protocol import (
    ConsumerGroupProtocol,
    check_size,
    dynamic_member,
    joining_static_member,
    known_static_member,
)
from tidelog.groups.consumer.rebalance import GroupUpdate
from tidelog.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    MalformedProtocol,
    by_topic_id,
    by_topic_name,
    decode_subscription,
    encode_assignment,
)
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.migration.conversion import protocol_version
from tidelog.groups.records import ClassicMemberMetadata, ClassicProtocol
from tidelog.wire.errors import ErrorCode


class ClassicMembers:
    __slots__ = ("_consumer", "_environment")

    def __init__(self, environment: GroupEnvironment, consumer: ConsumerGroupProtocol) -> None:
        self._environment = environment
        self._consumer = consumer

    # -- JoinGroup -----------------------------------------------------------------------------------------------------------

    def join(self, group: ConsumerGroup, request: JoinRequest) -> CoordinatorResult:
        """The response is a JoinResponse. It is immediate: no member waits for others here."""
        try:
            return self._join(group, request)
        except ApiError as error:
            return CoordinatorResult(response=JoinResponse(error.code, request.member_id))

    def _join(self, group: ConsumerGroup, request: JoinRequest) -> CoordinatorResult:
        if self._environment.settings["group.consumer.migration.policy"] == "disabled":
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_unknown = request.member_id == UNKNOWN_MEMBER_ID
        member_id = self._environment.new_id() if is_unknown else request.member_id
        check_size(group, member_id, self._environment.settings["group.consumer.max.size"])
        subscription = _check_protocols(group, request)
        if is_unknown and request.group_instance_id is None and request.requires_known_member_id:
            return CoordinatorResult(response=JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        records: list[object] = []
        replaced_id = None
        if request.group_instance_id is None:
            before = dynamic_member(group, member_id, may_join=True)
        elif is_unknown:
            replaced_id = group.static_members.get(request.group_instance_id)
            before = joining_static_member(
                group, member_id, request.group_instance_id, uses_classic_protocol=True, records=records
            )
        else:
            before = known_static_member(group, member_id, request.group_instance_id)
        updated = _updated(before, request, subscription)
        self._consumer.check_subscription(group, updated)
        update = GroupUpdate(self._environment, group, before, updated, replaced_id, records)
        owned = by_topic_id(subscription.owned, self._environment.image)
        member = update.run({topic_id: frozenset(indexes) for topic_id, indexes in owned.items()})
        self._consumer.note_update(group, before, member, replaced_id)
        self._consumer.timers.expect_sync(group.group_id, member)
        response = JoinResponse(ErrorCode.NONE, member.member_id, member.member_epoch, PROTOCOL_TYPE, request.protocols[0][0])
        return CoordinatorResult(records, response)

    # -- SyncGroup and Heartbeat ---------------------------------------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: SyncRequest) -> CoordinatorResult:
        try:
            member = _known_member(group, request.member_id, request.group_instance_id, request.generation)
            classic = member.classic
            if request.protocol_type not in (None, PROTOCOL_TYPE) or (
                classic is not None and request.protocol_name not in (None, classic.supported_protocols[0].name)
            ):
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if group.group_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                # A member that is releasing partitions is already in the middle of a rebalance, and learns of the next one later.
                self._consumer.timers.expect_join(group.group_id, member)
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        except ApiError as error:
            return CoordinatorResult(response=SyncResponse(error.code))
        self._consumer.timers.synced(group.group_id, member.member_id)
        self._consumer.timers.heard_from(group, member)
        partitions = by_topic_name(without_epochs(member.assigned), self._environment.image)
        assignment = encode_assignment(partitions, protocol_version(member))
        return CoordinatorResult(response=SyncResponse(ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment))

    def heartbeat(
        self, group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation: int
    ) -> CoordinatorResult:
        """The response is the error code."""
        try:
            member = _known_member(group, member_id, group_instance_id, generation)
        except ApiError as error:
            return CoordinatorResult(response=error.code)
        self._consumer.timers.heard_from(group, member)
        if member.member_epoch < group.group_epoch or _must_rejoin(group, member):
            self._consumer.timers.expect_join(group.group_id, member)
            return CoordinatorResult(response=ErrorCode.REBALANCE_IN_PROGRESS)
        return CoordinatorResult(response=ErrorCode.NONE)

    # -- LeaveGroup ----------------------------------------------------------------------------------------------------------

    def leave(self, group: ConsumerGroup, leaving: Sequence[LeavingMember]) -> CoordinatorResult:
        """The response is a LeaveResult for each member."""
        results, members = [], {}
        for member_id, instance_id in leaving:
            try:
                member = _leaving_member(group, member_id, instance_id)
                if member.member_id in members:
                    raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
                members[member.member_id] = member
                results.append(LeaveResult(member.member_id, instance_id, ErrorCode.NONE))
            except ApiError as error:
                results.append(LeaveResult(member_id, instance_id, error.code))
        if not members:
            return CoordinatorResult(response=results)
        return self._consumer.remove(group, list(members.values()), results)


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> ConsumerProtocolSubscription:
    """All classic members must share at least one protocol."""
    others = [
        member for member_id, member in group.members.items() if member_id != request.member_id and member.classic is not None
    ]
    common = {name for name, _ in request.protocols}
    for member in others:
        if member.classic is not None:
            common &= {protocol.name for protocol in member.classic.supported_protocols}
    if request.protocol_type != PROTOCOL_TYPE or not common:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return decode_subscription(request.protocols[0][1])
    except MalformedProtocol:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the embedded consumer protocol is malformed") from None


def _updated(
    member: ConsumerGroupMember, request: JoinRequest, subscription: ConsumerProtocolSubscription
) -> ConsumerGroupMember:
    return member._replace(
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            request.session_timeout_ms, tuple(ClassicProtocol(name, metadata) for name, metadata in request.protocols)
        ),
    )


def _known_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerGroupMember:
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = known_static_member(group, member_id, instance_id)
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    if member.member_epoch != generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _leaving_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    """An administrator may name a static member by its instance id alone."""
    known_id = member_id
    if instance_id is not None and member_id == UNKNOWN_MEMBER_ID:
        known_id = group.static_members.get(instance_id, UNKNOWN_MEMBER_ID)
    if instance_id is None:
        member = group.member(known_id)
    else:
        member = known_static_member(group, known_id, instance_id)
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _must_rejoin(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    missing = [
        (topic_id, partition)
        for topic_id, partitions in group.target_of(member.member_id).items()
        for partition in partitions
        if partition not in member.assigned.get(topic_id, {})
    ]
    return all(group.is_free_for(member.member_id, topic_id, partition) for topic_id, partition in missing)
