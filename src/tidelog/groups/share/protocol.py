"""The protocol of share groups on one shard: heartbeats in, decisions out.

A heartbeat joins a group, stays in it, changes a subscription, and leaves. A partition is assigned only once the share
coordinator keeps state for it: the response to a heartbeat says for which partitions that has to begin, the broker sees to it and
reports back (``states_initialized``), and the next heartbeats bring the assignment. What was begun and never reported is begun
again.

An administrator may set the group's offsets or delete them, as long as nobody is in the group. Both take two decisions with a
call to the share coordinator in between, and the group remembers what was begun. Error messages are Kafka's.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.config.groups import METADATA_BYTES_MAX, SHARE_HEARTBEAT_INTERVAL, SHARE_SESSION_TIMEOUT
from tidelog.controller.errors import ApiError
from tidelog.coordinator.machine import CoordinatorResult
from tidelog.groups.assignors.simple import assign_simple
from tidelog.groups.assignors.specification import MemberSubscription, Partitions
from tidelog.groups.classic.requests import STRING_BYTES_MAX, fits_into_record
from tidelog.groups.environment import GroupEnvironment
from tidelog.groups.group import GroupTable, HeldSubscriptions, subscription_size
from tidelog.groups.records import (
    ShareGroupCurrentMemberAssignmentRecord,
    ShareGroupMemberMetadataRecord,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataRecord,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataRecord,
    ShareGroupTargetAssignmentMemberRecord,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataRecord,
    ShareGroupTargetAssignmentMetadataValue,
)
from tidelog.groups.share.group import (
    ShareGroup,
    ShareGroupMember,
    StatePartitions,
    TopicState,
    TopicStates,
    replay_share_group,
    topic_partitions,
)
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
MEMBER_ID_LENGTH_MAX = 36
ASSIGNOR_NAME = "simple"


class ShareHeartbeatRequest(NamedTuple):
    """None means unchanged since the last heartbeat."""

    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    subscribed_topic_names: Sequence[str] | None = None
    client_id: str = ""
    client_host: str = ""


class StateInitialization(NamedTuple):
    """The states that the share coordinator has to begin."""

    group_id: str
    state_epoch: int
    topics: TopicStates


class ShareHeartbeatResponse(NamedTuple):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """None means unchanged."""
    initialization: StateInitialization | None = None


class ShareGroupProtocol:
    __slots__ = ("_begun_ms", "_environment", "_groups", "_held")

    def __init__(self, environment: GroupEnvironment, groups: GroupTable) -> None:
        self._environment = environment
        self._groups = groups
        # When the share coordinator was last asked to begin the states of a topic, by group and topic id.
        self._begun_ms: dict[tuple[str, bytes], int] = {}
        self._held = HeldSubscriptions(environment.metadata_budget, environment.settings[METADATA_BYTES_MAX])

    # -- heartbeats ----------------------------------------------------------------------------------------------------------

    def heartbeat(self, request: ShareHeartbeatRequest) -> CoordinatorResult:
        """The response is a ShareHeartbeatResponse."""
        _check_request(request)
        joins = request.member_epoch == JOIN_EPOCH
        group = self.find(request.group_id) if not joins else self._find_or_create(request.group_id)
        if request.member_epoch == LEAVE_EPOCH:
            response = ShareHeartbeatResponse(request.member_id, LEAVE_EPOCH)
            return self._remove(group, group.member(request.member_id), response)
        self._check_size(group, request.member_id)
        before = group.members.get(request.member_id) if joins else group.member(request.member_id)
        before = before or ShareGroupMember(request.member_id)
        if not joins:
            _check_epoch(before, request.member_epoch)
        records: list[Any] = []
        member = self._update(group, before, request, records)
        initialization = self._begin_states(group, member, records)
        self._heard_from(group, member.member_id)
        is_told = joins or request.subscribed_topic_names is not None or member.assigned != before.assigned
        interval_ms = self._environment.group_setting(request.group_id, SHARE_HEARTBEAT_INTERVAL)
        return CoordinatorResult(
            records,
            ShareHeartbeatResponse(
                member.member_id, member.member_epoch, interval_ms, member.assigned if is_told else None, initialization
            ),
        )

    def _update(
        self, group: ShareGroup, before: ShareGroupMember, request: ShareHeartbeatRequest, records: list[Any]
    ) -> ShareGroupMember:
        """Return the member after the request. Each step adds its records."""
        group_id, image = group.group_id, self._environment.image
        member = _updated(before, request)
        if member != before or before.member_id not in group.members:
            self._held.check(group_id, member.member_id, _size_of(member.metadata()))
            records.append(ShareGroupMemberMetadataRecord(group_id, member.member_id, member.metadata()))
        members = group.members_with(member)
        names = {name for each in members for name in each.subscribed_topic_names}
        has_changed = member.subscribed_topic_names != before.subscribed_topic_names or not group.group_epoch
        group_epoch, new_hash = group.group_epoch, group.metadata_hash
        if has_changed or group.topics_version != image.topics.version:
            new_hash = _metadata_hash(names, image)
            group.note_topics(image.topics.version)
        if has_changed or new_hash != group.metadata_hash or self._is_assignment_pending(group, names):
            group_epoch += 1
            records.append(ShareGroupMetadataRecord(group_id, ShareGroupMetadataValue(group_epoch, new_hash)))
        target, epoch = group.target.get(member.member_id, {}), group.assignment_epoch
        if group_epoch > group.assignment_epoch:
            epoch = group_epoch
            target = self._update_target(group, members, epoch, records)[member.member_id]
        if member.member_epoch != epoch or member.assigned != target:
            member = member._replace(member_epoch=epoch, previous_member_epoch=member.member_epoch, assigned=target)
            value = member.current_assignment()
            records.append(ShareGroupCurrentMemberAssignmentRecord(group_id, member.member_id, value))
        return member

    def _is_assignment_pending(self, group: ShareGroup, names: Collection[str]) -> bool:
        """Whether partitions have got their state since the target was computed."""
        if group.group_epoch > group.assignment_epoch:
            return False
        assigned: dict[bytes, set[int]] = {}
        for target in group.target.values():
            for topic_id, indexes in target.items():
                assigned.setdefault(topic_id, set()).update(indexes)
        image = self._environment.image
        return any(
            state.name in names and image.topic_by_id(topic_id) is not None and assigned.get(topic_id) != set(state.partitions)
            for topic_id, state in group.states.initialized.items()
        )

    def _update_target(
        self, group: ShareGroup, members: Iterable[ShareGroupMember], epoch: int, records: list[Any]
    ) -> Mapping[str, Partitions]:
        image = self._environment.image
        partitions = {
            topic_id: state.partitions
            for topic_id, state in group.states.initialized.items()
            if image.topic_by_id(topic_id) is not None
        }
        subscriptions = {}
        for member in members:
            topics = map(image.topic, member.subscribed_topic_names)
            topic_ids = frozenset([topic.topic_id for topic in topics if topic is not None])
            subscriptions[member.member_id] = MemberSubscription(topic_ids, None, group.target.get(member.member_id, {}))
        target = assign_simple(subscriptions, partitions)
        for member_id, assigned in sorted(target.items()):
            if group.target.get(member_id) != assigned:
                value = ShareGroupTargetAssignmentMemberValue(topic_partitions(assigned))
                records.append(ShareGroupTargetAssignmentMemberRecord(group.group_id, member_id, value))
        metadata = ShareGroupTargetAssignmentMetadataValue(epoch, self._environment.clock.now_ms())
        records.append(ShareGroupTargetAssignmentMetadataRecord(group.group_id, metadata))
        return target

    # -- the states of partitions --------------------------------------------------------------------------------------------

    def _begin_states(self, group: ShareGroup, member: ShareGroupMember, records: list[Any]) -> StateInitialization | None:
        now_ms = self._environment.clock.monotonic_ms()
        retry_ms = self._environment.settings["group.share.initialize.retry.interval.ms"]
        missing: dict[bytes, TopicState] = {}
        for name in {name for each in group.members_with(member) for name in each.subscribed_topic_names}:
            topic = self._environment.image.topic(name)
            if topic is None:
                continue
            begun_ms = self._begun_ms.get((group.group_id, topic.topic_id))
            known = group.states.initialized.get(topic.topic_id)
            has = set(known.partitions) if known is not None else set()
            if begun_ms is not None and now_ms - begun_ms < retry_ms and topic.topic_id in group.states.initializing:
                has.update(group.states.initializing[topic.topic_id].partitions)
            lacking = tuple([index for index in sorted(topic.partitions) if index not in has])
            if lacking:
                missing[topic.topic_id] = TopicState(name, lacking)
        if not missing:
            return None
        self._begun_ms.update({(group.group_id, each): now_ms for each in missing})
        records.append(_states_record(group.group_id, group.states.begin(missing)))
        # The epoch that these records make the group's.
        epochs = [record.value.epoch for record in records if type(record) is ShareGroupMetadataRecord and record.value]
        return StateInitialization(group.group_id, max(epochs, default=group.group_epoch), missing)

    def states_initialized(self, group_id: str, topics: TopicStates) -> CoordinatorResult:
        """The share coordinator has begun these states. They are assigned with the next heartbeats."""
        group = self.find(group_id)
        for each in topics:
            self._begun_ms.pop((group_id, each), None)
        return CoordinatorResult([_states_record(group_id, group.states.complete(topics))])

    def begin_alteration(self, group_id: str, topics: TopicStates) -> CoordinatorResult:
        """An administrator sets offsets. The response is the state epoch, from which on leaders with older states are fenced."""
        group = self._find_empty(group_id)
        epoch = group.group_epoch + 1
        metadata = ShareGroupMetadataRecord(group_id, ShareGroupMetadataValue(epoch, group.metadata_hash))
        return CoordinatorResult([metadata, _states_record(group_id, group.states.begin(topics))], epoch)

    def begin_deletion(self, group_id: str, topic_ids: Collection[bytes] | None = None) -> CoordinatorResult:
        """Delete states of an empty group: of these topics, or of all. The response has the topics to delete, with their
        partitions."""
        group = self._find_empty(group_id)
        states, image = group.states, self._environment.image
        names = {topic_id: state.name for topic_id, state in (*states.initializing.items(), *states.initialized.items())}
        names.update(states.deleting)
        wanted = {topic_id: name for topic_id, name in names.items() if topic_ids is None or topic_id in topic_ids}
        topics: dict[bytes, TopicState] = {}
        for topic_id, name in wanted.items():
            known = [each[topic_id].partitions for each in (states.initializing, states.initialized) if topic_id in each]
            topic = image.topic_by_id(topic_id)
            indexes = {index for partitions in known for index in partitions} | set(topic.partitions if topic is not None else ())
            topics[topic_id] = TopicState(name, tuple(sorted(indexes)))
        records = [_states_record(group_id, states.begin_deletion(wanted))] if wanted else []
        return CoordinatorResult(records, topics)

    def states_deleted(self, group_id: str, topic_ids: Iterable[bytes]) -> CoordinatorResult:
        group = self.find(group_id)
        return CoordinatorResult([_states_record(group_id, group.states.complete_deletion(topic_ids))])

    def states_of(self, group_id: str) -> TopicStates:
        """The topics whose offsets the group has."""
        return self.find(group_id).states.initialized

    # -- groups and members --------------------------------------------------------------------------------------------------

    def is_share_group(self, group_id: str) -> bool:
        return isinstance(self._groups.find(group_id), ShareGroup)

    def find(self, group_id: str) -> ShareGroup:
        group = self._groups.find(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
        if not isinstance(group, ShareGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        return group

    def _find_or_create(self, group_id: str) -> ShareGroup:
        if self._groups.find(group_id) is None:
            self._groups.check_room()
            return ShareGroup(group_id)
        return self.find(group_id)

    def _find_empty(self, group_id: str) -> ShareGroup:
        group = self.find(group_id)
        group.check_deletion()
        return group

    def _check_size(self, group: ShareGroup, member_id: str) -> None:
        size_max = self._environment.settings["group.share.max.size"]
        if len(group.members) >= size_max and member_id not in group.members:
            message = f"The share group has reached its maximum capacity of {size_max} members."
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)

    def _remove(self, group: ShareGroup, member: ShareGroupMember, response: Any) -> CoordinatorResult:
        group_id, member_id = group.group_id, member.member_id
        group.note_session(member_id, None)
        self._environment.timers.cancel(("share session", group_id, member_id))
        names = {
            name for other in group.members.values() if other.member_id != member_id for name in other.subscribed_topic_names
        }
        metadata = ShareGroupMetadataValue(group.group_epoch + 1, _metadata_hash(names, self._environment.image))
        return CoordinatorResult(
            [
                ShareGroupCurrentMemberAssignmentRecord(group_id, member_id, None),
                ShareGroupTargetAssignmentMemberRecord(group_id, member_id, None),
                ShareGroupMemberMetadataRecord(group_id, member_id, None),
                ShareGroupMetadataRecord(group_id, metadata),
            ],
            response,
        )

    # -- sessions ------------------------------------------------------------------------------------------------------------

    def _heard_from(self, group: ShareGroup, member_id: str) -> None:
        """Start the member's session over. The deadline moves with every heartbeat, and its timer does not."""
        session_ms = self._environment.group_setting(group.group_id, SHARE_SESSION_TIMEOUT)
        deadline_ms = self._environment.clock.monotonic_ms() + session_ms
        last_ms = group.note_session(member_id, deadline_ms)
        is_earlier = last_ms is None or deadline_ms < last_ms
        if is_earlier or ("share session", group.group_id, member_id) not in self._environment.timers:
            self._schedule_session(group, member_id, session_ms)

    def _schedule_session(self, group: ShareGroup, member_id: str, delay_ms: int) -> None:
        def check() -> CoordinatorResult:
            found = self._groups.find(group.group_id)
            if not isinstance(found, ShareGroup) or member_id not in found.members:
                return CoordinatorResult()
            # A group that a heartbeat has created is replaced by the one that its records make.
            deadline_ms = max(each.session_deadlines_ms.get(member_id, 0) for each in (found, group))
            remaining_ms = deadline_ms - self._environment.clock.monotonic_ms()
            if remaining_ms > 0:
                self._schedule_session(found, member_id, remaining_ms)
                return CoordinatorResult()
            details: dict[str, object] = {"group": group.group_id, "member": member_id, "reason": "the member session expired"}
            self._environment.report("share_group_member_fenced", details)
            return self._remove(found, found.members[member_id], None)

        self._environment.timers.schedule(("share session", group.group_id, member_id), delay_ms, check)

    # -- the life of the shard -----------------------------------------------------------------------------------------------

    def replay(self, record: Any) -> None:
        replay_share_group(self._groups, record)
        if type(record) is ShareGroupMemberMetadataRecord:
            self._held.note(record.group_id, record.member_id, 0 if record.value is None else _size_of(record.value))
        elif type(record) is ShareGroupMetadataRecord and record.value is None:
            self._held.forget(record.group_id)

    def on_dropped(self) -> None:
        self._held.forget_all()

    def on_loaded(self) -> None:
        for group in self._groups:
            if isinstance(group, ShareGroup):
                for member_id in group.members:
                    self._heard_from(group, member_id)

    # -- ShareGroupDescribe --------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> dict[str, Any]:
        """Return a described group of ShareGroupDescribe's response."""
        group = self.find(group_id)
        return {
            "error_code": ErrorCode.NONE,
            "group_id": group_id,
            "group_state": group.state_name,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": ASSIGNOR_NAME,
            "members": [_describe_member(member, self._environment.image) for member in group.members.values()],
        }


def _describe_member(member: ShareGroupMember, image: ClusterImage) -> dict[str, Any]:
    topics = [(topic_id, image.topic_by_id(topic_id), indexes) for topic_id, indexes in sorted(member.assigned.items())]
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "assignment": {
            "topic_partitions": [
                {"topic_id": topic_id, "topic_name": topic.name, "partitions": indexes}
                for topic_id, topic, indexes in topics
                if topic is not None
            ]
        },
    }


def _states_record(group_id: str, states: StatePartitions) -> ShareGroupStatePartitionMetadataRecord:
    return ShareGroupStatePartitionMetadataRecord(group_id, states.value())


def _metadata_hash(names: Iterable[str], image: ClusterImage) -> int:
    """A hash of everything that an assignment depends on, over the topics that exist; 0 when there are none."""
    digest = hashlib.blake2b(digest_size=8)
    exists = False
    for name in sorted(names):
        topic = image.topic(name)
        if topic is not None:
            exists = True
            digest.update(topic.topic_id + len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if exists else 0


def _updated(member: ShareGroupMember, request: ShareHeartbeatRequest) -> ShareGroupMember:
    changes: dict[str, Any] = {"client_id": request.client_id, "client_host": request.client_host}
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.subscribed_topic_names is not None:
        changes["subscribed_topic_names"] = tuple(sorted(set(request.subscribed_topic_names)))
    return member._replace(**changes)


def _size_of(value: ShareGroupMemberMetadataValue) -> int:
    return subscription_size(value.subscribed_topic_names, value.client_id, value.rack_id)


def _check_epoch(member: ShareGroupMember, member_epoch: int) -> None:
    """A member whose epoch differs from the coordinator's must join again, unless the answer with its epoch was lost."""
    if member_epoch == member.member_epoch:
        return
    known = f"epoch ({member_epoch}) than the one known by the group coordinator ({member.member_epoch})"
    if member_epoch > member.member_epoch:
        message = f"The share group member has a greater member {known}. The member must abandon all its partitions and rejoin."
    elif member_epoch != member.previous_member_epoch:
        message = (
            f"The share group member has a smaller member {known}, and it does not match the previous member epoch "
            f"({member.previous_member_epoch}). The member must abandon all its partitions and rejoin."
        )
    else:
        return
    raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _check_request(request: ShareHeartbeatRequest) -> None:
    checks: Sequence[tuple[Callable[[], bool], str]] = (
        (lambda: bool(request.member_id.strip()), "MemberId can't be empty."),
        (lambda: len(request.member_id) <= MEMBER_ID_LENGTH_MAX, f"MemberId has more than {MEMBER_ID_LENGTH_MAX} characters."),
        (lambda: bool(request.group_id.strip()), "GroupId can't be empty."),
        (lambda: fits_into_record(request.group_id), f"a name is longer than {STRING_BYTES_MAX} bytes"),
        (lambda: request.rack_id is None or bool(request.rack_id.strip()), "RackId can't be empty."),
        (lambda: request.member_epoch >= LEAVE_EPOCH, "MemberEpoch is invalid."),
        (
            lambda: request.member_epoch != JOIN_EPOCH or request.subscribed_topic_names is not None,
            "SubscribedTopicNames must be set in first request.",
        ),
    )
    for is_met, message in checks:
        if not is_met():
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
