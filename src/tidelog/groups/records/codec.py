"""Key and value of a group's record to its type and back, by the number of its kind."""

from typing import Any

from tidelog.coordinator.errors import UnreadableShard
from tidelog.coordinator.record_fields import (
    BYTES,
    INTEGER_8,
    INTEGER_32,
    INTEGER_64,
    NULLABLE_STRING,
    STRING,
    UUID,
    Field,
    RecordTable,
    array_of,
    or_null,
    structure,
)
from tidelog.groups.records import offset_commit
from tidelog.groups.records.types import (
    NO_TIMESTAMP_MS,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentRecord,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataRecord,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataRecord,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionRecord,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberRecord,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataRecord,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataRecord,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitRecord,
    PartitionMetadata,
    TargetTopicPartitions,
    TopicMetadata,
    TopicPartitions,
)
from tidelog.wire.errors import MalformedRequest

_MEMBER_METADATA = structure(
    MemberMetadata,
    Field("member_id", STRING),
    Field("group_instance_id", NULLABLE_STRING, since=3),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("rebalance_timeout", INTEGER_32, since=1, default=-1),
    Field("session_timeout", INTEGER_32),
    Field("subscription", BYTES),
    Field("assignment", BYTES),
)
_GROUP_METADATA = structure(
    GroupMetadataValue,
    Field("protocol_type", STRING),
    Field("generation", INTEGER_32),
    Field("protocol", NULLABLE_STRING),
    Field("leader", NULLABLE_STRING),
    Field("current_state_timestamp", INTEGER_64, since=2, default=NO_TIMESTAMP_MS),
    Field("members", array_of(_MEMBER_METADATA)),
)
_CONSUMER_GROUP_METADATA = structure(
    ConsumerGroupMetadataValue, Field("epoch", INTEGER_32), Field("metadata_hash", INTEGER_64, tag=0, default=0)
)
_PARTITION_METADATA = structure(PartitionMetadata, Field("partition", INTEGER_32), Field("racks", array_of(STRING)))
_TOPIC_METADATA = structure(
    TopicMetadata,
    Field("topic_id", UUID),
    Field("topic_name", STRING),
    Field("num_partitions", INTEGER_32),
    Field("partition_metadata", array_of(_PARTITION_METADATA)),
)
_CLASSIC_MEMBER_METADATA = structure(
    ClassicMemberMetadata,
    Field("session_timeout_ms", INTEGER_32),
    Field("supported_protocols", array_of(structure(ClassicProtocol, Field("name", STRING), Field("metadata", BYTES)))),
)
_CONSUMER_GROUP_MEMBER_METADATA = structure(
    ConsumerGroupMemberMetadataValue,
    Field("instance_id", NULLABLE_STRING),
    Field("rack_id", NULLABLE_STRING),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", array_of(STRING)),
    Field("subscribed_topic_regex", NULLABLE_STRING),
    Field("rebalance_timeout_ms", INTEGER_32),
    Field("server_assignor", NULLABLE_STRING),
    Field("classic_member_metadata", or_null(_CLASSIC_MEMBER_METADATA, is_marked=True), tag=0),
)
_TARGET_TOPIC_PARTITIONS = structure(TargetTopicPartitions, Field("topic_id", UUID), Field("partitions", array_of(INTEGER_32)))
_TOPIC_PARTITIONS = structure(
    TopicPartitions,
    Field("topic_id", UUID),
    Field("partitions", array_of(INTEGER_32)),
    Field("assignment_epochs", or_null(array_of(INTEGER_32), is_marked=False), tag=0),
)
_CURRENT_MEMBER_ASSIGNMENT = structure(
    ConsumerGroupCurrentMemberAssignmentValue,
    Field("member_epoch", INTEGER_32),
    Field("previous_member_epoch", INTEGER_32),
    Field("state", INTEGER_8),
    Field("assigned_partitions", array_of(_TOPIC_PARTITIONS)),
    Field("partitions_pending_revocation", array_of(_TOPIC_PARTITIONS)),
)
_TARGET_ASSIGNMENT_METADATA = structure(
    ConsumerGroupTargetAssignmentMetadataValue,
    Field("assignment_epoch", INTEGER_32),
    Field("assignment_timestamp", INTEGER_64, tag=0, default=0),
)
_REGULAR_EXPRESSION = structure(
    ConsumerGroupRegularExpressionValue,
    Field("topics", array_of(STRING)),
    Field("version", INTEGER_64),
    Field("timestamp", INTEGER_64),
)

_TABLES: dict[int, tuple[type[Any], RecordTable]] = {
    kind: (record_type, RecordTable(kind, record_type, key_fields, value))
    for kind, record_type, key_fields, value in (
        (3, ConsumerGroupMetadataRecord, 1, _CONSUMER_GROUP_METADATA),
        (
            4,
            ConsumerGroupPartitionMetadataRecord,
            1,
            structure(ConsumerGroupPartitionMetadataValue, Field("topics", array_of(_TOPIC_METADATA))),
        ),
        (5, ConsumerGroupMemberMetadataRecord, 2, _CONSUMER_GROUP_MEMBER_METADATA),
        (6, ConsumerGroupTargetAssignmentMetadataRecord, 1, _TARGET_ASSIGNMENT_METADATA),
        (
            7,
            ConsumerGroupTargetAssignmentMemberRecord,
            2,
            structure(ConsumerGroupTargetAssignmentMemberValue, Field("topic_partitions", array_of(_TARGET_TOPIC_PARTITIONS))),
        ),
        (8, ConsumerGroupCurrentMemberAssignmentRecord, 2, _CURRENT_MEMBER_ASSIGNMENT),
        (16, ConsumerGroupRegularExpressionRecord, 2, _REGULAR_EXPRESSION),
    )
}
_TABLES[2] = (
    GroupMetadataRecord,
    RecordTable(2, GroupMetadataRecord, 1, _GROUP_METADATA, version_max=4, version_written=3, flexible_since=4),
)
_ENCODE = {record_type: table.encode for record_type, table in _TABLES.values()}
_DECODE = {kind: table.decode for kind, (_, table) in _TABLES.items()}


class GroupRecordCodec:
    __slots__ = ()

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        kind = type(record)
        return offset_commit.encode(record) if kind is OffsetCommitRecord else _ENCODE[kind](record)

    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        if len(key) < 2:
            raise UnreadableShard(f"a key of {len(key)} bytes has no kind")
        kind = key[0] << 8 | key[1]
        if kind <= offset_commit.KIND:
            return offset_commit.decode(key, value)
        decode = _DECODE.get(kind)
        if decode is None:
            return None
        try:
            return decode(key, value)
        except MalformedRequest as error:
            raise UnreadableShard(f"a record of kind {kind} cannot be read: {error}") from error


RECORD_CODEC = GroupRecordCodec()
