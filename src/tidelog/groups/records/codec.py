"""Converts the records of groups to keys and values and back. The first field of a key, the kind, selects the schema."""

from typing import Any

from tidelog.coordinator.errors import UnreadableShard
from tidelog.coordinator.records import RecordSchema
from tidelog.groups.records import offset_commit
from tidelog.groups.records.types import (
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
    DeletingTopicInfo,
    GroupMetadataRecord,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitRecord,
    PartitionMetadata,
    ShareGroupCurrentMemberAssignmentRecord,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataRecord,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataRecord,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataRecord,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberRecord,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataRecord,
    ShareGroupTargetAssignmentMetadataValue,
    TargetTopicPartitions,
    TopicMetadata,
    TopicPartitions,
    TopicPartitionsInfo,
)
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.schema import BYTES, INT8, INT32, INT64, STRING, UUID, Field, tuple_struct

_MEMBER_METADATA = tuple_struct(
    MemberMetadata,
    Field("member_id", STRING),
    Field("group_instance_id", STRING, is_nullable=True, since=3),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("rebalance_timeout", INT32, since=1, default=-1),
    Field("session_timeout", INT32),
    Field("subscription", BYTES),
    Field("assignment", BYTES),
)
_GROUP_METADATA = tuple_struct(
    GroupMetadataValue,
    Field("protocol_type", STRING),
    Field("generation", INT32),
    Field("protocol", STRING, is_nullable=True),
    Field("leader", STRING, is_nullable=True),
    Field("current_state_timestamp", INT64, since=2),
    Field("members", _MEMBER_METADATA, is_array=True),
)
_CONSUMER_GROUP_METADATA = tuple_struct(ConsumerGroupMetadataValue, Field("epoch", INT32), Field("metadata_hash", INT64, tag=0))
_PARTITION_METADATA = tuple_struct(PartitionMetadata, Field("partition", INT32), Field("racks", STRING, is_array=True))
_TOPIC_METADATA = tuple_struct(
    TopicMetadata,
    Field("topic_id", UUID),
    Field("topic_name", STRING),
    Field("num_partitions", INT32),
    Field("partition_metadata", _PARTITION_METADATA, is_array=True),
)
_CONSUMER_GROUP_PARTITION_METADATA = tuple_struct(
    ConsumerGroupPartitionMetadataValue, Field("topics", _TOPIC_METADATA, is_array=True)
)
_CLASSIC_PROTOCOL = tuple_struct(ClassicProtocol, Field("name", STRING), Field("metadata", BYTES))
_CLASSIC_MEMBER_METADATA = tuple_struct(
    ClassicMemberMetadata,
    Field("session_timeout_ms", INT32),
    Field("supported_protocols", _CLASSIC_PROTOCOL, is_array=True),
)
_CONSUMER_GROUP_MEMBER_METADATA = tuple_struct(
    ConsumerGroupMemberMetadataValue,
    Field("instance_id", STRING, is_nullable=True),
    Field("rack_id", STRING, is_nullable=True),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", STRING, is_array=True),
    Field("subscribed_topic_regex", STRING, is_nullable=True),
    Field("rebalance_timeout_ms", INT32),
    Field("server_assignor", STRING, is_nullable=True),
    Field("classic_member_metadata", _CLASSIC_MEMBER_METADATA, is_nullable=True, tag=0),
)
_TARGET_ASSIGNMENT_METADATA = tuple_struct(
    ConsumerGroupTargetAssignmentMetadataValue,
    Field("assignment_epoch", INT32),
    Field("assignment_timestamp", INT64, tag=0),
)
_TARGET_TOPIC_PARTITIONS = tuple_struct(TargetTopicPartitions, Field("topic_id", UUID), Field("partitions", INT32, is_array=True))
_TARGET_ASSIGNMENT_MEMBER = tuple_struct(
    ConsumerGroupTargetAssignmentMemberValue, Field("topic_partitions", _TARGET_TOPIC_PARTITIONS, is_array=True)
)
_TOPIC_PARTITIONS = tuple_struct(
    TopicPartitions,
    Field("topic_id", UUID),
    Field("partitions", INT32, is_array=True),
    Field("assignment_epochs", INT32, is_array=True, is_nullable=True, tag=0),
)
_CURRENT_MEMBER_ASSIGNMENT = tuple_struct(
    ConsumerGroupCurrentMemberAssignmentValue,
    Field("member_epoch", INT32),
    Field("previous_member_epoch", INT32),
    Field("state", INT8),
    Field("assigned_partitions", _TOPIC_PARTITIONS, is_array=True),
    Field("partitions_pending_revocation", _TOPIC_PARTITIONS, is_array=True),
)
_REGULAR_EXPRESSION = tuple_struct(
    ConsumerGroupRegularExpressionValue,
    Field("topics", STRING, is_array=True),
    Field("version", INT64),
    Field("timestamp", INT64),
)
_SHARE_GROUP_MEMBER_METADATA = tuple_struct(
    ShareGroupMemberMetadataValue,
    Field("rack_id", STRING, is_nullable=True),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", STRING, is_array=True),
)
_SHARE_GROUP_METADATA = tuple_struct(ShareGroupMetadataValue, Field("epoch", INT32), Field("metadata_hash", INT64))
_SHARE_GROUP_TARGET_METADATA = tuple_struct(
    ShareGroupTargetAssignmentMetadataValue,
    Field("assignment_epoch", INT32),
    Field("assignment_timestamp", INT64, tag=0),
)
_SHARE_GROUP_TARGET_MEMBER = tuple_struct(
    ShareGroupTargetAssignmentMemberValue, Field("topic_partitions", _TARGET_TOPIC_PARTITIONS, is_array=True)
)
_SHARE_GROUP_CURRENT_ASSIGNMENT = tuple_struct(
    ShareGroupCurrentMemberAssignmentValue,
    Field("member_epoch", INT32),
    Field("previous_member_epoch", INT32),
    Field("state", INT8),
    Field("assigned_partitions", _TARGET_TOPIC_PARTITIONS, is_array=True),
)
_TOPIC_PARTITIONS_INFO = tuple_struct(
    TopicPartitionsInfo,
    Field("topic_id", UUID),
    Field("topic_name", STRING),
    Field("partitions", INT32, is_array=True),
)
_SHARE_GROUP_STATE_PARTITIONS = tuple_struct(
    ShareGroupStatePartitionMetadataValue,
    Field("initializing_topics", _TOPIC_PARTITIONS_INFO, is_array=True),
    Field("initialized_topics", _TOPIC_PARTITIONS_INFO, is_array=True),
    Field(
        "deleting_topics", tuple_struct(DeletingTopicInfo, Field("topic_id", UUID), Field("topic_name", STRING)), is_array=True
    ),
)

_SCHEMAS = (
    RecordSchema(2, GroupMetadataRecord, _GROUP_METADATA, version_max=4, version_written=3, flexible_since=4),
    RecordSchema(3, ConsumerGroupMetadataRecord, _CONSUMER_GROUP_METADATA),
    RecordSchema(4, ConsumerGroupPartitionMetadataRecord, _CONSUMER_GROUP_PARTITION_METADATA),
    RecordSchema(5, ConsumerGroupMemberMetadataRecord, _CONSUMER_GROUP_MEMBER_METADATA),
    RecordSchema(6, ConsumerGroupTargetAssignmentMetadataRecord, _TARGET_ASSIGNMENT_METADATA),
    RecordSchema(7, ConsumerGroupTargetAssignmentMemberRecord, _TARGET_ASSIGNMENT_MEMBER),
    RecordSchema(8, ConsumerGroupCurrentMemberAssignmentRecord, _CURRENT_MEMBER_ASSIGNMENT),
    RecordSchema(10, ShareGroupMemberMetadataRecord, _SHARE_GROUP_MEMBER_METADATA),
    RecordSchema(11, ShareGroupMetadataRecord, _SHARE_GROUP_METADATA),
    RecordSchema(12, ShareGroupTargetAssignmentMetadataRecord, _SHARE_GROUP_TARGET_METADATA),
    RecordSchema(13, ShareGroupTargetAssignmentMemberRecord, _SHARE_GROUP_TARGET_MEMBER),
    RecordSchema(14, ShareGroupCurrentMemberAssignmentRecord, _SHARE_GROUP_CURRENT_ASSIGNMENT),
    RecordSchema(15, ShareGroupStatePartitionMetadataRecord, _SHARE_GROUP_STATE_PARTITIONS),
    RecordSchema(16, ConsumerGroupRegularExpressionRecord, _REGULAR_EXPRESSION),
)
_ENCODE = {schema.record_type: schema.encode for schema in _SCHEMAS}
_DECODE = {schema.kind: schema.decode for schema in _SCHEMAS}


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
