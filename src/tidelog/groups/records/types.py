"""The records of __consumer_offsets, with Kafka's names: key and value in one, the key's fields first.

A record whose ``value`` is None is a tombstone: the thing that its key names is gone. Ids are 16 bytes; zero means no id.
"""

from typing import NamedTuple

from tidelog.wire.primitives import ZERO_UUID

NO_TIMESTAMP_MS = -1
NO_LEADER_EPOCH = -1


class OffsetCommitValue(NamedTuple):
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP_MS
    expire_timestamp: int = NO_TIMESTAMP_MS
    """Set only for clients that ask for their own retention time (OffsetCommit before version 5)."""
    topic_id: bytes = ZERO_UUID


class OffsetCommitRecord(NamedTuple):
    group: str
    topic: str
    partition: int
    value: OffsetCommitValue | None


class MemberMetadata(NamedTuple):
    """A member of a classic group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(NamedTuple):
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int = NO_TIMESTAMP_MS
    members: tuple[MemberMetadata, ...] = ()


class GroupMetadataRecord(NamedTuple):
    group: str
    value: GroupMetadataValue | None


class ConsumerGroupMetadataValue(NamedTuple):
    epoch: int
    metadata_hash: int = 0


class ConsumerGroupMetadataRecord(NamedTuple):
    group_id: str
    value: ConsumerGroupMetadataValue | None


class PartitionMetadata(NamedTuple):
    partition: int
    racks: tuple[str, ...]


class TopicMetadata(NamedTuple):
    topic_id: bytes
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionMetadata, ...] = ()


class ConsumerGroupPartitionMetadataValue(NamedTuple):
    topics: tuple[TopicMetadata, ...]


class ConsumerGroupPartitionMetadataRecord(NamedTuple):
    """A record of Kafka before 4.1; only its tombstone is still written."""

    group_id: str
    value: ConsumerGroupPartitionMetadataValue | None


class ClassicProtocol(NamedTuple):
    name: str
    metadata: bytes


class ClassicMemberMetadata(NamedTuple):
    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


class ConsumerGroupMemberMetadataValue(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic_member_metadata: ClassicMemberMetadata | None = None
    """Set for a member that speaks the classic protocol."""


class ConsumerGroupMemberMetadataRecord(NamedTuple):
    group_id: str
    member_id: str
    value: ConsumerGroupMemberMetadataValue | None


class ConsumerGroupTargetAssignmentMetadataValue(NamedTuple):
    assignment_epoch: int
    assignment_timestamp: int = 0


class ConsumerGroupTargetAssignmentMetadataRecord(NamedTuple):
    group_id: str
    value: ConsumerGroupTargetAssignmentMetadataValue | None


class TargetTopicPartitions(NamedTuple):
    """One topic of a target assignment. Kafka's schema calls it TopicPartition."""

    topic_id: bytes
    partitions: tuple[int, ...]


class ConsumerGroupTargetAssignmentMemberValue(NamedTuple):
    topic_partitions: tuple[TargetTopicPartitions, ...]


class ConsumerGroupTargetAssignmentMemberRecord(NamedTuple):
    group_id: str
    member_id: str
    value: ConsumerGroupTargetAssignmentMemberValue | None


class TopicPartitions(NamedTuple):
    topic_id: bytes
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None
    """The member epoch at which each partition was assigned, if that is known."""


class ConsumerGroupCurrentMemberAssignmentValue(NamedTuple):
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TopicPartitions, ...]
    partitions_pending_revocation: tuple[TopicPartitions, ...]


class ConsumerGroupCurrentMemberAssignmentRecord(NamedTuple):
    group_id: str
    member_id: str
    value: ConsumerGroupCurrentMemberAssignmentValue | None


class ConsumerGroupRegularExpressionValue(NamedTuple):
    topics: tuple[str, ...]
    version: int
    timestamp: int


class ConsumerGroupRegularExpressionRecord(NamedTuple):
    group_id: str
    regular_expression: str
    value: ConsumerGroupRegularExpressionValue | None


class ShareGroupMemberMetadataValue(NamedTuple):
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]


class ShareGroupMemberMetadataRecord(NamedTuple):
    group_id: str
    member_id: str
    value: ShareGroupMemberMetadataValue | None


class ShareGroupMetadataValue(NamedTuple):
    epoch: int
    metadata_hash: int = 0


class ShareGroupMetadataRecord(NamedTuple):
    group_id: str
    value: ShareGroupMetadataValue | None


class ShareGroupTargetAssignmentMetadataValue(NamedTuple):
    assignment_epoch: int
    assignment_timestamp: int = 0


class ShareGroupTargetAssignmentMetadataRecord(NamedTuple):
    group_id: str
    value: ShareGroupTargetAssignmentMetadataValue | None


class ShareGroupTargetAssignmentMemberValue(NamedTuple):
    topic_partitions: tuple[TargetTopicPartitions, ...]


class ShareGroupTargetAssignmentMemberRecord(NamedTuple):
    group_id: str
    member_id: str
    value: ShareGroupTargetAssignmentMemberValue | None


class ShareGroupCurrentMemberAssignmentValue(NamedTuple):
    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TargetTopicPartitions, ...]


class ShareGroupCurrentMemberAssignmentRecord(NamedTuple):
    group_id: str
    member_id: str
    value: ShareGroupCurrentMemberAssignmentValue | None


class TopicPartitionsInfo(NamedTuple):
    topic_id: bytes
    topic_name: str
    partitions: tuple[int, ...]


class DeletingTopicInfo(NamedTuple):
    topic_id: bytes
    topic_name: str


class ShareGroupStatePartitionMetadataValue(NamedTuple):
    """The partitions for which the share coordinator keeps state of the group."""

    initializing_topics: tuple[TopicPartitionsInfo, ...] = ()
    initialized_topics: tuple[TopicPartitionsInfo, ...] = ()
    deleting_topics: tuple[DeletingTopicInfo, ...] = ()


class ShareGroupStatePartitionMetadataRecord(NamedTuple):
    group_id: str
    value: ShareGroupStatePartitionMetadataValue | None
