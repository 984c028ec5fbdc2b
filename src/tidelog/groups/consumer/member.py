"""A member of a consumer group. It is never changed, only replaced: a decision compares the member as it is with the member as it
will be, and their difference is what is written.

``member_epoch`` is the assignment epoch that the member follows. 0: it has just joined. -2: a static member that left for a
restart; its partitions stay its own until it is back or its session ends.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from tidelog.groups.assignors.specification import Partitions
from tidelog.groups.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

AssignedPartitions = Mapping[bytes, Mapping[int, int]]
"""By topic id, partitions in ascending order with the epoch at which each was assigned; without topics that have none."""


class MemberState(IntEnum):
    STABLE = 0
    """It has what its epoch's target assignment gives it."""
    UNREVOKED_PARTITIONS = 1
    """It has to give up partitions before it goes on; it stays in its epoch meanwhile."""
    UNRELEASED_PARTITIONS = 2
    """It is in the target's epoch, and waits for partitions that others still have."""
    UNKNOWN = 127
    """Of a newer version, before a downgrade."""


class ConsumerGroupMember(NamedTuple):
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    """Ascending, each once."""
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """Of a member that speaks the classic protocol; None for all others."""
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
    """Records of before Kafka 4.3 know no epochs: then it is the member's own, which lets no older commit pass."""
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
