"""The state of one share group, its members, and the replay of its records, which alone changes that state.

It is a consumer group without ownership: partitions are shared, so no member waits for another one to release anything, and a
member takes over its target at once. In addition the group keeps, for each topic, for which partitions the share coordinator has
state: only those are assigned.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.group import GroupTable, GroupType
from tidelog.groups.records import (
    DeletingTopicInfo,
    ShareGroupCurrentMemberAssignmentRecord,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataRecord,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataRecord,
    ShareGroupStatePartitionMetadataRecord,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberRecord,
    ShareGroupTargetAssignmentMetadataRecord,
    TargetTopicPartitions,
    TopicPartitionsInfo,
)
from tidelog.wire.errors import ErrorCode

PROTOCOL_TYPE = "share"
STABLE = 0


class ShareGroupMember(NamedTuple):
    """A member is never changed, only replaced."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    """The topics in ascending order, without duplicates."""
    member_epoch: int = 0
    previous_member_epoch: int = -1
    assigned: Partitions = {}  # noqa: RUF012 - read only

    def metadata(self) -> ShareGroupMemberMetadataValue:
        return ShareGroupMemberMetadataValue(self.rack_id, self.client_id, self.client_host, self.subscribed_topic_names)

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> "ShareGroupMember":
        return self._replace(**value._asdict())

    def current_assignment(self) -> ShareGroupCurrentMemberAssignmentValue:
        assigned = topic_partitions(self.assigned)
        return ShareGroupCurrentMemberAssignmentValue(self.member_epoch, self.previous_member_epoch, STABLE, assigned)

    def with_current_assignment(self, value: ShareGroupCurrentMemberAssignmentValue) -> "ShareGroupMember":
        assigned = {topic.topic_id: topic.partitions for topic in value.assigned_partitions}
        return self._replace(
            member_epoch=value.member_epoch, previous_member_epoch=value.previous_member_epoch, assigned=assigned
        )


def topic_partitions(partitions: Partitions) -> tuple[TargetTopicPartitions, ...]:
    return tuple([TargetTopicPartitions(topic_id, indexes) for topic_id, indexes in sorted(partitions.items())])


class TopicState(NamedTuple):
    """A topic, and some of its partitions."""

    name: str
    partitions: tuple[int, ...]


TopicStates = Mapping[bytes, TopicState]


class StatePartitions(NamedTuple):
    """The partitions for which the share coordinator keeps state, or is about to."""

    initializing: TopicStates = {}  # noqa: RUF012 - read only
    initialized: TopicStates = {}  # noqa: RUF012 - read only
    deleting: Mapping[bytes, str] = {}
    """Names by topic id."""

    @classmethod
    def of(cls, value: ShareGroupStatePartitionMetadataValue) -> "StatePartitions":
        return cls(
            {topic.topic_id: TopicState(topic.topic_name, topic.partitions) for topic in value.initializing_topics},
            {topic.topic_id: TopicState(topic.topic_name, topic.partitions) for topic in value.initialized_topics},
            {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
        )

    def value(self) -> ShareGroupStatePartitionMetadataValue:
        return ShareGroupStatePartitionMetadataValue(
            _infos(self.initializing),
            _infos(self.initialized),
            tuple([DeletingTopicInfo(topic_id, name) for topic_id, name in sorted(self.deleting.items())]),
        )

    def begin(self, topics: TopicStates) -> "StatePartitions":
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in topics}
        return self._replace(initializing=_joined(self.initializing, topics), deleting=deleting)

    def complete(self, topics: TopicStates) -> "StatePartitions":
        return self._replace(initializing=_without(self.initializing, topics), initialized=_joined(self.initialized, topics))

    def begin_deletion(self, topics: Mapping[bytes, str]) -> "StatePartitions":
        initializing = {topic_id: state for topic_id, state in self.initializing.items() if topic_id not in topics}
        initialized = {topic_id: state for topic_id, state in self.initialized.items() if topic_id not in topics}
        return StatePartitions(initializing, initialized, {**self.deleting, **topics})

    def complete_deletion(self, topic_ids: Iterable[bytes]) -> "StatePartitions":
        gone = set(topic_ids)
        return self._replace(deleting={topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone})


def _infos(topics: TopicStates) -> tuple[TopicPartitionsInfo, ...]:
    return tuple([TopicPartitionsInfo(topic_id, *state) for topic_id, state in sorted(topics.items())])


def _joined(topics: TopicStates, others: TopicStates) -> TopicStates:
    joined = dict(topics)
    for topic_id, (name, partitions) in others.items():
        known = joined[topic_id].partitions if topic_id in joined else ()
        joined[topic_id] = TopicState(name, tuple(sorted({*known, *partitions})))
    return joined


def _without(topics: TopicStates, others: TopicStates) -> TopicStates:
    left = {}
    for topic_id, (name, partitions) in topics.items():
        gone = others[topic_id].partitions if topic_id in others else ()
        kept = tuple([index for index in partitions if index not in gone])
        if kept:
            left[topic_id] = TopicState(name, kept)
    return left


class ShareGroup:
    __slots__ = (
        "assignment_epoch",
        "assignment_timestamp",
        "group_epoch",
        "group_id",
        "members",
        "metadata_hash",
        "rebalance_ms_last",
        "rebalance_ms_total",
        "rebalances",
        "session_deadlines_ms",
        "states",
        "target",
        "topics_version",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp = 0
        self.members: dict[str, ShareGroupMember] = {}
        self.target: dict[str, Partitions] = {}
        self.states = StatePartitions()
        # Soft state from here on.
        self.session_deadlines_ms: dict[str, int] = {}
        self.topics_version = -1
        """The version of the topics in the image that subscriptions were last compared with."""
        # A member takes over its target at once, so there are no rebalances to measure.
        self.rebalances = 0
        self.rebalance_ms_last = 0
        self.rebalance_ms_total = 0

    # -- what all groups have ------------------------------------------------------------------------------------------------

    @property
    def type(self) -> GroupType:
        return GroupType.SHARE

    @property
    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def protocol_type(self) -> str:
        return PROTOCOL_TYPE

    @property
    def has_members(self) -> bool:
        return bool(self.members)

    @property
    def member_count(self) -> int:
        return len(self.members)

    def check_offset_commit(
        self,
        member_id: str,  # noqa: ARG002 - nobody may
        group_instance_id: str | None,  # noqa: ARG002 - nobody may
        generation_id_or_member_epoch: int,  # noqa: ARG002 - nobody may
        api_version: int,  # noqa: ARG002 - nobody may
    ) -> None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:  # noqa: ARG002 - nobody may
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def check_deletion(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topic_names()

    def may_read(self, topic: str) -> bool:
        return self.is_subscribed_to(topic)

    def empty_since_ms(self) -> int | None:
        """Always None: a share group has no committed offsets that could expire."""
        return None

    def tombstones(self) -> Sequence[Any]:
        group_id = self.group_id
        return [
            *(ShareGroupCurrentMemberAssignmentRecord(group_id, member_id, None) for member_id in self.members),
            *(ShareGroupTargetAssignmentMemberRecord(group_id, member_id, None) for member_id in self.target),
            ShareGroupTargetAssignmentMetadataRecord(group_id, None),
            *(ShareGroupMemberMetadataRecord(group_id, member_id, None) for member_id in self.members),
            ShareGroupStatePartitionMetadataRecord(group_id, None),
            ShareGroupMetadataRecord(group_id, None),
        ]

    # -- members -------------------------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> ShareGroupMember:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def members_with(self, updated: ShareGroupMember) -> list[ShareGroupMember]:
        return [*(member for member_id, member in self.members.items() if member_id != updated.member_id), updated]

    def subscribed_topic_names(self) -> set[str]:
        return {name for member in self.members.values() for name in member.subscribed_topic_names}

    # -- soft state ----------------------------------------------------------------------------------------------------------

    def note_topics(self, topics_version: int) -> None:
        self.topics_version = topics_version

    def note_session(self, member_id: str, deadline_ms: int | None) -> int | None:
        """Remember when the member's session ends; None forgets it. Returns the last deadline."""
        last_ms = self.session_deadlines_ms.pop(member_id, None)
        if deadline_ms is not None:
            self.session_deadlines_ms[member_id] = deadline_ms
        return last_ms

    # -- replay --------------------------------------------------------------------------------------------------------------

    def replay(self, record: Any) -> None:
        _REPLAY[type(record)](self, record)

    def _replay_metadata(self, record: ShareGroupMetadataRecord) -> None:
        if record.value is not None:
            self.group_epoch = record.value.epoch
            self.metadata_hash = record.value.metadata_hash

    def _replay_member_metadata(self, record: ShareGroupMemberMetadataRecord) -> None:
        if record.value is None:
            self.members.pop(record.member_id, None)
        else:
            member = self.members.get(record.member_id) or ShareGroupMember(record.member_id)
            self.members[record.member_id] = member.with_metadata(record.value)

    def _replay_target_metadata(self, record: ShareGroupTargetAssignmentMetadataRecord) -> None:
        self.assignment_epoch, self.assignment_timestamp = record.value or (0, 0)

    def _replay_target_member(self, record: ShareGroupTargetAssignmentMemberRecord) -> None:
        if record.value is None:
            self.target.pop(record.member_id, None)
        else:
            self.target[record.member_id] = {topic.topic_id: topic.partitions for topic in record.value.topic_partitions}

    def _replay_current_assignment(self, record: ShareGroupCurrentMemberAssignmentRecord) -> None:
        member = self.members.get(record.member_id)
        if record.value is not None:
            member = member or ShareGroupMember(record.member_id)
            self.members[record.member_id] = member.with_current_assignment(record.value)
        elif member is not None:
            self.members[record.member_id] = member._replace(member_epoch=-1, previous_member_epoch=-1, assigned={})

    def _replay_states(self, record: ShareGroupStatePartitionMetadataRecord) -> None:
        self.states = StatePartitions() if record.value is None else StatePartitions.of(record.value)


_REPLAY: dict[type, Callable[[ShareGroup, Any], None]] = {
    ShareGroupMetadataRecord: ShareGroup._replay_metadata,
    ShareGroupMemberMetadataRecord: ShareGroup._replay_member_metadata,
    ShareGroupTargetAssignmentMetadataRecord: ShareGroup._replay_target_metadata,
    ShareGroupTargetAssignmentMemberRecord: ShareGroup._replay_target_member,
    ShareGroupCurrentMemberAssignmentRecord: ShareGroup._replay_current_assignment,
    ShareGroupStatePartitionMetadataRecord: ShareGroup._replay_states,
}
SHARE_RECORDS = frozenset(_REPLAY)


def replay_share_group(groups: GroupTable, record: Any) -> None:
    """No record relies on another one, because compaction may have removed it; a tombstone of nothing has no effect."""
    found = groups.find(record.group_id)
    group = found if isinstance(found, ShareGroup) else None
    if group is None:
        if record.value is None:
            return
        group = ShareGroup(record.group_id)
        groups.put(group)
    group.replay(record)
    if record.value is None and type(record) is ShareGroupMetadataRecord:
        groups.remove(record.group_id)
