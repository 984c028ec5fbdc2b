"""The state of one consumer group, its members, and the replay of its records, which alone changes that state.

``group_epoch`` moves when subscriptions, members or topics change; ``assignment_epoch`` says for which group epoch the target
assignment was computed; each member's epoch says how far it has come. A ``member_epoch`` of 0 means that the member has just
joined, -2 that a static member left for a restart: its partitions stay its own until it is back or its session ends.

Soft state, kept in memory only: when sessions end, which members have not confirmed their assignment, which version of the topics
was compared last, how long rebalances took.

Compaction may have removed records from the middle of a group's history, so no record relies on another one, with one exception:
a tombstone for something that does not exist has no effect. A group exists from its first record until the tombstone of its
epoch.

Rules for offset commits: a commit in the member's own epoch is accepted. A commit with an older epoch (it crossed the heartbeat
that brought the new one) is accepted for partitions that the member has had since that epoch; any other could move a position
that another member has already advanced. Error messages are Kafka's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from tidelog.controller.errors import ApiError
from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.group import GroupTable, GroupType
from tidelog.groups.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataRecord,
    ConsumerGroupPartitionMetadataRecord,
    ConsumerGroupRegularExpressionRecord,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberRecord,
    ConsumerGroupTargetAssignmentMetadataRecord,
    TopicPartitions,
)
from tidelog.wire.errors import ErrorCode

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

AssignedPartitions = Mapping[bytes, Mapping[int, int]]
"""The assigned partitions by topic id, in ascending order, each with the epoch at which it was assigned. Topics without
partitions are left out."""


class MemberState(IntEnum):
    STABLE = 0
    """The member has what the target assignment of its epoch gives it."""
    UNREVOKED_PARTITIONS = 1
    """The member must release partitions before it can advance; until then it stays in its epoch."""
    UNRELEASED_PARTITIONS = 2
    """The member is in the target's epoch, and waits for partitions that others still have."""
    UNKNOWN = 127
    """A newer version wrote this state, before a downgrade."""


class ConsumerGroupMember(NamedTuple):
    """A member is never changed, only replaced: a decision compares the member as it is with the member as it will be, and writes
    the difference."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    """The topics in ascending order, without duplicates."""
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """Set for a member that speaks the classic protocol; None for all others."""
    member_epoch: int = JOIN_EPOCH
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = {}  # noqa: RUF012 - read only
    pending_revocation: AssignedPartitions = {}  # noqa: RUF012 - read only

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def in_epoch(self, member_epoch: int) -> "ConsumerGroupMember":
        return self._replace(member_epoch=member_epoch, previous_member_epoch=self.member_epoch)

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "ConsumerGroupMember":
        return self._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=value.subscribed_topic_names,
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def metadata(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.subscribed_topic_names,
            self.subscribed_topic_regex,
            self.rebalance_timeout_ms,
            self.server_assignor,
            self.classic,
        )

    def with_current_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> "ConsumerGroupMember":
        return self._replace(
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=_with_epochs(value.assigned_partitions, value.member_epoch),
            pending_revocation=_with_epochs(value.partitions_pending_revocation, value.member_epoch),
        )

    def current_assignment(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            self.member_epoch,
            self.previous_member_epoch,
            self.state,
            _topic_partitions(self.assigned),
            _topic_partitions(self.pending_revocation),
        )


_STATES = {state.value: state for state in MemberState}


def _with_epochs(topics: Iterable[TopicPartitions], member_epoch: int) -> AssignedPartitions:
    """Records before Kafka 4.3 have no epochs. The member's own epoch takes their place, so that no older commit is accepted."""
    return {
        topic.topic_id: dict(
            zip(topic.partitions, topic.assignment_epochs or (member_epoch,) * len(topic.partitions), strict=False)
        )
        for topic in topics
    }


def _topic_partitions(assigned: AssignedPartitions) -> tuple[TopicPartitions, ...]:
    return tuple(
        [
            TopicPartitions(topic_id, tuple(partitions), tuple(partitions.values()))
            for topic_id, partitions in sorted(assigned.items())
        ]
    )


def without_epochs(assigned: AssignedPartitions) -> Partitions:
    return {topic_id: tuple(partitions) for topic_id, partitions in assigned.items()}


# Earlier versions of OffsetCommit do not know STALE_MEMBER_EPOCH.
COMMIT_VERSION_MIN = 9


def _epoch_name(member: ConsumerGroupMember) -> str:
    return "member epoch" if member.classic is None else "generation id"


def _stale(member: ConsumerGroupMember, message: str) -> ApiError:
    code = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
    return ApiError(code, message)


PROTOCOL_TYPE = "consumer"


class ConsumerGroup:
    __slots__ = (
        "_rebalance_began_ms",
        "assignment_epoch",
        "assignment_timestamp",
        "group_epoch",
        "group_id",
        "has_partition_metadata_record",
        "members",
        "metadata_hash",
        "owners",
        "rebalance_ms_last",
        "rebalance_ms_total",
        "rebalances",
        "regexes_refreshed_ms",
        "resolved_regexes",
        "session_deadlines_ms",
        "static_members",
        "target",
        "topics_version",
        "unconfirmed",
    )

    def __init__(self, group_id: str, epoch: int = 0) -> None:
        self.group_id = group_id
        self.group_epoch = epoch
        self.metadata_hash = 0
        """A hash of the subscribed topics that exist: when the current one differs, topics were created, grown or deleted."""
        self.assignment_epoch = epoch
        self.assignment_timestamp = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self.target: dict[str, Partitions] = {}
        self.owners: dict[tuple[bytes, int], str] = {}
        """The member that has a partition, or has not yet confirmed its release."""
        self.resolved_regexes: dict[str, ConsumerGroupRegularExpressionValue] = {}
        self.has_partition_metadata_record = False
        """Whether the log holds a record that Kafka before 4.1 wrote; it is deleted at the next opportunity."""
        # Soft state from here on.
        self.session_deadlines_ms: dict[str, int] = {}
        self.unconfirmed: set[str] = set()
        """The members that have not confirmed the assignment that they were last sent; never iterated over."""
        self.topics_version = -1
        """The version of the topics in the image that subscriptions were last compared with."""
        self.regexes_refreshed_ms: int | None = None
        self.rebalances = 0
        """Rebalances that ended with a stable group since the group was loaded."""
        self.rebalance_ms_last = 0
        self.rebalance_ms_total = 0
        self._rebalance_began_ms: int | None = None

    # -- what all groups have ------------------------------------------------------------------------------------------------

    @property
    def type(self) -> GroupType:
        return GroupType.CONSUMER

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        return "Stable" if self.is_reconciled else "Reconciling"

    @property
    def is_reconciled(self) -> bool:
        return all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values())

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
        member_id: str,
        group_instance_id: str | None,  # noqa: ARG002 - the member id suffices here
        generation_id_or_member_epoch: int,
        api_version: int,
    ) -> None:
        member_epoch = generation_id_or_member_epoch
        # An administrator, or a consumer that chooses its partitions itself, sends a negative epoch.
        if member_epoch < 0 and not self.members:
            return
        member = self.member(member_id)
        if member.classic is None and api_version < COMMIT_VERSION_MIN:
            message = "OffsetCommit version 9 or above must be used by members using the consumer group protocol"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, message)
        if member_epoch > member.member_epoch:
            message = f"{member_epoch} is newer than current member epoch {member.member_epoch}."
            raise _stale(member, f"Received {_epoch_name(member)} {message}")

    def check_partition_commit(self, member_id: str, member_epoch: int, topic_id: bytes, topic: str, partition: int) -> None:
        """Called after ``check_offset_commit``: a member that missed an epoch may still commit what it had before and has now."""
        member = self.members.get(member_id)
        if member is None or member_epoch >= member.member_epoch:
            return
        epoch = member.assigned.get(topic_id, {}).get(partition)
        if epoch is None:
            epoch = member.pending_revocation.get(topic_id, {}).get(partition)
        if epoch is None:
            raise _stale(member, f"Partition {topic}-{partition} is not assigned or pending revocation for member.")
        if member_epoch < epoch:
            message = f"{member_epoch} is older than assignment epoch {epoch} for partition {topic}-{partition}."
            raise _stale(member, f"Received {_epoch_name(member)} {message}")

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member_epoch != member.member_epoch:
            message = f"{member_epoch} does not match the expected member epoch {member.member_epoch}."
            raise _stale(member, f"The received {_epoch_name(member)} {message}")

    def check_deletion(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in subscribed_topic_names(self.members.values(), self.resolved_regexes)

    def may_read(self, topic: str) -> bool:
        return self.is_subscribed_to(topic)

    def empty_since_ms(self) -> int | None:
        """Always None, which means unknown: as in Kafka, retention counts from each commit."""
        return None

    def tombstones(self) -> Sequence[Any]:
        group_id = self.group_id
        return [
            *(ConsumerGroupCurrentMemberAssignmentRecord(group_id, member_id, None) for member_id in self.members),
            *(ConsumerGroupTargetAssignmentMemberRecord(group_id, member_id, None) for member_id in self.target),
            ConsumerGroupTargetAssignmentMetadataRecord(group_id, None),
            *(ConsumerGroupMemberMetadataRecord(group_id, member_id, None) for member_id in self.members),
            *(ConsumerGroupRegularExpressionRecord(group_id, regex, None) for regex in self.resolved_regexes),
            ConsumerGroupPartitionMetadataRecord(group_id, None),
            ConsumerGroupMetadataRecord(group_id, None),
        ]

    # -- members -------------------------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> ConsumerGroupMember:
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return member

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def members_with(self, updated: ConsumerGroupMember, replaced_id: str | None = None) -> list[ConsumerGroupMember]:
        """The members including ``updated``, which replaces ``replaced_id`` if it takes over an instance id."""
        leaving = (updated.member_id, replaced_id)
        return [*(member for member_id, member in self.members.items() if member_id not in leaving), updated]

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, {})

    def is_free_for(self, member_id: str, topic_id: bytes, partition: int) -> bool:
        return self.owners.get((topic_id, partition), member_id) == member_id

    # -- soft state ----------------------------------------------------------------------------------------------------------

    def note_topics(self, topics_version: int, regexes_refreshed_ms: int | None) -> None:
        """Note that subscriptions were compared with this version of the topics; None if expressions were not refreshed."""
        self.topics_version = topics_version
        if regexes_refreshed_ms is not None:
            self.regexes_refreshed_ms = regexes_refreshed_ms

    def time_rebalance(self, record: Any, now_ms: int) -> bool:
        """Measure rebalances as their records are replayed. Returns True when one begins."""
        begins = type(record) is ConsumerGroupMetadataRecord and self._rebalance_began_ms is None
        if begins:
            self._rebalance_began_ms = now_ms
        if self._rebalance_began_ms is not None and not self.members:
            self._rebalance_began_ms = None
        elif (
            type(record) is ConsumerGroupCurrentMemberAssignmentRecord
            and self._rebalance_began_ms is not None
            and self.group_epoch == self.assignment_epoch
            and self.is_reconciled
        ):
            self.rebalances += 1
            self.rebalance_ms_last = now_ms - self._rebalance_began_ms
            self.rebalance_ms_total += self.rebalance_ms_last
            self._rebalance_began_ms = None
        return begins

    # -- replay --------------------------------------------------------------------------------------------------------------

    def put_member(self, member: ConsumerGroupMember) -> None:
        old = self.members.get(member.member_id)
        if old is not None:
            self._release(old)
            if old.instance_id is not None and old.instance_id != member.instance_id:
                self._forget_instance(old)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        for partitions_by_topic in (member.assigned, member.pending_revocation):
            for topic_id, partitions in partitions_by_topic.items():
                for partition in partitions:
                    self.owners[(topic_id, partition)] = member.member_id

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._release(member)
            self._forget_instance(member)

    def _release(self, member: ConsumerGroupMember) -> None:
        for partitions_by_topic in (member.assigned, member.pending_revocation):
            for topic_id, partitions in partitions_by_topic.items():
                for partition in partitions:
                    if self.owners.get((topic_id, partition)) == member.member_id:
                        del self.owners[(topic_id, partition)]

    def _forget_instance(self, member: ConsumerGroupMember) -> None:
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]


def subscribed_topic_names(
    members: Iterable[ConsumerGroupMember], resolved_regexes: Mapping[str, ConsumerGroupRegularExpressionValue]
) -> set[str]:
    names: set[str] = set()
    for member in members:
        names.update(member.subscribed_topic_names)
        resolved = resolved_regexes.get(member.subscribed_topic_regex or "")
        if resolved is not None:
            names.update(resolved.topics)
    return names


def replay_consumer_group(groups: GroupTable, record: Any) -> None:
    found = groups.find(record.group_id)
    group = found if isinstance(found, ConsumerGroup) else None
    if group is None:
        if record.value is None:
            return
        # This group may replace a classic group, whose tombstone is before this record or was removed by compaction.
        group = ConsumerGroup(record.group_id)
        groups.put(group)
    _REPLAY[type(record)](group, record)
    if record.value is None and type(record) is ConsumerGroupMetadataRecord:
        groups.remove(record.group_id)


def _replay_metadata(group: ConsumerGroup, record: ConsumerGroupMetadataRecord) -> None:
    if record.value is not None:
        group.group_epoch = record.value.epoch
        group.metadata_hash = record.value.metadata_hash


def _replay_partition_metadata(group: ConsumerGroup, record: ConsumerGroupPartitionMetadataRecord) -> None:
    group.has_partition_metadata_record = record.value is not None


def _replay_member_metadata(group: ConsumerGroup, record: ConsumerGroupMemberMetadataRecord) -> None:
    if record.value is None:
        group.remove_member(record.member_id)
        return
    member = group.members.get(record.member_id) or ConsumerGroupMember(record.member_id)
    group.put_member(member.with_metadata(record.value))


def _replay_target_metadata(group: ConsumerGroup, record: ConsumerGroupTargetAssignmentMetadataRecord) -> None:
    if record.value is None:
        group.assignment_epoch, group.assignment_timestamp = 0, 0
    else:
        group.assignment_epoch = record.value.assignment_epoch
        group.assignment_timestamp = record.value.assignment_timestamp


def _replay_target_member(group: ConsumerGroup, record: ConsumerGroupTargetAssignmentMemberRecord) -> None:
    if record.value is None:
        group.target.pop(record.member_id, None)
    else:
        group.target[record.member_id] = {topic.topic_id: topic.partitions for topic in record.value.topic_partitions}


def _replay_current_assignment(group: ConsumerGroup, record: ConsumerGroupCurrentMemberAssignmentRecord) -> None:
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


def _replay_regular_expression(group: ConsumerGroup, record: ConsumerGroupRegularExpressionRecord) -> None:
    if record.value is None:
        group.resolved_regexes.pop(record.regular_expression, None)
    else:
        group.resolved_regexes[record.regular_expression] = record.value


# Each function takes a record of its own type.
_REPLAY: dict[type, Callable[..., None]] = {
    ConsumerGroupMetadataRecord: _replay_metadata,
    ConsumerGroupPartitionMetadataRecord: _replay_partition_metadata,
    ConsumerGroupMemberMetadataRecord: _replay_member_metadata,
    ConsumerGroupTargetAssignmentMetadataRecord: _replay_target_metadata,
    ConsumerGroupTargetAssignmentMemberRecord: _replay_target_member,
    ConsumerGroupCurrentMemberAssignmentRecord: _replay_current_assignment,
    ConsumerGroupRegularExpressionRecord: _replay_regular_expression,
}
