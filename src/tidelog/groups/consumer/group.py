"""The state of one consumer group.

``group_epoch`` moves when subscriptions, members or topics change; ``assignment_epoch`` says for which group epoch the target
assignment was computed; each member's epoch says how far it has come. Only replay changes any of this.

What only memory knows: when sessions end, who has not confirmed its assignment, which topics were looked at last, how long
rebalances took.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.consumer.member import ConsumerGroupMember
from tidelog.groups.consumer.offset_checks import check_commit, check_member_epoch, check_partition
from tidelog.groups.group import GroupType
from tidelog.groups.records import (
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMetadataRecord,
    ConsumerGroupPartitionMetadataRecord,
    ConsumerGroupRegularExpressionRecord,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberRecord,
    ConsumerGroupTargetAssignmentMetadataRecord,
)
from tidelog.wire.errors import ErrorCode

PROTOCOL_TYPE = "consumer"


class ConsumerGroup:
    __slots__ = (
        "assignment_epoch",
        "assignment_timestamp",
        "group_epoch",
        "group_id",
        "has_partition_metadata_record",
        "members",
        "metadata_hash",
        "owners",
        "rebalance_began_ms",
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

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 0
        self.metadata_hash = 0
        """Over the subscribed topics that exist: when it differs from the one computed now, topics came, grew or went."""
        self.assignment_epoch = 0
        self.assignment_timestamp = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self.target: dict[str, Partitions] = {}
        self.owners: dict[tuple[bytes, int], str] = {}
        """Who has a partition, or has not yet confirmed that it gave it up."""
        self.resolved_regexes: dict[str, ConsumerGroupRegularExpressionValue] = {}
        self.has_partition_metadata_record = False
        """Of Kafka before 4.1: it is deleted at the next chance."""
        # Soft state from here on.
        self.session_deadlines_ms: dict[str, int] = {}
        self.unconfirmed: set[str] = set()
        """Members that have not said that they have what they were told last; never iterated over."""
        self.topics_version = -1
        """The version of the topics in the image that subscriptions were last compared with."""
        self.regexes_refreshed_ms: int | None = None
        self.rebalances = 0
        """Those that ended with a stable group, since the group was loaded."""
        self.rebalance_ms_last = 0
        self.rebalance_ms_total = 0
        self.rebalance_began_ms: int | None = None

    # -- for those who need not know the kind of group -----------------------------------------------------------------------

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
        group_instance_id: str | None,  # noqa: ARG002 - a member id says it all here
        generation_id_or_member_epoch: int,
        api_version: int,
    ) -> None:
        check_commit(self, member_id, generation_id_or_member_epoch, api_version)

    def check_partition_commit(self, member_id: str, member_epoch: int, topic_id: bytes, topic: str, partition: int) -> None:
        """After ``check_offset_commit``: a member that missed an epoch may still commit what it had before and has now."""
        check_partition(self, member_id, member_epoch, topic_id, topic, partition)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        check_member_epoch(self.member(member_id or ""), member_epoch)

    def check_deletion(self) -> None:
        if self.members:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in subscribed_topic_names(self.members.values(), self.resolved_regexes)

    def empty_since_ms(self) -> int | None:
        """Not known: as in Kafka, retention counts from each commit."""
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
        """As they will be when ``updated`` is one of them, instead of ``replaced_id`` if it takes over an instance id."""
        leaving = (updated.member_id, replaced_id)
        return [*(member for member_id, member in self.members.items() if member_id not in leaving), updated]

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, {})

    def is_free_for(self, member_id: str, topic_id: bytes, partition: int) -> bool:
        return self.owners.get((topic_id, partition), member_id) == member_id

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
