"""The tagged fields that Tidelog adds to Kafka's messages.

Their tags are from 10,000 on, which Kafka does not use: its clients and brokers skip them, and so do Tidelog's earlier releases.
A field that an answer lacks, because Kafka made it, reads as its default, which says that nothing is known.

DescribeShareGroupOffsets: the answer also says what only the leader of a partition knows of a group. A broker asks another one
for that with the same request, in which the group is marked as a question to a leader, and not to the group's coordinator; such a
question says where the group is in each partition, because its leader does not know if nobody fetches.

ReadShareGroupStateSummary, which brokers ask each other: the answer also says how many records were delivered in vain.
"""

from tidelog.wire.protocol import ApiKey
from tidelog.wire.schema import BOOL, INT64, Field

UNKNOWN = -1

Path = tuple[str, ...]

_REDELIVERED_COUNT = Field("redelivered_count", INT64, tag=10_105, default=UNKNOWN)

# By API, direction and the fields that lead to the struct.
OWN_FIELDS: dict[tuple[int, str, Path], tuple[Field, ...]] = {
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "request", ("groups",)): (Field("is_for_leader", BOOL, tag=10_100, default=False),),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "request", ("groups", "topics")): (
        Field("start_offsets", INT64, is_array=True, tag=10_100, default=()),
    ),
    (ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "response", ("groups", "topics", "partitions")): (
        Field("log_start_offset", INT64, tag=10_100, default=UNKNOWN),
        Field("end_offset", INT64, tag=10_101, default=UNKNOWN),
        Field("oldest_timestamp_ms", INT64, tag=10_102, default=UNKNOWN),
        Field("acquired_count", INT64, tag=10_103, default=UNKNOWN),
        Field("delayed_count", INT64, tag=10_104, default=UNKNOWN),
        _REDELIVERED_COUNT,
    ),
    (ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, "response", ("results", "partitions")): (_REDELIVERED_COUNT,),
}
